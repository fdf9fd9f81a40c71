// What engines agree on beyond one collective: steps that repeat, groups, process sets, join, sizes that differ.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "check.h"
#include "engine.h"
#include "thread_link.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

std::vector<float> Row(int64_t count, float value) { return std::vector<float>(static_cast<size_t>(count), value); }

// One step: tensors "t0", "t1", ... of `count` floats, all submitted, then all waited for.
void Step(World* world, int rank, int tensors, int64_t count, const std::string& prefix = "t") {
  std::vector<std::vector<float>> in(static_cast<size_t>(tensors)), out(static_cast<size_t>(tensors));
  std::vector<int64_t> handles;
  for (int i = 0; i < tensors; ++i) {
    in[i] = Row(count, static_cast<float>(rank + i));
    handles.push_back(world->Allreduce(rank, prefix + std::to_string(i), in[i], &out[i]));
  }
  const float ranks = static_cast<float>(world->size());
  for (int i = 0; i < tensors; ++i) {
    CHECK_OK(world->Wait(rank, handles[i]));
    CHECK_EQUAL(out[i].back(), ranks * (ranks - 1) / 2 + ranks * static_cast<float>(i));
  }
}

EngineConfig Small(int64_t fusion_threshold) {
  EngineConfig config = World::QuietConfig();
  config.set.coordinator.fusion_threshold = fusion_threshold;
  return config;
}

Entry Adasum(const std::string& name, const std::vector<float>& in, std::vector<float>* out) {
  Entry entry = World::Floats(Kind::kAllreduce, name, in, out);
  entry.request.op = HVD_ADASUM;
  return entry;
}

}  // namespace

TEST(agreement_needs_no_message_once_a_step_repeats) {
  for (int size : {1, 2, 3}) {
    World world(size, Small(1000));
    const auto steps = [&](int count) {
      RunRanks(size, [&](int rank) {
        for (int step = 0; step < count; ++step) {
          Step(&world, rank, 12, 100);
          CHECK_OK(world.Run(rank, World::Named(Kind::kBarrier, "end of step")));
        }
      });
    };
    steps(8);
    const Counters& counters = world[0].counters();
    const int64_t messages = counters.messages, negotiated = counters.negotiated, predicted = counters.predicted;
    const int64_t refused = counters.refused;
    steps(50);
    CHECK_EQUAL(counters.messages - messages, 0);
    CHECK_EQUAL(counters.negotiated - negotiated, 0);
    CHECK_EQUAL(counters.refused - refused, 0);
    // Two tensors of 400 bytes share a group of 1,000 at most.
    CHECK(counters.predicted - predicted >= 50 * 7);
  }
}

TEST(agreement_starts_before_the_last_tensor_exists) {
  World world(2, Small(1000));
  RunRanks(2, [&](int rank) {
    for (int step = 0; step < 6; ++step) Step(&world, rank, 6, 100);
  });
  // The same step, but the last tensors come only when the first group has been reduced on all ranks.
  const int64_t predicted = world[0].counters().predicted;
  RunRanks(2, [&](int rank) {
    std::vector<float> in = Row(100, 1.f), out[6];
    std::vector<int64_t> handles;
    for (int i = 0; i < 4; ++i) handles.push_back(world.Allreduce(rank, "t" + std::to_string(i), in, &out[i]));
    const TimePoint end = Clock::now() + std::chrono::seconds(10);
    bool done = false;
    while (!done && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK(world[rank].Poll(handles[0], &done));
    }
    CHECK(done);
    CHECK_EQUAL(out[0][99], 2.f);
    for (int i = 4; i < 6; ++i) handles.push_back(world.Allreduce(rank, "t" + std::to_string(i), in, &out[i]));
    for (int64_t handle : handles) CHECK_OK(world.Wait(rank, handle));
  });
  CHECK(world[0].counters().predicted > predicted);
}

TEST(agreement_copes_with_steps_that_change) {
  World world(3, Small(1 << 20));
  RunRanks(3, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      for (int step = 0; step < 5; ++step) Step(&world, rank, 5, 64);
      Step(&world, rank, 3, 17, "validation");
      Step(&world, rank, 5, 64 + round);  // another shape under the same names
      std::vector<float> mine = Row(rank + round, static_cast<float>(rank));
      Outcome outcome;
      CHECK_OK(world.Run(rank, World::Floats(Kind::kAllgather, "rows", mine), &outcome));
      CHECK_EQUAL(outcome.outputs[0].rows, 3 * round + 3);
    }
  });
  CHECK(world[0].counters().predicted > 0);
}

