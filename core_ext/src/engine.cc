#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace spark_hvd {
namespace {

// Until a waiter has been away for this long the engine's thread leaves the driving to waiters: a program that calls
// one collective after the other would only be disturbed by it.
constexpr Clock::duration kLull = std::chrono::milliseconds(1);
// A caller that waits has nothing better to do than to look again: two ranks that both slept would wake each other for
// every step of theirs, at many times its cost. Between hosts a look goes to the network, which needs the processor
// itself when much is under way.
Clock::duration CallersSpin(const Bell& bell) {
  return bell.reaches_all() ? std::chrono::microseconds(500) : std::chrono::microseconds(200);
}

// An engine thread takes no signals: they belong to the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    // But a fault of the thread itself must reach the handlers that report it.
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// After a failure the network may still read from and write to the memory that it was given: it lives as long as the
// process.
void KeepForGood(std::shared_ptr<Engine> engine) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Engine>>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(engine));
}

Outcome Failed(Status status) { return {std::move(status), {}}; }

}  // namespace

Status Engine::Start(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
                     std::vector<std::unique_ptr<Provider>> providers, std::shared_ptr<Engine>* out) {
  std::shared_ptr<Engine> engine(new Engine(config, std::move(control), std::move(providers)));
  Members all;
  all.position = engine->rank_;
  for (int rank = 0; rank < engine->size_; ++rank) all.ranks.push_back(rank);
  const std::shared_ptr<ProcessSet> world = engine->MakeSet(std::move(all));
  {
    SignalsBlocked blocked;
    // The thread holds the engine: should it ever be stuck, what it uses stays alive.
    engine->thread_ = std::thread([engine] { engine->Background(); });
  }
  Status status = engine->Equip(world.get());
  if (!status.ok()) {
    engine->Shutdown(0, true);
    return status;
  }
  for (const auto& provider : engine->providers_) {
    Bell* bell = provider->bell();
    if (bell == nullptr) continue;
    engine->bell_ = bell;
    engine->local_bell_.Ring();
    break;
  }
  *out = std::move(engine);
  return Status::Ok();
}

Engine::Engine(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
               std::vector<std::unique_ptr<Provider>> providers)
    : config_(config),
      control_(std::move(control)),
      providers_(std::move(providers)),
      rank_(control_->rank()),
      size_(control_->size()),
      log_(rank_, config.log_level),
      timeline_(rank_),
      local_bell_(size_ == 1),
      bell_(&local_bell_),
      liveness_(rank_, size_, config.heartbeat_timeout, Clock::now()) {}

Engine::~Engine() = default;

Status Engine::Submit(int32_t set, std::vector<Entry> entries, int64_t* handle) {
  const std::shared_ptr<ProcessSet> target = FindSet(set);
  if (!target) {
    return Status::Error(HVD_INVALID_ARGUMENT,
                         "process set " + std::to_string(set) + " does not exist, or this rank is not in it");
  }
  const int64_t created = handles_.Create(static_cast<int32_t>(entries.size()));
  const TimePoint now = Clock::now();
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].handle = created;
    entries[i].part = static_cast<int32_t>(i);
    entries[i].submitted = now;
  }
  Status status = target->queue().Add(std::move(entries));
  if (!status.ok()) {
    handles_.Forget(created);
    return status;
  }
  *handle = created;
  // A waiter that drives has looked, or will; others are woken.
  bell().Ring();
  return status;
}

Outcome Engine::Wait(int64_t handle, double timeout) {
  Outcome outcome;
  if (handles_.Take(handle, &outcome)) return outcome;
  handles_.MarkWaited(handle);
  const TimePoint end = Clock::now() + ToDuration(timeout < 0 ? 1e9 : timeout);
  ++waiters_;
  outcome = DriveUntilDone(handle, end);
  LeaveAsWaiter();
  return outcome;
}

