// Who shares memory, who lives, how ranks wake each other, and what happens when there is no memory.
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "check.h"
#include "shm_world.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

Members All(const ShmRank& me) {
  Members members;
  for (int32_t rank = 0; rank < me.size; ++rank) members.ranks.push_back(rank);
  members.position = me.rank;
  return members;
}

// Waits until the provider tells of a failure.
Status AwaitFailure(ShmRank& me, double seconds) {
  const TimePoint end = Clock::now() + ToDuration(seconds);
  while (Clock::now() < end) {
    Status status = me.provider->Check(Clock::now());
    if (!status.ok()) return status;
    usleep(2000);
  }
  return Status::Ok();
}

int64_t MappedSegments() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::set<std::string> inodes;
  while (std::getline(maps, line)) {
    if (line.find("memfd:spark_hvd") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, access, offset, device, inode;
    words >> range >> access >> offset >> device >> inode;
    inodes.insert(inode);
  }
  return static_cast<int64_t>(inodes.size());
}

int64_t OpenDescriptors() {
  int64_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Puts the calling rank's body into process and mount namespaces of its own, as a container does. False: not allowed.
bool RunIsolated(const std::function<void()>& body, std::string* failure) {
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return false;
  int result[2];
  CHECK_EQUAL(pipe(result), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      text = "mount failed";
    }
    try {
      if (text.empty()) body();
    } catch (const std::exception& e) {
      text = e.what();
    }
    if (write(result[1], text.data(), text.size()) < 0) _exit(1);
    _exit(0);
  }
  close(result[1]);
  char text[512];
  for (ssize_t n; (n = read(result[0], text, sizeof text)) > 0;) failure->append(text, static_cast<size_t>(n));
  close(result[0]);
  waitpid(child, nullptr, 0);
  return true;
}

// Kills needed now and in a soak test: KILLS=1000.
int Kills() {
  const char* asked = getenv("KILLS");
  return asked != nullptr ? atoi(asked) : 50;
}

}  // namespace

TEST(hosts_are_groups_that_all_reach_each_other) {
  const Hosts apart = GroupByReach({"100", "010", "001"});
  CHECK_EQUAL(apart.size(), 3u);
  const Hosts two = GroupByReach({"1010", "0101", "1010", "0101"});
  CHECK_EQUAL(two.size(), 2u);
  CHECK(two[0] == (std::vector<int32_t>{0, 2}) && two[1] == (std::vector<int32_t>{1, 3}));
  // One direction is not enough, nor is a common neighbour.
  CHECK_EQUAL(GroupByReach({"11", "01"}).size(), 2u);
  const Hosts chain = GroupByReach({"110", "111", "011"});
  CHECK(chain[0] == (std::vector<int32_t>{0, 1}) && chain[1] == (std::vector<int32_t>{2}));
}

TEST(host_places_of_ranks) {
  RunProcesses(3, [](ShmRank& me) {
    me.Open();
    CHECK_EQUAL(me.host->hosts().size(), 1u);
    CHECK_EQUAL(me.host->local_rank(), me.rank);
    CHECK_EQUAL(me.host->cross_rank(), 0);
    CHECK_EQUAL(me.host->cross_size(), 1);
    CHECK(me.host->is_homogeneous());
  });
}

TEST(host_probe_needs_the_very_memory) {
  SharedMemory memory, opened;
  CHECK_OK(SharedMemory::Create(10000, &memory));
  CHECK_EQUAL(memory.bytes(), WholePages(10000));
  CHECK_OK(SharedMemory::Open(memory.address(), &opened));
  memory.data()[9999] = 7;
  CHECK_EQUAL(int{opened.data()[9999]}, 7);
  MemoryAddress other = memory.address();
  other.inode += 1;
  CHECK(!SharedMemory::Open(other, &opened).ok());
  other = memory.address();
  other.descriptor = 0;  // whatever that is, it is not ours
  CHECK(!SharedMemory::Open(other, &opened).ok());
  other.pid = 1 << 29;
  CHECK(!SharedMemory::Open(other, &opened).ok());
}

