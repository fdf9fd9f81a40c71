// Shared memory between ranks: each collective against plain arithmetic, with ranks as processes and as threads.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "check.h"
#include "reduction.h"
#include "shm_world.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

ArenaOptions SmallChunks() {
  ArenaOptions options;
  options.chunk_bytes = 16 << 10;
  options.least_part_bytes = 1 << 10;
  options.small_bytes = 1 << 10;
  return options;
}

std::vector<float> Values(int rank, int64_t count, int seed = 1) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + seed));
  std::normal_distribution<float> normal(0.f, 1e3f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// What the sum of Values() of all ranks must be, to the last bit.
std::vector<float> Expected(int size, int64_t count, int seed, const Arithmetic& arithmetic) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(Values(rank, count, seed));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> result(static_cast<size_t>(count));
  void* out = result.data();
  ReduceWith(InstructionSet::kPortable, pointers.data(), size, &out, 1, count, arithmetic);
  return result;
}

Collective Allreduce(const std::vector<Span>& spans, int32_t op = HVD_SUM) {
  Collective c;
  c.kind = Kind::kAllreduce;
  c.op = op;
  c.scaling.average = op == HVD_AVERAGE;
  c.spans = spans;
  return c;
}

void CheckSame(const float* got, const std::vector<float>& want, const char* what) {
  if (!want.empty() && std::memcmp(got, want.data(), want.size() * sizeof(float)) != 0) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(got + i, &want[i], sizeof(float)) != 0) {
        throw std::runtime_error(std::string(what) + ": element " + std::to_string(i) + " is " +
                                 std::to_string(got[i]) + ", not " + std::to_string(want[i]));
      }
    }
  }
}

const std::vector<int64_t> kSizes = {0, 1, 3, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 20000, 65537, 300000};

void AllreduceOfAllSizes(ShmRank& me) {
  for (int64_t count : kSizes) {
    for (bool in_place : {false, true}) {
      const int seed = static_cast<int>(count) + (in_place ? 1 : 0);
      const Arithmetic average = Arithmetic::Of(HVD_FLOAT32, HVD_AVERAGE, {1.0, 1.0, true}, me.size);
      const auto want = Expected(me.size, count, seed, average);
      std::vector<float> input = Values(me.rank, count, seed), output(input.size());
      if (in_place) {
        me.Run(Allreduce({{input.data(), input.data(), count}}, HVD_AVERAGE));
        CheckSame(input.data(), want, "in place");
      } else {
        me.Run(Allreduce({{input.data(), output.data(), count}}, HVD_AVERAGE));
        CheckSame(output.data(), want, "out of place");
      }
    }
  }
}

void OwnMemoryOfAllSizes(ShmRank& me) {
  for (int64_t count : kSizes) {
    void* memory = nullptr;
    CHECK_OK(me.segments->Allocate(count * 4, &memory));
    float* tensor = static_cast<float*>(memory);
    const auto want = Expected(me.size, count, 5, Arithmetic::Of(HVD_FLOAT32, HVD_SUM, {}, me.size));
    const auto input = Values(me.rank, count, 5);
    std::copy(input.begin(), input.end(), tensor);
    me.Run(Allreduce({{tensor, tensor, count}}));
    CheckSame(tensor, want, "own memory");
    std::fill(tensor, tensor + count, -1.f);
    me.Run(Allreduce({{input.data(), tensor, count}}));
    CheckSame(tensor, want, "own memory, another input");
    CHECK(me.segments->Free(memory));
    me.host->Beat();
  }
  CHECK_EQUAL(me.segments->allocations(), 0);
}

// A rank that cannot makes all go through the slots.
void MixedMemory(ShmRank& me) {
  const int64_t count = 30000;
  void* memory = nullptr;
  CHECK_OK(me.segments->Allocate(count * 4, &memory));
  std::vector<float> ordinary(static_cast<size_t>(count));
  for (int odd = 0; odd < me.size; ++odd) {
    float* tensor = me.rank == odd ? ordinary.data() : static_cast<float*>(memory);
    const auto input = Values(me.rank, count, odd);
    std::copy(input.begin(), input.end(), tensor);
    me.Run(Allreduce({{tensor, tensor, count}}));
    CheckSame(tensor, Expected(me.size, count, odd, Arithmetic::Of(HVD_FLOAT32, HVD_SUM, {}, me.size)), "mixed");
  }
  CHECK(me.segments->Free(memory));
}

// Several tensors as one, some of them empty, of sizes that cut chunks and shares anywhere.
void FusedTensors(ShmRank& me, bool own) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> counts;
    for (int i = 0; i < 12; ++i) counts.push_back(random() % 4 == 0 ? 0 : random() % (round % 2 ? 40 : 4000));
    std::vector<std::vector<float>> inputs, outputs;
    std::vector<void*> memory(counts.size());
    std::vector<Span> spans;
    for (size_t i = 0; i < counts.size(); ++i) {
      inputs.push_back(Values(me.rank, counts[i], static_cast<int>(i)));
      outputs.emplace_back(inputs.back().size());
      if (own) CHECK_OK(me.segments->Allocate(counts[i] * 4, &memory[i]));
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      spans.push_back({inputs[i].data(), own ? memory[i] : outputs[i].data(), counts[i]});
    }
    me.Run(Allreduce(spans));
    for (size_t i = 0; i < counts.size(); ++i) {
      CheckSame(static_cast<const float*>(spans[i].output),
                Expected(me.size, counts[i], static_cast<int>(i), Arithmetic::Of(HVD_FLOAT32, HVD_SUM, {}, me.size)),
                "fused");
      if (own) CHECK(me.segments->Free(memory[i]));
    }
  }
}