TEST(agreement_learns_that_a_caller_waits_in_the_middle) {
  // Each tensor is waited for before the next one exists: a group of two could never be complete.
  World world(2);
  const auto step = [&](int rank) {
    for (const char* name : {"a", "b", "c"}) {
      std::vector<float> in = Row(10, 1.f), out;
      CHECK_OK(world.Wait(rank, world.Allreduce(rank, name, in, &out)));
      CHECK_EQUAL(out[9], 2.f);
    }
  };
  RunRanks(2, [&](int rank) {
    for (int i = 0; i < 10; ++i) step(rank);
  });
  const int64_t refused = world[0].counters().refused, messages = world[0].counters().messages;
  RunRanks(2, [&](int rank) {
    for (int i = 0; i < 50; ++i) step(rank);
  });
  CHECK_EQUAL(world[0].counters().refused, refused);
  CHECK_EQUAL(world[0].counters().messages, messages);
}

TEST(agreement_of_ranks_with_orders_of_their_own) {
  World world(3, Small(2000));
  RunRanks(3, [&](int rank) {
    for (int step = 0; step < 20; ++step) {
      std::vector<std::vector<float>> in(9), out(9);
      std::vector<int64_t> handles(9);
      for (int k = 0; k < 9; ++k) {
        const int i = rank == 0 ? k : rank == 1 ? 8 - k : (k * 4 + step) % 9;
        in[i] = Row(100, static_cast<float>(i));
        handles[i] = world.Allreduce(rank, "t" + std::to_string(i), in[i], &out[i]);
      }
      for (int i = 0; i < 9; ++i) {
        CHECK_OK(world.Wait(rank, handles[i]));
        CHECK_EQUAL(out[i][50], 3.f * static_cast<float>(i));
      }
    }
  });
}

TEST(agreement_tells_a_mismatch_in_a_step_that_was_learned) {
  World world(2);
  RunRanks(2, [&](int rank) {
    for (int step = 0; step < 5; ++step) Step(&world, rank, 3, 10);
    std::vector<float> in = Row(rank == 0 ? 10 : 11, 1.f), out;
    const Status status = world.Wait(rank, world.Allreduce(rank, "t0", in, &out));
    CHECK(status.code == HVD_MISMATCH);
    CHECK_CONTAINS(status.message, "allreduce 't0': ranks disagree on shape: (10,) on rank 0; (11,) on rank 1");
    for (int step = 0; step < 5; ++step) Step(&world, rank, 3, 10);
  });
}

TEST(agreement_names_who_is_late_in_a_step_that_was_learned) {
  EngineConfig config = World::QuietConfig();
  config.set.coordinator.comm_timeout = 1;
  World world(3, config);
  RunRanks(3, [&](int rank) {
    for (int step = 0; step < 5; ++step) Step(&world, rank, 3, 10);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    std::vector<float> in = Row(10, 1.f), out;
    const Status status = world.Wait(rank, world.Allreduce(rank, "t0", in, &out));
    CHECK(status.code == HVD_STALLED && status.ranks == std::vector<int32_t>({1}));
    CHECK_CONTAINS(status.message, "allreduce 't0'");
    Step(&world, rank, 3, 10);
  });
}

TEST(agreement_to_leave_after_steps_that_were_learned) {
  World world(3);
  RunRanks(3, [&](int rank) {
    for (int step = 0; step < 5; ++step) Step(&world, rank, 3, 10);
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK_OK(world[rank].Shutdown(10, false));
  });
}

TEST(agreement_on_sizes_that_differ_by_rank) {
  World world(3);
  RunRanks(3, [&](int rank) {
    for (int step = 0; step < 4; ++step) {
      // Allgather: rank r has r + step rows of 2.
      std::vector<float> mine = Row(2 * (rank + step), static_cast<float>(rank));
      Entry entry = World::Floats(Kind::kAllgather, "g", mine);
      entry.request.shape = {rank + step, 2};
      Outcome gathered;
      CHECK_OK(world.Run(rank, std::move(entry), &gathered));
      CHECK_EQUAL(gathered.outputs[0].rows, 3 + 3 * step);
      const float* values = reinterpret_cast<const float*>(gathered.outputs[0].memory.get());
      if (2 + step > 0) CHECK_EQUAL(values[2 * (3 + 3 * step) - 1], 2.f);

      // Alltoall: rank r gives rank i r + i rows.
      std::vector<float> rows = Row(3 * rank + 3, static_cast<float>(rank));
      Entry deal = World::Floats(Kind::kAlltoall, "a", rows);
      deal.request.splits = {rank, rank + 1, rank + 2};
      Outcome dealt;
      CHECK_OK(world.Run(rank, std::move(deal), &dealt));
      CHECK(dealt.outputs[0].splits == std::vector<int64_t>({rank, rank + 1, rank + 2}));
      CHECK_EQUAL(dealt.outputs[0].rows, 3 * rank + 3);

      // Reducescatter: 7 rows, so 3, 2 and 2.
      std::vector<float> whole(7);
      std::iota(whole.begin(), whole.end(), 0.f);
      Outcome share;
      CHECK_OK(world.Run(rank, World::Floats(Kind::kReducescatter, "s", whole), &share));
      CHECK_EQUAL(share.outputs[0].rows, rank == 0 ? 3 : 2);
      const float first[] = {0, 3, 5};
      CHECK_EQUAL(*reinterpret_cast<const float*>(share.outputs[0].memory.get()), 3 * first[rank]);
    }
  });
}