// Beyond 2 MiB memory lies where large pages can be mapped; whether there are any is the system's to say.
TEST(large_memory_is_aligned_zero_and_shared_to_its_last_byte) {
  for (int64_t bytes : {(int64_t{2} << 20) - 4096, int64_t{2} << 20, (int64_t{5} << 20) + 1}) {
    SharedMemory memory, opened;
    CHECK_OK(SharedMemory::Create(bytes, &memory));
    CHECK_EQUAL(memory.bytes(), WholePages(bytes));
    CHECK_OK(SharedMemory::Open(memory.address(), &opened));
    for (const SharedMemory* one : {&memory, &opened}) {
      const auto place = reinterpret_cast<uintptr_t>(one->data());
      CHECK(bytes < (2 << 20) || place % (2 << 20) == 0);
    }
    for (int64_t at = 0; at < memory.bytes(); ++at) CHECK_EQUAL(int{opened.data()[at]}, 0);
    memory.data()[0] = 3;
    memory.data()[memory.bytes() - 1] = 4;
    CHECK_EQUAL(int{opened.data()[0]}, 3);
    CHECK_EQUAL(int{opened.data()[memory.bytes() - 1]}, 4);
  }
}

// Two containers: each rank is process 1 there, with the same descriptors.
TEST(isolated_ranks_are_not_on_one_host) {
  RunProcesses(2, [](ShmRank& me) {
    std::string failure;
    const bool allowed = RunIsolated(
        [&] {
          ShmProvider provider(std::make_shared<Segments>(), 60, [&](const std::string& text) { me.note = text; });
          CHECK_EQUAL(getpid(), 1);
          CHECK_OK(provider.Open(All(me), me.exchange, &me.transport));
          CHECK(!me.transport);
          CHECK_EQUAL(provider.host()->hosts().size(), 2u);
          CHECK_EQUAL(provider.host()->cross_rank(), me.rank);
          CHECK_EQUAL(provider.host()->cross_size(), 2);
          CHECK_OK(provider.Check(Clock::now()));
          // Nobody ends while the other may still look.
          std::vector<std::string> all;
          CHECK_OK(me.exchange("", &all));
        },
        &failure);
    if (!allowed) std::fprintf(stderr, "  (not root: ranks were not isolated)\n");
    if (!failure.empty()) throw std::runtime_error(failure);
  });
}

TEST(host_without_memory_is_alone_and_says_why) {
  RunProcesses(2, [](ShmRank& me) {
    if (me.rank == 1) {
      const rlimit none{1024, 1024};
      setrlimit(RLIMIT_FSIZE, &none);
    }
    ShmProvider provider(std::make_shared<Segments>(), 60, [&](const std::string& text) { me.note = text; });
    CHECK_OK(provider.Open(All(me), me.exchange, &me.transport));
    CHECK(!me.transport);
    CHECK_EQUAL(provider.host()->hosts().size(), 2u);
    CHECK(provider.bell() != nullptr && !provider.bell()->reaches_all());
    if (me.rank == 1) {
      CHECK_CONTAINS(me.note, "needed");
      CHECK_CONTAINS(me.note, "available");
    }
  });
}

// The page fits, the arena does not: all ranks learn it, and why.
TEST(arena_without_memory_is_given_up_by_all) {
  RunProcesses(2, [](ShmRank& me) {
    if (me.rank == 0) {
      const rlimit little{64 << 10, 64 << 10};
      setrlimit(RLIMIT_FSIZE, &little);
    }
    ShmProvider provider(std::make_shared<Segments>(), 60, [&](const std::string& text) { me.note = text; });
    CHECK_OK(provider.Open(All(me), me.exchange, &me.transport));
    CHECK(!me.transport);
    CHECK_EQUAL(provider.host()->hosts().size(), 1u);
    CHECK_CONTAINS(me.note, "rank 0: shared memory: ");
    CHECK_CONTAINS(me.note, "ulimit -f");
  });
}

