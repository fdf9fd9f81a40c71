// The direct transport against plain arithmetic, over links on which a buffer that is reused too early shows.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "reduction.h"
#include "thread_link.h"
#include "transport/direct/link_consent.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

// Turns an operation until it is done.
void Complete(Transport* transport, const Collective& collective) {
  const auto operation = transport->Start(collective);
  bool done = false;
  for (int64_t idle = 0; !done;) {
    bool moved = false;
    CHECK_OK(operation->Advance(&moved, &done));
    idle = moved ? 0 : idle + 1;
    if (idle > 5000000) throw std::runtime_error("stuck waiting for members " + RankList(operation->Missing()));
    if (!moved) std::this_thread::yield();
  }
}

Members All(int size, int rank) {
  Members members;
  for (int i = 0; i < size; ++i) members.ranks.push_back(i);
  members.position = rank;
  return members;
}

std::vector<float> Values(int rank, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919u + 1u);
  std::normal_distribution<float> normal(0.f, 1e3f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// `parts`: the tensors that the elements are cut into.
void CheckAllreduce(int size, int64_t count, bool in_place, const DirectOptions& options, const Scaling& scaling,
                    int parts = 1) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(Values(rank, count));
  for (const auto& values : inputs) pointers.push_back(values.data());
  std::vector<float> expected(static_cast<size_t>(count));
  void* to = expected.data();
  Reduce(pointers.data(), size, &to, 1, count, Arithmetic::Of(HVD_FLOAT32, HVD_SUM, scaling, size));

  const auto links = MakeLinks(size);
  RunRanks(size, [&](int rank) {
    DirectTransport transport(links[static_cast<size_t>(rank)], All(size, rank), options);
    for (int round = 0; round < 2; ++round) {
      std::vector<float> input = inputs[static_cast<size_t>(rank)], output(input.size(), -1.f);
      Collective collective;
      collective.kind = Kind::kAllreduce;
      collective.scaling = scaling;
      collective.sequence = round + 1;
      float* result = in_place ? input.data() : output.data();
      for (int part = 0; part < parts; ++part) {
        const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
        collective.spans.push_back({input.data() + begin, result + begin, end - begin});
      }
      Complete(&transport, collective);
      CHECK(count == 0 || std::memcmp(result, expected.data(), expected.size() * sizeof(float)) == 0);
      if (!in_place) CHECK(input == inputs[static_cast<size_t>(rank)]);
    }
  });
}

DirectOptions Tiny() {
  DirectOptions tiny;
  tiny.piece_bytes = 64;
  tiny.small_bytes = 128;
  tiny.window = 2;
  return tiny;
}

}  // namespace

TEST(direct_allreduce_is_the_sum_in_rank_order_bit_for_bit) {
  for (int size = 1; size <= 5; ++size) {
    for (int64_t count : {0, 1, 3, 16, 31, 32, 33, 1000, 1001}) {
      for (bool in_place : {false, true}) CheckAllreduce(size, count, in_place, Tiny(), {});
      CheckAllreduce(size, count, true, Tiny(), {}, 3);
    }
  }
  for (int size : {2, 3}) {
    for (int64_t count : {4096 + 1, 1 << 18}) CheckAllreduce(size, count, true, {}, {});
  }
}

TEST(direct_allreduce_scales) {
  for (int64_t count : {5, 1001}) {
    for (bool in_place : {false, true}) {
      CheckAllreduce(3, count, in_place, Tiny(), {0.25, 3.0, true});
      CheckAllreduce(2, count, in_place, Tiny(), {1.0, 0.5, false});
    }
  }
}

TEST(direct_broadcast_reaches_all_from_every_root) {
  for (int size = 1; size <= 6; ++size) {
    for (int root = 0; root < size; ++root) {
      for (int64_t count : {0, 1, 16, 17, 500}) {
        const auto links = MakeLinks(size);
        RunRanks(size, [&](int rank) {
          DirectTransport transport(links[static_cast<size_t>(rank)], All(size, rank), Tiny());
          std::vector<float> data = Values(rank, count);
          Collective collective;
          collective.kind = Kind::kBroadcast;
          collective.root = root;
          collective.spans = {{data.data(), data.data(), count}};
          Complete(&transport, collective);
          CHECK(data == Values(root, count));
        });
      }
    }
  }
}

