#include "transport/shm/host.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace spark_hvd {
namespace {

// What a rank says of its page in the first round.
struct Introduction {
  MemoryAddress page;
  uint64_t token[2] = {0, 0};
};

std::string Pack(const Introduction& introduction) {
  return std::string(reinterpret_cast<const char*>(&introduction), sizeof introduction);
}

bool Unpack(const std::string& text, Introduction* out) {
  if (text.size() != sizeof *out) return false;
  memcpy(out, text.data(), sizeof *out);
  return true;
}

HostPage* PageOf(const SharedMemory& memory) { return reinterpret_cast<HostPage*>(memory.data()); }

int Processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

void RingWord(BellWord* word) {
  word->rings.fetch_add(1, std::memory_order_seq_cst);
  if (word->sleepers.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &word->rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Hosts GroupByReach(const std::vector<std::string>& reaches) {
  const size_t size = reaches.size();
  const auto reach = [&](size_t i, size_t j) {
    return i == j || (j < reaches[i].size() && i < reaches[j].size() && reaches[i][j] == '1' && reaches[j][i] == '1');
  };
  Hosts hosts;
  std::vector<char> placed(size, 0);
  for (size_t first = 0; first < size; ++first) {
    if (placed[first]) continue;
    std::vector<int32_t> host;
    for (size_t rank = first; rank < size; ++rank) {
      const bool fits =
          !placed[rank] && std::all_of(host.begin(), host.end(), [&](int32_t other) { return reach(other, rank); });
      if (!fits) continue;
      placed[rank] = 1;
      host.push_back(static_cast<int32_t>(rank));
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

struct ShmHost::Peer {
  ~Peer() {
    if (life >= 0) close(life);
  }
  SharedMemory memory;  // of the others; this rank's own is ShmHost::own_
  HostPage* page = nullptr;
  int64_t pid = 0;
  int life = -1;  // pidfd; readable once the process has ended
  uint64_t beats = 0;
  TimePoint beaten{};  // when `beats` was seen to change
};

// Rings are counted in each rank's page, so peers and threads of this process ring alike.
//
// Schedulers like to put who wakes and who is woken on one processor, where they can only take turns: looking again and
// again there keeps the awaited rank from running. So each rank shows on which processor it drives; who waits on the
// same one as a peer does not look twice, and moves over if there are processors enough.
class ShmHost::HostBell : public Bell {
 public:
  explicit HostBell(ShmHost* host) : host_(host), own_(&alone_) {
    if (!host->peers_[host->rank_]) return;
    page_ = host->peers_[host->rank_]->page;
    own_ = &page_->bell;
    for (int32_t rank : host->local()) {
      if (rank != host->rank_) neighbours_.push_back(host->peers_[static_cast<size_t>(rank)]->page);
    }
  }

  uint32_t Look() const override {
    if (page_ != nullptr) {
      const int32_t here = sched_getcpu() + 1;
      if (page_->processor.load(std::memory_order_relaxed) != here) {
        page_->processor.store(here, std::memory_order_relaxed);
      }
    }
    return own_->rings.load(std::memory_order_seq_cst);
  }

  void Sleep(uint32_t seen, Clock::duration longest) override {
    if (!host_->crowded_ && Together() && MoveOver()) return;
    const auto ns = std::max<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count(), 1);
    const timespec timeout{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
    own_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &own_->rings, FUTEX_WAIT, seen, &timeout, nullptr, 0);
    own_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

  void Ring() override { RingWord(own_); }

  void RingPeer(int32_t rank) override {
    const auto& peer = host_->peers_[static_cast<size_t>(rank)];
    if (peer) RingWord(&peer->page->bell);
  }

  bool reaches_all() const override { return host_->hosts_.size() == 1; }

  Clock::duration spin() const override {
    if (host_->crowded_) return std::chrono::microseconds(1000);
    return Together() ? Clock::duration::zero() : std::chrono::microseconds(50);
  }

  void Linger(Clock::duration waited) override {
    // Plain looks at first, unless somebody else needs the processor. No pause instruction: a hypervisor takes the
    // processor away for it, at a hundred times the cost.
    if (!host_->crowded_ && waited < std::chrono::microseconds(2)) return;
    if (host_->crowded_ || !Together() || !MoveOver()) sched_yield();
  }

 private:
  bool Together() const {
    const int32_t here = page_ == nullptr ? 0 : page_->processor.load(std::memory_order_relaxed);
    return std::any_of(neighbours_.begin(), neighbours_.end(), [here](const HostPage* page) {
      return page->processor.load(std::memory_order_relaxed) == here;
    });
  }

  // Leaves this processor for any other that this thread may use; what it may use stays as it was.
  bool MoveOver() {
    constexpr int64_t kSeldom = std::chrono::duration_cast<Clock::duration>(std::chrono::milliseconds(5)).count();
    const int64_t now = Clock::now().time_since_epoch().count();
    if (now - moved_at_.load(std::memory_order_relaxed) < kSeldom) return false;
    moved_at_.store(now, std::memory_order_relaxed);
    cpu_set_t may, others;
    if (sched_getaffinity(0, sizeof may, &may) != 0) return false;
    others = may;
    CPU_CLR(sched_getcpu(), &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return false;
    sched_setaffinity(0, sizeof may, &may);
    return true;
  }

  ShmHost* host_;
  BellWord alone_{};
  BellWord* own_;
  HostPage* page_ = nullptr;  // null: this rank shares nothing
  std::vector<const HostPage*> neighbours_;
  std::atomic<int64_t> moved_at_{0};  // ticks of the clock
};

ShmHost::ShmHost(int rank, int size) : rank_(rank), size_(size), peers_(static_cast<size_t>(size)) {}

ShmHost::~ShmHost() = default;

Status ShmHost::Open(int rank, int size, const Exchange& exchange, std::shared_ptr<ShmHost>* out) {
  std::shared_ptr<ShmHost> host(new ShmHost(rank, size));
  Status status = host->Probe(exchange);
  if (status.ok()) *out = std::move(host);
  return status;
}

Status ShmHost::Probe(const Exchange& exchange) {
  Introduction mine;
  Status status = SharedMemory::Create(sizeof(HostPage), &own_);
  if (status.ok()) {
    own_.HideFromChildren();
    if (getrandom(mine.token, sizeof mine.token, 0) != static_cast<ssize_t>(sizeof mine.token)) {
      return Status::Error(HVD_INTERNAL, std::string("getrandom: ") + strerror(errno));
    }
    mine.page = own_.address();
    memcpy(PageOf(own_)->token, mine.token, sizeof mine.token);
  } else {
    trouble_ = status.message;
  }
  std::vector<std::string> all;
  status = exchange(trouble_.empty() ? Pack(mine) : std::string(), &all);
  if (!status.ok()) return status;
  const std::string reach = Reach(all);
  std::vector<std::string> reaches;
  status = exchange(reach, &reaches);
  if (!status.ok()) return status;
  // All have mapped what they can.
  own_.CloseDescriptor();
  hosts_ = GroupByReach(reaches);
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (std::count(hosts_[host].begin(), hosts_[host].end(), rank_) > 0) host_ = static_cast<int>(host);
  }
  for (int32_t rank = 0; rank < size_; ++rank) {
    if (LocalRank(rank) < 0) peers_[static_cast<size_t>(rank)].reset();
  }
  crowded_ = static_cast<int>(local().size()) > Processors();
  bell_ = std::make_unique<HostBell>(this);
  return status;
}

std::string ShmHost::Reach(const std::vector<std::string>& all) {
  std::string reach(static_cast<size_t>(size_), '0');
  for (size_t rank = 0; rank < all.size() && trouble_.empty(); ++rank) {
    Introduction theirs;
    if (!Unpack(all[rank], &theirs)) continue;
    auto peer = std::make_unique<Peer>();
    peer->pid = theirs.page.pid;
    if (static_cast<int>(rank) == rank_) {
      peer->page = PageOf(own_);
    } else {
      peer->life = static_cast<int>(syscall(SYS_pidfd_open, theirs.page.pid, 0));
      if (!SharedMemory::Open(theirs.page, &peer->memory).ok()) continue;
      peer->memory.HideFromChildren();
      peer->page = PageOf(peer->memory);
    }
    if (memcmp(peer->page->token, theirs.token, sizeof theirs.token) != 0) continue;
    peer->beaten = Clock::now();
    reach[rank] = '1';
    peers_[rank] = std::move(peer);
  }
  return reach;
}

Bell* ShmHost::bell() { return bell_.get(); }

int ShmHost::LocalRank(int32_t rank) const {
  const auto found = std::find(local().begin(), local().end(), rank);
  return found == local().end() ? -1 : static_cast<int>(found - local().begin());
}

int ShmHost::cross_rank() const {
  int before = 0;
  for (int host = 0; host < host_; ++host) before += static_cast<int>(hosts_[host].size()) > local_rank() ? 1 : 0;
  return before;
}

int ShmHost::cross_size() const {
  return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(), [this](const std::vector<int32_t>& host) {
    return static_cast<int>(host.size()) > local_rank();
  }));
}

bool ShmHost::is_homogeneous() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [this](const std::vector<int32_t>& host) { return host.size() == hosts_.front().size(); });
}

void ShmHost::Beat() {
  peer_memory_.Sweep();
  if (peers_[rank_]) peers_[rank_]->page->beats.fetch_add(1, std::memory_order_relaxed);
}

void ShmHost::SayFarewell(Farewell farewell, const std::string& cause) {
  if (!peers_[rank_]) return;
  HostPage* page = peers_[rank_]->page;
  uint32_t none = 0;
  if (page->farewell.load(std::memory_order_relaxed) != none) return;  // the first cause is kept
  strncpy(page->cause, cause.c_str(), sizeof page->cause - 1);
  page->farewell.store(static_cast<uint32_t>(farewell), std::memory_order_release);
  for (int32_t rank : local()) bell_->RingPeer(rank);
}

bool ShmHost::HasEnded(const Peer& peer) const {
  if (peer.life < 0) return kill(static_cast<pid_t>(peer.pid), 0) != 0 && errno == ESRCH;
  pollfd wait{peer.life, POLLIN, 0};
  return poll(&wait, 1, 0) > 0;
}

Status ShmHost::CheckPeers(TimePoint now, double heartbeat_timeout) {
  std::vector<int32_t> failed;
  std::string causes;
  // A rank that was stopped itself cannot know who was not.
  const bool was_away = now - checked_ > std::chrono::seconds(2);
  checked_ = now;
  for (int32_t rank : local()) {
    Peer& peer = *peers_[static_cast<size_t>(rank)];
    if (rank == rank_) continue;
    const auto farewell = static_cast<Farewell>(peer.page->farewell.load(std::memory_order_acquire));
    if (farewell == Farewell::kLeft) continue;
    const uint64_t beats = peer.page->beats.load(std::memory_order_relaxed);
    if (beats != peer.beats || was_away) {
      peer.beats = beats;
      peer.beaten = now;
    }
    std::string cause;
    if (farewell == Farewell::kFailed) {
      cause = "stopped: " + std::string(peer.page->cause, strnlen(peer.page->cause, sizeof peer.page->cause));
    } else if (HasEnded(peer)) {
      cause = "has ended without a word (killed, crashed or exited; process " + std::to_string(peer.pid) + ")";
    } else if (now - peer.beaten > ToDuration(heartbeat_timeout)) {
      cause = "shows no life for " + std::to_string(static_cast<int64_t>(heartbeat_timeout)) +
              " s (stopped or frozen; process " + std::to_string(peer.pid) + ")";
    } else {
      continue;
    }
    failed.push_back(rank);
    causes += (causes.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " + cause;
  }
  if (failed.empty()) return Status::Ok();
  return Status::Error(HVD_PEER_FAILED, causes, failed);
}

}  // namespace spark_hvd
