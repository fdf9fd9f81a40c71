// Engines of several ranks in one process: agreement, pairing by name, failures, shutdown.
#include "engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "check.h"
#include "thread_link.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

EngineConfig Config(double comm_timeout, int64_t fusion_threshold = 4 << 20) {
  EngineConfig config = World::QuietConfig();
  config.set.coordinator.comm_timeout = comm_timeout;
  config.set.coordinator.fusion_threshold = fusion_threshold;
  return config;
}

std::vector<float> Input(int rank, int tensor) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + tensor));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(1 + (tensor * 37) % 300));
  for (float& value : values) value = normal(random);
  return values;
}

using Results = std::map<int, std::vector<std::vector<float>>>;  // rank -> tensors

// All ranks submit the same tensors, each in an order of its own.
Results ManyTensors(int size, int tensors, unsigned seed, int64_t fusion_threshold) {
  World world(size, Config(30, fusion_threshold));
  Results results;
  for (int rank = 0; rank < size; ++rank) results[rank].resize(static_cast<size_t>(tensors));
  RunRanks(size, [&](int rank) {
    std::mt19937 random(seed + static_cast<unsigned>(rank));
    std::vector<int> order(static_cast<size_t>(tensors));
    for (int i = 0; i < tensors; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<float>> inputs;
    for (int i = 0; i < tensors; ++i) inputs.push_back(Input(rank, i));
    std::vector<int64_t> handles;
    for (int i : order) {
      handles.push_back(world.Allreduce(rank, "t" + std::to_string(i), inputs[static_cast<size_t>(i)],
                                        &results[rank][static_cast<size_t>(i)], HVD_AVERAGE));
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    for (int64_t handle : handles) CHECK_OK(world.Wait(rank, handle));
    CHECK_OK(world[rank].Shutdown(20, false));
  });
  return results;
}

}  // namespace

TEST(engine_pairs_by_name_in_any_order_with_the_same_bits) {
  const Results first = ManyTensors(3, 60, 1, 4 << 20);
  for (int rank = 1; rank < 3; ++rank) CHECK(first.at(rank) == first.at(0));
  for (int i = 0; i < 60; ++i) {
    const std::vector<float> a = Input(0, i), b = Input(1, i), c = Input(2, i);
    for (size_t k = 0; k < a.size(); ++k) {
      CHECK_EQUAL(first.at(0)[static_cast<size_t>(i)][k], ((a[k] + b[k]) + c[k]) / 3.f);
    }
  }
  CHECK(ManyTensors(3, 60, 77, 4 << 20) == first);
  CHECK(ManyTensors(3, 60, 5, 0) == first);
  CHECK(ManyTensors(3, 60, 6, 1000) == first);
}

TEST(engine_alone_serves_every_collective) {
  World world(1);
  std::vector<float> in = {2, 4}, out;
  CHECK_OK(world.Wait(0, world.Allreduce(0, "x", in, &out, HVD_AVERAGE, 0.5, 3.0)));
  CHECK(out == std::vector<float>({3, 6}));
  CHECK_OK(world.Wait(0, world.Broadcast(0, "x", &in, 0)));
  CHECK_OK(world.Wait(0, world.Barrier(0, "x")));
  Outcome outcome;
  CHECK_OK(world.Run(0, World::Floats(Kind::kReducescatter, "x", in), &outcome));
  CHECK_EQUAL(outcome.outputs[0].rows, 2);
  CHECK_OK(world[0].Shutdown(10, false));
  CHECK_OK(world[0].Shutdown(10, false));
  CHECK(world.Run(0, World::Named(Kind::kBarrier, "late")).code == HVD_SHUT_DOWN);
}

TEST(engine_refuses_a_name_in_flight_and_takes_it_again_later) {
  World world(2);
  std::vector<float> in = {1}, out0, out1, other;
  const int64_t first = world.Allreduce(0, "x", in, &out0);
  const Status refused = world.Run(0, World::Named(Kind::kBarrier, "x"));
  CHECK(refused.code == HVD_DUPLICATE_NAME);
  CHECK_CONTAINS(refused.message, "'x'");
  const int64_t second = world.Allreduce(1, "x", in, &out1);
  CHECK_OK(world.Wait(0, first));
  CHECK_OK(world.Wait(1, second));
  CHECK_EQUAL(out0[0], 2.f);
  const int64_t again = world.Barrier(0, "x"), again1 = world.Barrier(1, "x");
  CHECK_OK(world.Wait(0, again));
  CHECK_OK(world.Wait(1, again1));
}

TEST(engine_tells_a_mismatch_on_every_rank_and_goes_on) {
  World world(3);
  std::vector<float> three = {1, 2, 3}, two = {1, 2}, out[3];
  int64_t handles[3];
  for (int rank = 0; rank < 3; ++rank) {
    handles[rank] = world.Allreduce(rank, "g", rank == 1 ? two : three, &out[rank]);
  }
  for (int rank = 0; rank < 3; ++rank) {
    const Status status = world.Wait(rank, handles[rank]);
    CHECK(status.code == HVD_MISMATCH);
    CHECK_CONTAINS(status.message, "'g': ranks disagree on shape: (2,) on rank 1; (3,) on ranks 0 and 2");
  }
  for (int rank = 0; rank < 3; ++rank) handles[rank] = world.Allreduce(rank, "g", three, &out[rank]);
  for (int rank = 0; rank < 3; ++rank) CHECK_OK(world.Wait(rank, handles[rank]));
  CHECK_EQUAL(out[2][2], 9.f);
}

TEST(engine_gives_up_when_a_rank_does_not_come_and_stays_in_step) {
  World world(3, Config(0.3));
  std::vector<float> in = {1}, out[3], late, next;
  const int64_t zero = world.Allreduce(0, "x", in, &out[0]), two = world.Allreduce(2, "x", in, &out[2]);
  for (const Status& status : {world.Wait(0, zero), world.Wait(2, two)}) {
    CHECK(status.code == HVD_STALLED && status.ranks == std::vector<int32_t>({1}));
    CHECK_CONTAINS(status.message, "allreduce 'x'");
  }
  CHECK(world.Wait(1, world.Allreduce(1, "x", in, &late)).code == HVD_STALLED);
  int64_t handles[3];
  for (int rank = 0; rank < 3; ++rank) handles[rank] = world.Allreduce(rank, "x", in, &out[rank]);
  for (int rank = 0; rank < 3; ++rank) CHECK_OK(world.Wait(rank, handles[rank]));
  CHECK_EQUAL(out[1][0], 3.f);
}

TEST(engine_wait_times_out_and_the_handle_stays) {
  World world(2);
  const int64_t zero = world.Barrier(0, "b");
  CHECK(world.Wait(0, zero, 0.05).code == HVD_TIMEOUT);
  const int64_t one = world.Barrier(1, "b");
  CHECK_OK(world.Wait(0, zero));
  CHECK_OK(world.Wait(1, one));
  CHECK(world.Wait(0, zero).code == HVD_INVALID_ARGUMENT);
}

TEST(engine_finds_a_rank_that_died_in_the_middle) {
  World world(3, Config(0.5));
  std::vector<float> in(1 << 20, 1.f), out[3];
  int64_t handles[3];
  for (int rank = 0; rank < 3; ++rank) handles[rank] = world.Allreduce(rank, "x", in, &out[rank]);
  for (int rank = 0; rank < 3; ++rank) CHECK_OK(world.Wait(rank, handles[rank]));
  world.Deafen(2);
  for (int rank = 0; rank < 2; ++rank) handles[rank] = world.Allreduce(rank, "y", in, &out[rank]);
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = world.Wait(rank, handles[rank]);
    CHECK(!status.ok() && status.ranks == std::vector<int32_t>({2}));
  }
  // Rank 0 is there, so the engines live; they give up agreeing with the dead one in time, and say who it was.
  RunRanks(2, [&](int rank) {
    const Status status = world[rank].Shutdown(0.5, false);
    CHECK(!status.ok());
    if (rank == 0) CHECK(status.ranks == std::vector<int32_t>({2}));
  });
}