TEST(consent_of_ranks) {
  RunProcesses(3, [](ShmRank& me) {
    me.Open();
    Consent& consent = *me.consent;
    const auto await = [&](int64_t sequence) {
      Answer answer = Answer::kOpen;
      for (int i = 0; answer == Answer::kOpen; ++i) {
        CHECK(i < 20000);
        CHECK_OK(consent.Ask(sequence, &answer));
        usleep(100);
      }
      return answer;
    };
    // Numbers are left out; of three votes one may be against, and then all hear so.
    for (int64_t sequence = 1; sequence < 600; sequence += 2) {
      const int against = static_cast<int>(sequence / 2 % 4);
      CHECK_OK(consent.Vote(sequence, against != me.rank));
      CHECK(await(sequence) == (against < 3 ? Answer::kRefused : Answer::kAllReady));
      CHECK(consent.Missing().empty());
    }
    // Who has not voted hears of a refusal.
    if (me.rank > 0) CHECK_OK(consent.Vote(1000, false));
    CHECK(await(1000) == Answer::kRefused || me.rank > 0);
    if (me.rank == 0) CHECK_OK(consent.Vote(1000, false));
    CHECK(await(1000) == Answer::kRefused);
  });
}

TEST(killed_rank_is_noticed_and_named) {
  RunProcesses(
      3,
      [](ShmRank& me) {
        me.Open();
        if (me.rank == 1) raise(SIGKILL);
        const Status status = AwaitFailure(me, 5);
        CHECK_EQUAL(status.code, HVD_PEER_FAILED);
        CHECK(status.ranks == std::vector<int32_t>{1});
        CHECK_CONTAINS(status.message, "rank 1 has ended");
        me.provider->Farewell(Status::Ok());
      },
      1);
}

// Whatever collective a rank is in when it dies, the others end with its name, and soon.
TEST(ranks_killed_at_random_moments) {
  for (int number = 0; number < Kills(); ++number) {
    const int victim = number % 3;
    RunProcesses(
        3,
        [&](ShmRank& me) {
          std::mt19937 random(static_cast<unsigned>(number));
          const auto delay = static_cast<useconds_t>(random() % 8000);
          me.Open();
          if (me.rank == victim) {
            std::thread([delay] {
              usleep(delay);
              kill(getpid(), SIGKILL);
            }).detach();
          }
          std::vector<float> ordinary(70000);
          void* own = nullptr;
          CHECK_OK(me.segments->Allocate(70000 * 4, &own));
          std::string cause;
          TimePoint began;
          while (cause.empty()) {
            began = Clock::now();
            Collective c;
            c.kind = Kind::kAllreduce;
            void* data = random() % 2 ? own : ordinary.data();
            c.spans = {{data, data, static_cast<int64_t>(random() % 70000)}};
            try {
              me.Run(c);
            } catch (const std::exception& e) {
              cause = e.what();
            }
          }
          CHECK_CONTAINS(cause, "rank " + std::to_string(victim) + " has ended");
          CHECK(Clock::now() - began < std::chrono::seconds(5));
          me.provider->Farewell(Status::Ok());
        },
        victim);
  }
}

// A child that a rank forked lives on and holds all that a fork inherits; the rank is dead all the same.
TEST(killed_rank_is_noticed_though_its_child_lives) {
  RunProcesses(
      2,
      [](ShmRank& me) {
        me.Open();
        if (me.rank == 1) {
          if (fork() == 0) {
            sleep(3);
            _exit(0);
          }
          raise(SIGKILL);
        }
        const Status status = AwaitFailure(me, 2);
        CHECK_EQUAL(status.code, HVD_PEER_FAILED);
        CHECK(status.ranks == std::vector<int32_t>{1});
      },
      1);
}

TEST(forked_child_has_no_engine_memory) {
  RunProcesses(1, [](ShmRank& me) {
    me.Open();
    void* tensor = nullptr;
    CHECK_OK(me.segments->Allocate(1000, &tensor));
    const int64_t mine = MappedSegments();
    const pid_t child = fork();
    if (child == 0) _exit(static_cast<int>(MappedSegments()));
    int state = 0;
    waitpid(child, &state, 0);
    CHECK(mine > 1);
    // Tensors stay readable in a child; flags and slots are not there.
    CHECK_EQUAL(WEXITSTATUS(state), 1);
  });
}