TEST(direct_blocks_and_slices_go_where_they_belong) {
  for (int size = 1; size <= 5; ++size) {
    const auto links = MakeLinks(size);
    RunRanks(size, [&](int rank) {
      DirectTransport transport(links[static_cast<size_t>(rank)], All(size, rank), Tiny());
      // Member m gives 7 m elements to all; member a gives member b (a + 2 b) % 40 elements; member m gets 11 m + 5.
      Collective gather, all_to_all, scatter;
      gather.kind = Kind::kAllgather;
      all_to_all.kind = Kind::kAlltoall;
      scatter.kind = Kind::kReducescatter;
      std::vector<float> gathered, received;
      int64_t sent = 0, total = 0, begin = 0;
      for (int m = 0; m < size; ++m) {
        const std::vector<float> theirs = Values(m, 7 * m);
        gathered.insert(gathered.end(), theirs.begin(), theirs.end());
        gather.receive_counts.push_back(7 * m);
        all_to_all.send_counts.push_back((rank + 2 * m) % 40);
        all_to_all.receive_counts.push_back((m + 2 * rank) % 40);
        const std::vector<float> block = Values(m * 100 + rank, (m + 2 * rank) % 40);
        received.insert(received.end(), block.begin(), block.end());
        sent += all_to_all.send_counts.back();
        scatter.receive_counts.push_back(11 * m + 5);
        if (m < rank) begin += 11 * m + 5;
        total += 11 * m + 5;
      }
      const std::vector<float> mine = Values(rank, 7 * rank);
      std::vector<float> out(gathered.size());
      gather.spans = {{mine.data(), out.data(), static_cast<int64_t>(out.size())}};
      Complete(&transport, gather);
      CHECK(out == gathered);

      std::vector<float> outgoing;
      for (int m = 0; m < size; ++m) {
        const std::vector<float> block = Values(rank * 100 + m, (rank + 2 * m) % 40);
        outgoing.insert(outgoing.end(), block.begin(), block.end());
      }
      out.assign(received.size(), 0);
      all_to_all.spans = {{outgoing.data(), out.data(), sent}};
      Complete(&transport, all_to_all);
      CHECK(out == received);

      const std::vector<float> whole = Values(rank, total);
      const int64_t count = 11 * rank + 5;
      out.assign(static_cast<size_t>(count), 0);
      scatter.spans = {{whole.data(), out.data(), total}};
      Complete(&transport, scatter);
      for (int64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int m = 0; m < size; ++m) {
          const float value = Values(m, total)[static_cast<size_t>(begin + i)];
          sum = m == 0 ? value : sum + value;
        }
        CHECK_EQUAL(out[static_cast<size_t>(i)], sum);
      }
    });
  }
}

TEST(link_consent_gives_all_the_same_answer) {
  for (int size = 1; size <= 7; ++size) {
    const auto links = MakeLinks(size);
    RunRanks(size, [&](int rank) {
      LinkConsent consent(links[static_cast<size_t>(rank)], All(size, rank));
      for (int64_t number = 1; number <= 60; number += 1 + number % 3) {
        // Everybody agrees on some numbers; on others one rank refuses, which may be any.
        const bool refused = number % 2 == 0;
        Answer answer = Answer::kOpen;
        if (number % 5 == 0) CHECK_OK(consent.Ask(number, &answer));
        CHECK_OK(consent.Vote(number, !(refused && rank == number / 2 % size)));
        for (answer = Answer::kOpen; answer == Answer::kOpen; std::this_thread::yield()) {
          CHECK_OK(consent.Ask(number, &answer));
        }
        CHECK(answer == (refused ? Answer::kRefused : Answer::kAllReady));
        CHECK_OK(consent.Ask(number, &answer));
        CHECK(answer == (refused ? Answer::kRefused : Answer::kAllReady));
      }
    });
  }
}