TEST(agreement_on_groups_ends_all_or_none) {
  World world(2, Small(16));
  const auto group = [&](int rank, std::vector<std::vector<float>>* in, std::vector<std::vector<float>>* out) {
    std::vector<Entry> entries;
    for (size_t i = 0; i < in->size(); ++i) {
      entries.push_back(World::Floats(Kind::kAllreduce, "g." + std::to_string(i), (*in)[i], &(*out)[i]));
      entries.back().request.group = "g";
      entries.back().request.group_size = static_cast<int32_t>(in->size());
    }
    return world.Submit(rank, std::move(entries));
  };
  RunRanks(2, [&](int rank) {
    std::vector<std::vector<float>> in = {Row(10, 1.f), Row(3, 2.f), Row(0, 0.f)}, out(3);
    for (int step = 0; step < 6; ++step) {
      CHECK_OK(world.Wait(rank, group(rank, &in, &out)));
      CHECK(out[0] == Row(10, 2.f) && out[1] == Row(3, 4.f));
    }
    std::vector<std::vector<float>> wrong = {Row(10, 1.f), Row(3 + rank, 2.f), Row(0, 0.f)};
    const Status status = world.Wait(rank, group(rank, &wrong, &out));
    CHECK(status.code == HVD_MISMATCH);
    CHECK_CONTAINS(status.message, "'g.1': ranks disagree on shape");
    CHECK_OK(world.Wait(rank, group(rank, &in, &out)));
  });
  CHECK(world[0].counters().predicted > 0);
}

TEST(agreement_in_process_sets_is_each_sets_own) {
  World world(4);
  RunRanks(4, [&](int rank) {
    int32_t even = -1, last = -1, both = -1;
    CHECK_OK(world[rank].AddSet({0, 2}, &even));
    CHECK_OK(world[rank].AddSet({3, 1}, &last));
    CHECK_OK(world[rank].AddSet({2}, &both));
    CHECK(even == 1 && last == 2 && both == 3);
    const int32_t mine = rank % 2 == 0 ? even : last;
    for (int step = 0; step < 20; ++step) {
      // In flight at once, in the world and in the set, under the same name.
      std::vector<float> in = Row(1000, static_cast<float>(rank)), of_set, of_world;
      Entry in_set = World::Floats(Kind::kAllreduce, "x", in, &of_set);
      Entry in_world = World::Floats(Kind::kAllreduce, "x", in, &of_world);
      int64_t first = 0, second = 0;
      if ((rank + step) % 3 == 0) {
        first = world.Submit(rank, std::move(in_set), mine);
        second = world.Submit(rank, std::move(in_world));
      } else {
        second = world.Submit(rank, std::move(in_world));
        first = world.Submit(rank, std::move(in_set), mine);
      }
      CHECK_OK(world.Wait(rank, first));
      CHECK_OK(world.Wait(rank, second));
      CHECK_EQUAL(of_set[999], rank % 2 == 0 ? 2.f : 4.f);
      CHECK_EQUAL(of_world[999], 6.f);
    }
    int64_t handle = 0;
    std::vector<Entry> entries;
    entries.push_back(World::Named(Kind::kBarrier, "b"));
    CHECK(world[rank].Submit(rank % 2 == 0 ? last : even, std::move(entries), &handle).code == HVD_INVALID_ARGUMENT);
    int32_t none = -1;
    const Status refused = world[rank].AddSet({0, 9}, &none);
    CHECK(refused.code == HVD_INVALID_ARGUMENT);
    const Status differs =
        world[rank].AddSet(rank == 3 ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{0, 2}, &none);
    CHECK(differs.code == HVD_MISMATCH);
    CHECK_OK(world[rank].RemoveSet(even));
    CHECK(world[rank].FindSet(even) == nullptr);
    CHECK_OK(world[rank].Shutdown(10, false));
  });
}

TEST(agreement_does_not_remove_a_set_in_use) {
  World world(2);
  RunRanks(2, [&](int rank) {
    int32_t set = -1;
    CHECK_OK(world[rank].AddSet({0, 1}, &set));
    int64_t handle = 0;
    if (rank == 1) handle = world.Submit(rank, World::Named(Kind::kBarrier, "b"), set);
    const Status status = world[rank].RemoveSet(set);
    CHECK(status.code == HVD_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message, "in flight on rank 1");
    if (rank == 0) handle = world.Submit(rank, World::Named(Kind::kBarrier, "b"), set);
    CHECK_OK(world.Wait(rank, handle));
    CHECK_OK(world[rank].RemoveSet(set));
  });
}