TEST(failed_rank_tells_its_cause_and_left_rank_is_no_failure) {
  RunProcesses(3, [](ShmRank& me) {
    me.Open();
    me.Run(Collective{});
    if (me.rank == 1) {
      me.provider->Farewell(Status::Error(HVD_INTERNAL, "ValueError: no such column"));
      me.provider->Farewell(Status::Error(HVD_INTERNAL, "a later cause"));
      return;
    }
    if (me.rank == 2) return me.provider->Farewell(Status::Ok());
    const Status status = AwaitFailure(me, 5);
    CHECK(status.ranks == std::vector<int32_t>{1});
    CHECK_CONTAINS(status.message, "ValueError: no such column");
  });
}

TEST(frozen_rank_is_noticed_after_the_heartbeat_timeout) {
  RunProcesses(2, [](ShmRank& me) {
    me.heartbeat_timeout = 0.5;
    me.Open();
    CHECK_OK(me.provider->Check(Clock::now()));
    if (me.rank == 1) {
      CHECK_OK(AwaitFailure(me, 0.3));
      sleep(2);
      return;
    }
    const TimePoint begin = Clock::now();
    const Status status = AwaitFailure(me, 5);
    CHECK(status.ranks == std::vector<int32_t>{1});
    CHECK_CONTAINS(status.message, "shows no life");
    CHECK(Clock::now() - begin > std::chrono::milliseconds(450));
  });
}

TEST(bell_wakes_a_sleeper_and_misses_no_ring) {
  RunProcesses(2, [](ShmRank& me) {
    me.Open();
    Bell* bell = me.host->bell();
    uint32_t seen = bell->Look();
    std::vector<std::string> all;
    CHECK_OK(me.exchange("has looked", &all));
    for (int i = 0; i < 2000; ++i) {
      // In turns: a missed ring would cost a whole sleep.
      if (i % 2 == me.rank) {
        bell->RingPeer(1 - me.rank);
      } else {
        const TimePoint begin = Clock::now();
        while (bell->Look() == seen) {
          bell->Sleep(seen, std::chrono::seconds(5));
          CHECK(Clock::now() - begin < std::chrono::seconds(5));
        }
        ++seen;
      }
    }
  });
}

TEST(freed_segments_are_unmapped_by_peers) {
  RunProcesses(2, [](ShmRank& me) {
    me.Open();
    const int64_t mapped = MappedSegments(), opened = OpenDescriptors();
    for (int i = 0; i < 5; ++i) {
      void* tensor = nullptr;
      CHECK_OK(me.segments->Allocate(2 << 20, &tensor));
      Collective c;
      c.kind = Kind::kAllreduce;
      c.spans = {{tensor, tensor, (2 << 20) / 4}};
      me.Run(c);
      CHECK_EQUAL(MappedSegments(), mapped + 2);
      CHECK(me.segments->Free(tensor));
      me.Run(Collective{});
      me.host->Beat();
      CHECK_EQUAL(MappedSegments(), mapped);
      me.Run(Collective{});
    }
    CHECK_EQUAL(OpenDescriptors(), opened);
  });
}

TEST(segments_share_and_reuse_memory) {
  Segments segments;
  std::vector<void*> small(100);
  for (void*& data : small) CHECK_OK(segments.Allocate(10000, &data));
  CHECK_EQUAL(segments.allocations(), 100);
  TensorAddress first, last;
  CHECK(segments.Find(small.front(), 10000, &first) && segments.Find(small.back(), 10000, &last));
  CHECK_EQUAL(first.segment.inode, last.segment.inode);
  // Gaps are used again, and come zeroed.
  std::memset(small[50], 1, 10000);
  CHECK(segments.Free(small[50]));
  void* again = nullptr;
  CHECK_OK(segments.Allocate(9000, &again));
  CHECK(again == small[50]);
  CHECK_EQUAL(int{static_cast<char*>(again)[5000]}, 0);
  CHECK(!segments.Free(static_cast<char*>(again) + 1));
  int local = 0;
  CHECK(!segments.Find(&local, 4, &first));
  CHECK(!segments.Free(&local));
  for (void* data : small) CHECK(segments.Free(data));
  CHECK_EQUAL(segments.allocations(), 0);
  CHECK_EQUAL(MappedSegments(), 0);
}
