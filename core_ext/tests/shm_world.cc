#include "shm_world.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#include "check.h"

namespace spark_hvd::test {
namespace {

constexpr int kRanks = 16, kRounds = 64, kBytes = 512;

// Where ranks leave their words; made before they start.
struct Board {
  struct Word {
    std::atomic<int> written;
    int length;
    char text[kBytes];
  };
  Word words[kRounds][kRanks];
  char failures[kRanks][kBytes];
};

class SharedBoard {
 public:
  SharedBoard() {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    board_ = static_cast<Board*>(memory);
  }
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  Board* operator->() const { return board_; }
  Board* get() const { return board_; }

 private:
  Board* board_;
};

Exchange MakeExchange(Board* board, int rank, int size) {
  auto round = std::make_shared<int>(0);
  return [=](const std::string& mine, std::vector<std::string>* all) {
    Board::Word* words = board->words[(*round)++];
    if (mine.size() > kBytes) return Status::Error(HVD_INTERNAL, "the test's board is too small");
    memcpy(words[rank].text, mine.data(), mine.size());
    words[rank].length = static_cast<int>(mine.size());
    words[rank].written.store(1);
    all->assign(static_cast<size_t>(size), "");
    for (int peer = 0; peer < size; ++peer) {
      for (int i = 0; words[peer].written.load() == 0; ++i) {
        if (i > 20000) return Status::Error(HVD_STALLED, "rank " + std::to_string(peer) + " said nothing");
        usleep(500);
      }
      (*all)[static_cast<size_t>(peer)] = std::string(words[peer].text, static_cast<size_t>(words[peer].length));
    }
    return Status::Ok();
  };
}

ShmRank MakeRank(Board* board, int rank, int size) {
  ShmRank result;
  result.rank = rank;
  result.size = size;
  result.exchange = MakeExchange(board, rank, size);
  return result;
}

}  // namespace

void ShmRank::Open(ArenaOptions options) {
  segments = std::make_shared<Segments>();
  provider = std::make_unique<ShmProvider>(
      segments, heartbeat_timeout, [this](const std::string& text) { note = text; }, options);
  Members members;
  for (int32_t i = 0; i < size; ++i) members.ranks.push_back(i);
  members.position = rank;
  CHECK_OK(provider->Open(members, exchange, &transport));
  host = provider->host();
  if (!transport) throw std::runtime_error("no shared memory: " + note);
  consent = provider->OpenConsent(members);
}

void ShmRank::Run(Collective collective) {
  collective.sequence = ++sequence;
  CHECK(transport->Serves(collective));
  const auto operation = transport->Start(collective);
  Drive(operation.get());
}

void ShmRank::Drive(Operation* operation, double timeout) {
  Bell* bell = host->bell();
  const TimePoint begin = Clock::now();
  TimePoint moved_at = begin;
  for (;;) {
    if (disturb) disturb();
    const uint32_t seen = bell->Look();
    bool moved = false, done = false;
    CHECK_OK(operation->Advance(&moved, &done));
    if (done) return;
    const TimePoint now = Clock::now();
    if (moved) moved_at = now;
    if (now - moved_at < bell->spin()) {
      bell->Linger(now - moved_at);
      continue;
    }
    if (provider) CHECK_OK(provider->Check(now));
    if (now - begin > ToDuration(timeout)) throw std::runtime_error("stuck; missing " + RankList(operation->Missing()));
    bell->Sleep(seen, std::chrono::milliseconds(20));
  }
}

void RunThreads(int size, const RankBody& body) {
  SharedBoard board;
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ShmRank mine = MakeRank(board.get(), rank, size);
        body(mine);
      } catch (const std::exception& e) {
        std::lock_guard<std::mutex> lock(mutex);
        if (failure.empty()) failure = "rank " + std::to_string(rank) + ": " + e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
}

void RunProcesses(int size, const RankBody& body, int may_die) {
  SharedBoard board;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
      alarm(60);
      int code = 0;
      try {
        ShmRank mine = MakeRank(board.get(), rank, size);
        body(mine);
      } catch (const std::exception& e) {
        strncpy(board->failures[rank], e.what(), kBytes - 1);
        code = 1;
      }
      _exit(code);
    }
    children.push_back(child);
  }
  std::string failure;
  for (int rank = 0; rank < size; ++rank) {
    int state = 0;
    waitpid(children[static_cast<size_t>(rank)], &state, 0);
    if (WIFSIGNALED(state) && rank != may_die && failure.empty()) {
      failure = "rank " + std::to_string(rank) + " ended by signal " + std::to_string(WTERMSIG(state));
    }
    if (board->failures[rank][0] != '\0' && failure.empty()) {
      failure = "rank " + std::to_string(rank) + ": " + board->failures[rank];
    }
  }
  if (!failure.empty()) throw std::runtime_error(failure);
}

}  // namespace spark_hvd::test