Outcome Engine::Run(int32_t set, std::vector<Entry> entries, double timeout, int64_t* handle) {
  ++waiters_;
  Status status = Submit(set, std::move(entries), handle);
  Outcome outcome;
  if (status.ok()) {
    handles_.MarkWaited(*handle);
    outcome = DriveUntilDone(*handle, Clock::now() + ToDuration(timeout < 0 ? 1e9 : timeout));
  } else {
    outcome = Failed(std::move(status));
  }
  LeaveAsWaiter();
  return outcome;
}

void Engine::LeaveAsWaiter() {
  waited_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  --waiters_;
}

Outcome Engine::DriveUntilDone(int64_t handle, TimePoint end) {
  Outcome outcome;
  const TimePoint began = Clock::now();
  while (!handles_.Take(handle, &outcome)) {
    TimePoint now = Clock::now();
    if (now >= end) return Failed(Status::Error(HVD_TIMEOUT, ""));
    std::unique_lock<std::mutex> lock(progress_, std::try_to_lock);
    if (!lock.owns_lock()) {
      // Somebody else drives: the engine's thread, who leaves at once, or another waiter.
      constexpr Clock::duration kShort = std::chrono::microseconds(20);
      if (now - began > kShort) handles_.Sleep(handle, std::min(end, now + std::chrono::milliseconds(1)));
      continue;
    }
    TimePoint moved_at = now;
    while (wanted_.load(std::memory_order_relaxed) == 0) {
      const uint32_t seen = bell().Look();
      bool moved = false;
      const bool alive = DriveOnce(now, &moved);
      if (handles_.Take(handle, &outcome)) {
        lock.unlock();
        if (waiters_.load(std::memory_order_relaxed) > 1) handles_.Nudge();
        return outcome;
      }
      if (!alive) break;
      now = Clock::now();
      if (now >= end) break;
      if (moved) {
        moved_at = now;
      } else {
        Rest(seen, std::max(bell().spin(), CallersSpin(bell())), end, &now, &moved_at);
      }
    }
    lock.unlock();
    if (waiters_.load(std::memory_order_relaxed) > 1) handles_.Nudge();
    if (wanted_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
  }
  return outcome;
}

void Engine::Background() {
  pthread_setname_np(pthread_self(), "hvd-engine");
  // Short sleeps are asked for in microseconds; the usual slack of 50 would double them.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  log_(LogLevel::kInfo, "engine started, size " + std::to_string(size_));
  TimePoint now = Clock::now(), moved_at = now;
  for (;;) {
    const Clock::duration since_wait = now.time_since_epoch() - Clock::duration(waited_at_.load());
    if (waiters_.load() > 0 || (since_wait < kLull && !leave_)) {
      Park();
      now = Clock::now();
      continue;
    }
    bool moved = false, idle = false;
    uint32_t seen = 0;
    {
      std::unique_lock<std::mutex> lock(progress_, std::try_to_lock);
      if (!lock.owns_lock()) {
        Park();
        now = Clock::now();
        continue;
      }
      seen = bell().Look();
      if (!DriveOnce(now, &moved)) return;
      idle = idle_;
    }
    now = Clock::now();
    if (moved) {
      moved_at = now;
    } else {
      Rest(seen, idle ? Clock::duration::zero() : bell().spin(), TimePoint::max(), &now, &moved_at);
    }
  }
}

void Engine::Rest(uint32_t seen, Clock::duration spin, TimePoint end, TimePoint* now, TimePoint* moved_at) {
  if (*now - *moved_at < spin) {
    bell().Linger(*now - *moved_at);
  } else if (pull_skipped_) {
    next_pull_ = TimePoint{};  // a message may have been rung for already: one more look before the sleep
  } else {
    bell().Sleep(seen, std::min(Pause(*now - *moved_at), end - *now));
    if (bell().Look() != seen) *moved_at = Clock::now();
  }
  *now = Clock::now();
}

void Engine::Park() {
  std::unique_lock<std::mutex> lock(park_mutex_);
  park_changed_.wait_for(lock, kLull);
}

void Engine::Survey() {
  bool idle = true, expecting = false;
  for (const auto& set : turning_) {
    idle = idle && set->idle();
    expecting = expecting || set->expects_messages();
  }
  idle_ = idle;
  expecting_ = expecting;
}

Clock::duration Engine::Pause(Clock::duration waited) const {
  // Deadlines and dead peers are looked for between the sleeps. The bell may be rung a little before the message that
  // it tells of is there: who expects one looks more often.
  const bool rung = bell().reaches_all() && !flushing_ && !expecting_;
  return rung ? std::chrono::milliseconds(100) : Backoff::Pause(waited, idle_);
}

bool Engine::DriveOnce(TimePoint now, bool* moved) {
  if (ended_) return false;
  Status status;
  try {
    status = Turn(now, moved);
    if (status.ok() && sets_.at(0)->all_left()) {
      End(Status::Ok());
      return false;
    }
    if (status.ok() && !*moved) status = CheckDeadlines(now);
  } catch (const std::exception& e) {
    status = Status::Error(HVD_INTERNAL, std::string("the engine failed: ") + e.what(), {rank_});
  }
  if (status.ok() && abort_) {
    status =
        Status::Error(HVD_PEER_FAILED, "rank " + std::to_string(rank_) + " has stopped without the others", {rank_});
  }
  if (status.ok()) {
    if (!*moved) Survey();
    return true;
  }
  End(status);
  return false;
}

Status Engine::Turn(TimePoint now, bool* moved) {
  if (leave_ && !abort_) {
    for (const auto& set : turning_) set->Leave();
  }
  Status status;
  for (const auto& set : turning_) {
    status = set->Turn(now, moved);
    if (!status.ok()) return status;
  }
  return size_ > 1 ? PullControl(now, moved) : status;
}

Status Engine::PullControl(TimePoint now, bool* moved) {
  // Where flags in shared memory tell of everything that is urgent, messages are rare.
  pull_skipped_ = now < next_pull_.load();
  if (pull_skipped_) return Status::Ok();
  if (bell().reaches_all()) next_pull_ = now + std::chrono::microseconds(5);
  for (;;) {
    bool received = false;
    int peer = 0;
    Bytes bytes;
    Status status = control_->Receive(&received, &peer, &bytes);
    if (!status.ok()) return status;
    if (!received) break;
    *moved = true;
    status = Dispatch(peer, std::move(bytes), now);
    if (!status.ok()) return status;
  }
  bool sent = true;
  Status status = control_->Flush(&sent);
  flushing_ = !sent;
  return status;
}

Status Engine::Dispatch(int rank, Bytes bytes, TimePoint now) {
  liveness_.Heard(rank, now);
  Header header;
  Status status = ReadHeader(bytes, &header);
  if (!status.ok() || header.type == MessageType::kAlive) return status;
  if (header.type == MessageType::kFailure) {
    Status failure;
    status = UnpackFailure(bytes, &failure);
    peer_told_ = true;
    return status.ok() ? failure : status;
  }
  const std::shared_ptr<ProcessSet> set = FindSet(header.set);
  if (set) return set->Receive(rank, header, std::move(bytes));
  orphans_.emplace_back(rank, std::move(bytes));
  return status;
}

Status Engine::CheckDeadlines(TimePoint now) {
  if (now < next_check_) return Status::Ok();
  next_check_ = now + std::chrono::milliseconds(10);
  if (leave_) {
    std::lock_guard<std::mutex> lock(end_mutex_);
    // The coordinator alone knows who is missing; the others give it time to say so.
    const bool knows = sets_.at(0)->is_coordinator();
    if (now >= leave_deadline_ + (knows ? Clock::duration::zero() : std::chrono::milliseconds(500))) {
      const std::vector<int32_t> ranks = sets_.at(0)->present();
      return Status::Error(HVD_STALLED,
                           "shutdown: " + RankList(ranks) + " did not agree in time" +
                               (knows ? "" : " (rank 0 knows who has not called shutdown)"),
                           ranks);
    }
  }
  Status status = liveness_.Check(now, [this](int rank) {
    Header header;
    header.type = MessageType::kAlive;
    return control_->Send(rank, PackHeader(header));
  });
  for (const auto& provider : providers_) {
    if (!status.ok()) break;
    status = provider->Check(now);
    if (!status.ok()) FinishWhatCame();
  }
  for (const auto& set : turning_) {
    if (status.ok()) status = set->CheckDeadlines(now);
  }
  return status;
}

void Engine::FinishWhatCame() {
  const TimePoint end = Clock::now() + std::chrono::milliseconds(20);
  for (TimePoint now = Clock::now(); now < end; now = Clock::now()) {
    bool moved = false;
    next_pull_ = TimePoint{};
    if (!Turn(now, &moved).ok()) return;
    if (!moved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status Engine::Shutdown(double timeout, bool abort) {
  const Status reason = Status::Error(HVD_SHUT_DOWN, "spark_hvd was shut down on this rank; call init() again");
  {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    for (const auto& item : sets_) item.second->queue().Close(reason);
  }
  std::unique_lock<std::mutex> lock(end_mutex_);
  const TimePoint deadline = Clock::now() + ToDuration(timeout);
  if (!leave_) leave_deadline_ = deadline;
  // In this order: a rank that aborts must not be seen to leave in peace.
  if (abort) abort_ = true;
  leave_ = true;
  bell().Ring();
  park_changed_.notify_all();
  // Whoever drives looks at the deadline at least every tenth of a second; more than this means stuck in MPI.
  constexpr double kGrace = 10;
  const TimePoint last = (abort ? Clock::now() : deadline) + ToDuration(kGrace);
  if (!end_changed_.wait_until(lock, last, [this] { return stopped_; })) {
    if (thread_.joinable()) thread_.detach();
    joined_ = true;
    return Status::Error(HVD_INTERNAL, "the engine's thread does not answer; it is left behind");
  }
  if (!joined_) {
    joined_ = true;
    lock.unlock();
    thread_.join();
    lock.lock();
  }
  return end_status_;
}

void Engine::TellFailure(const Status& failure) {
  // Ranks of one host read it from each other's pages. A message to a rank that is dead may even crash this one: UCX
  // connects with the first message, and does not survive a peer that is gone.
  if (bell().reaches_all()) return;
  const Bytes packed = PackFailure(failure);
  for (int peer = 0; peer < size_; ++peer) {
    const bool dead = std::find(failure.ranks.begin(), failure.ranks.end(), peer) != failure.ranks.end();
    if (peer == rank_ || dead || !control_->Send(peer, packed).ok()) continue;
    bell().RingPeer(peer);
  }
  FlushControl(0.05);
}

void Engine::FlushControl(double seconds) {
  const TimePoint end = Clock::now() + ToDuration(seconds);
  bool sent = false;
  while (control_->Flush(&sent).ok() && !sent && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Engine::End(const Status& how) {
  ended_ = true;
  if (how.ok()) {
    FlushControl(5);
    control_->Close();
  } else {
    if (!peer_told_ && size_ > 1) TellFailure(how);
    if (size_ > 1) KeepForGood(shared_from_this());
    if (!abort_) log_(LogLevel::kWarning, "engine ended: " + how.message);
  }
  for (const auto& provider : providers_) provider->Farewell(how);
  const Status pending =
      how.ok() || abort_ ? Status::Error(HVD_SHUT_DOWN, "spark_hvd was shut down while this was in flight") : how;
  for (const auto& set : turning_) set->Fail(pending);
  timeline_.Stop();
  {
    std::lock_guard<std::mutex> lock(end_mutex_);
    end_status_ = how.ok() || abort_ ? Status::Ok() : how;
    if (abort_) end_status_ = Status::Error(HVD_SHUT_DOWN, "stopped without the agreement of the other ranks");
    stopped_ = true;
  }
  end_changed_.notify_all();
  park_changed_.notify_all();
}

}  // namespace spark_hvd