TEST(agreement_with_ranks_that_have_joined) {
  World world(3);
  for (int round = 0; round < 3; ++round) {
    RunRanks(3, [&](int rank) {
      // Rank r has r + 1 batches.
      for (int batch = 0; batch <= rank; ++batch) {
        std::vector<float> in = Row(50, 1.f), sum, low, data = Row(5, static_cast<float>(rank));
        CHECK_OK(world.Wait(rank, world.Allreduce(rank, "sum", in, &sum)));
        CHECK_EQUAL(sum[49], static_cast<float>(3 - batch));
        CHECK_OK(world.Wait(rank, world.Allreduce(rank, "min", in, &low, HVD_MIN)));
        CHECK_EQUAL(low[0], 1.f);
        Outcome rows;
        CHECK_OK(world.Run(rank, World::Floats(Kind::kAllgather, "rows", data), &rows));
        CHECK_EQUAL(rows.outputs[0].rows, 5 * (3 - batch));
        CHECK_OK(world.Run(rank, World::Named(Kind::kBarrier, "b")));
        CHECK_OK(world.Wait(rank, world.Broadcast(rank, "from the last", &data, 2)));
        CHECK_EQUAL(data[4], 2.f);
        const Status status = world.Wait(rank, world.Broadcast(rank, "from the first", &data, 0));
        CHECK(batch == 0 ? status.ok() : status.code == HVD_MISMATCH);
      }
      Outcome outcome;
      CHECK_OK(world.Run(rank, World::Named(Kind::kJoin, "join"), &outcome));
      CHECK_EQUAL(outcome.outputs[0].value, 2);
    });
  }
}

TEST(agreement_lets_many_threads_wait) {
  World world(2);
  RunRanks(2, [&](int rank) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int step = 0; step < 100; ++step) {
          std::vector<float> in = Row(100, 1.f), out;
          Entry entry = World::Floats(Kind::kAllreduce, "thread" + std::to_string(thread), in, &out);
          if (!world.Run(rank, std::move(entry)).ok() || out[99] != 2.f) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(wrong.load(), 0);
  });
}

TEST(adasum_adds_what_is_orthogonal_and_averages_what_is_alike) {
  for (int size = 1; size <= 5; ++size) {
    World world(size);
    RunRanks(size, [&](int rank) {
      // Two tensors in one group: one alike on all ranks, one orthogonal.
      std::vector<float> alike = {3.f, -1.f, 2.f}, apart = Row(7, 0.f), out[2];
      apart[static_cast<size_t>(rank)] = static_cast<float>(rank + 1);
      std::vector<Entry> entries;
      entries.push_back(Adasum("alike", alike, &out[0]));
      entries.push_back(Adasum("apart", apart, &out[1]));
      for (Entry& entry : entries) {
        entry.request.group = "g";
        entry.request.group_size = 2;
      }
      CHECK_OK(world.Wait(rank, world.Submit(rank, std::move(entries))));
      for (size_t i = 0; i < 3; ++i) CHECK(std::abs(out[0][i] - alike[i]) < 1e-5f);
      for (int r = 0; r < size; ++r) CHECK_EQUAL(out[1][static_cast<size_t>(r)], static_cast<float>(r + 1));
      // A tensor of zeros changes nothing, and gives no NaN.
      std::vector<float> zeros = Row(3, 0.f), from_zeros;
      CHECK_OK(world.Run(rank, Adasum("z", rank == 0 ? alike : zeros, &from_zeros)));
      CHECK(from_zeros == alike);
    });
  }
}

TEST(timeline_can_be_read_at_any_time) {
  World world(2);
  const std::string path = "/tmp/spark_hvd_timeline_" + std::to_string(getpid());
  CHECK_OK(world[0].timeline().Start(path));
  CHECK(!world[0].timeline().Start(path).ok());
  CHECK_CONTAINS(world[1].timeline().Start("/no/such/folder/x").message, "/no/such/folder/x");
  RunRanks(2, [&](int rank) { Step(&world, rank, 2, 10, "with \"quotes\""); });
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::remove(path.c_str());
  for (const char* part : {"[\n", "\"rank 0\"", "with \\\"quotes\\\"1", "\"agree\"", "\"allreduce\"", "\"ph\":\"X\""}) {
    CHECK_CONTAINS(text.str(), part);
  }
  CHECK_EQUAL(text.str().substr(text.str().size() - 2), ",\n");
  world[0].timeline().Stop();
}