void Streams(ShmRank& me) {
  const auto rank = static_cast<size_t>(me.rank);
  for (int64_t base : {0, 1, 700, 9000, 50000}) {
    for (int root = 0; root < me.size; ++root) {
      std::vector<float> data = Values(me.rank, base, root), output(data.size(), -1.f);
      Collective c;
      c.kind = Kind::kBroadcast;
      c.root = root;
      c.spans = {{data.data(), output.data(), base}};
      me.Run(c);
      CheckSame(output.data(), Values(root, base, root), "broadcast");
    }
    std::vector<int64_t> counts;
    for (int i = 0; i < me.size; ++i) counts.push_back(base * (i + 1) % 77777);
    Collective c;
    c.kind = Kind::kAllgather;
    c.receive_counts = counts;
    std::vector<float> mine = Values(me.rank, counts[rank]), want;
    for (int i = 0; i < me.size; ++i) {
      const auto part = Values(i, counts[static_cast<size_t>(i)]);
      want.insert(want.end(), part.begin(), part.end());
    }
    std::vector<float> gathered(want.size(), -1.f);
    c.spans = {{mine.data(), gathered.data(), counts[rank]}};
    me.Run(c);
    CheckSame(gathered.data(), want, "allgather");
  }
  me.Run(Collective{});  // a barrier
}

void Alltoall(ShmRank& me) {
  const auto count = [&](int from, int to, int64_t base) { return base * ((from * 3 + to * 5) % 7); };
  for (int64_t base : {0, 1, 300, 5000}) {
    Collective c;
    c.kind = Kind::kAlltoall;
    std::vector<float> input, want;
    for (int peer = 0; peer < me.size; ++peer) {
      c.send_counts.push_back(count(me.rank, peer, base));
      c.receive_counts.push_back(count(peer, me.rank, base));
      const auto out = Values(me.rank, c.send_counts.back(), peer), in = Values(peer, c.receive_counts.back(), me.rank);
      input.insert(input.end(), out.begin(), out.end());
      want.insert(want.end(), in.begin(), in.end());
    }
    std::vector<float> output(want.size(), -1.f);
    c.spans = {{input.data(), output.data(), static_cast<int64_t>(input.size())}};
    me.Run(c);
    CheckSame(output.data(), want, "alltoall");
  }
}

void Reducescatter(ShmRank& me) {
  for (int64_t base : {0, 1, 999, 20000}) {
    Collective c;
    c.kind = Kind::kReducescatter;
    int64_t total = 0, begin = 0;
    for (int i = 0; i < me.size; ++i) {
      c.receive_counts.push_back(base * (i + 1) / 2);
      if (i < me.rank) begin += c.receive_counts.back();
      total += c.receive_counts.back();
    }
    const auto all = Expected(me.size, total, 3, Arithmetic::Of(HVD_FLOAT32, HVD_SUM, {}, me.size));
    const auto input = Values(me.rank, total, 3);
    const int64_t mine = c.receive_counts[static_cast<size_t>(me.rank)];
    std::vector<float> output(static_cast<size_t>(mine), -1.f);
    c.spans = {{input.data(), output.data(), total}};
    me.Run(c);
    CheckSame(output.data(), {all.begin() + begin, all.begin() + begin + mine}, "reducescatter");
  }
}

void Everything(ShmRank& me) {
  me.Open(SmallChunks());
  AllreduceOfAllSizes(me);
  OwnMemoryOfAllSizes(me);
  MixedMemory(me);
  FusedTensors(me, false);
  FusedTensors(me, true);
  Streams(me);
  Alltoall(me);
  Reducescatter(me);
  AllreduceOfAllSizes(me);
}

}  // namespace

// Ranks that rest at any place of the protocol, with so few and small slots that everybody waits for everybody.
TEST(shm_collectives_of_ranks_that_dawdle) {
  RunProcesses(3, [](ShmRank& me) {
    ArenaOptions options;
    options.chunk_bytes = 4096;
    options.least_part_bytes = 64;
    options.small_bytes = 512;
    options.slots = 2;
    me.Open(options);
    auto random = std::make_shared<std::mt19937>(static_cast<unsigned>(me.rank) + 100);
    me.disturb = [random] {
      const unsigned draw = (*random)() % 200;
      if (draw == 0) usleep(300);
      if (draw < 20) sched_yield();
    };
    MixedMemory(me);
    FusedTensors(me, false);
    FusedTensors(me, true);
    Streams(me);
    Alltoall(me);
    Reducescatter(me);
  });
}

TEST(shm_collectives_of_one_process) { RunProcesses(1, Everything); }
TEST(shm_collectives_of_two_processes) { RunProcesses(2, Everything); }
TEST(shm_collectives_of_three_processes) { RunProcesses(3, Everything); }
TEST(shm_collectives_of_four_processes) { RunProcesses(4, Everything); }
TEST(shm_collectives_of_threads) { RunThreads(3, Everything); }

TEST(shm_with_the_usual_chunks) {
  RunProcesses(2, [](ShmRank& me) {
    me.Open();
    for (int64_t count : {int64_t{1}, int64_t{65536}, (int64_t{1} << 20) + 1}) {
      const auto want = Expected(2, count, 1, Arithmetic::Of(HVD_FLOAT32, HVD_SUM, {}, 2));
      std::vector<float> data = Values(me.rank, count);
      me.Run(Allreduce({{data.data(), data.data(), count}}));
      CheckSame(data.data(), want, "in place");
    }
  });
}