TEST(engine_notices_that_rank_0_is_dead) {
  World world(2, Config(0.2));
  world.Deafen(0);
  const int64_t handle = world.Barrier(1, "b");
  const Status status = world.Wait(1, handle, 15);
  CHECK(status.code == HVD_PEER_FAILED && status.ranks == std::vector<int32_t>({0}));
  const Status again = world.Run(1, World::Named(Kind::kBarrier, "later"));
  CHECK_CONTAINS(again.message, status.message.substr(status.message.find("': ") + 3));
}

TEST(engine_abort_is_told_to_the_others) {
  World world(3);
  const int64_t zero = world.Barrier(0, "b"), two = world.Barrier(2, "b");
  CHECK(world[1].Shutdown(0, true).code == HVD_SHUT_DOWN);
  const Status statuses[] = {world.Wait(0, zero), world.Wait(2, two)};
  for (const Status& status : statuses) {
    CHECK(status.code == HVD_PEER_FAILED && status.ranks == std::vector<int32_t>({1}));
    CHECK_CONTAINS(status.message, "rank 1 has stopped");
  }
  const auto begin = Clock::now();
  CHECK(world[0].Shutdown(20, false).ranks == std::vector<int32_t>({1}));
  CHECK(Seconds(Clock::now() - begin).count() < 10);
}

TEST(engine_shutdown_serves_what_all_have_joined_and_ends_the_rest) {
  World world(2);
  std::vector<float> in(1000, 1.f), out[2];
  const int64_t both0 = world.Allreduce(0, "both", in, &out[0]);
  const int64_t only0 = world.Barrier(0, "only");
  std::thread leaving([&] { CHECK_OK(world[0].Shutdown(20, false)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int64_t both1 = world.Allreduce(1, "both", in, &out[1]);
  CHECK_OK(world.Wait(1, both1));
  const Status missed = world.Wait(1, world.Barrier(1, "missed"));
  CHECK(missed.code == HVD_SHUT_DOWN);
  CHECK_CONTAINS(missed.message, "rank 0 has shut down");
  CHECK_OK(world[1].Shutdown(20, false));
  leaving.join();
  CHECK_OK(world.Wait(0, both0));
  CHECK(world.Wait(0, only0).code == HVD_SHUT_DOWN);
  CHECK_EQUAL(out[0][999], 2.f);
}

TEST(engine_shutdown_gives_up_in_time_and_names_who_is_missing) {
  World world(3);
  RunRanks(2, [&](int rank) {
    const auto begin = Clock::now();
    const Status status = world[rank].Shutdown(0.3, false);
    CHECK(!status.ok());
    CHECK(Seconds(Clock::now() - begin).count() < 8);
    if (rank == 0) CHECK(status.ranks == std::vector<int32_t>({2}));
  });
}
