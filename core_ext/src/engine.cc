#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

namespace spark_hvd {
namespace {

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

std::string Text(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

}  // namespace

// Lets a transport wait as long as the engine may live and its peers do.
class Engine::TransportPatience : public Patience {
 public:
  explicit TransportPatience(Engine* engine) : engine_(engine), backoff_(Clock::now()) {}

  void Moved() override { backoff_.Moved(Clock::now()); }

  Status Rest(const std::function<std::vector<int32_t>()>& waiting_for) override {
    if (engine_->abort_) return Status::Error(HVD_SHUT_DOWN, "this rank was told to stop at once");
    const TimePoint now = Clock::now();
    if (now >= next_look_) {
      next_look_ = now + kLookEvery;
      Status status = engine_->PullControl();
      if (!status.ok()) return status;
    }
    if (backoff_.Waited(now) > ToDuration(engine_->config_.comm_timeout)) {
      const std::vector<int32_t> ranks = waiting_for();
      return Status::Error(HVD_PEER_FAILED,
                           "nothing came from " + RankList(ranks) + " for " + Text(engine_->config_.comm_timeout) +
                               " in the middle of a collective; is it dead or stopped?",
                           ranks);
    }
    const Clock::duration pause = backoff_.Next(now, false);
    if (pause == Clock::duration::zero()) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
    }
    return Status::Ok();
  }

 private:
  static constexpr Clock::duration kLookEvery = std::chrono::milliseconds(2);

  Engine* engine_;
  Backoff backoff_;
  TimePoint next_look_{};
};

std::shared_ptr<Engine> Engine::Start(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
                                      std::unique_ptr<Transport> transport) {
  std::shared_ptr<Engine> engine(new Engine(config, std::move(control), std::move(transport)));
  SignalsBlocked blocked;
  // The thread holds the engine: should it ever be stuck, what it uses stays alive.
  engine->thread_ = std::thread([engine] { engine->Run(); });
  return engine;
}

Engine::Engine(const EngineConfig& config, std::unique_ptr<ControlPlane> control, std::unique_ptr<Transport> transport)
    : config_(config),
      control_(std::move(control)),
      transport_(std::move(transport)),
      rank_(control_->rank()),
      size_(control_->size()),
      log_(rank_, config.log_level),
      executor_(rank_, &queue_, &handles_, transport_.get()) {
  if (rank_ == 0) {
    coordinator_ = std::make_unique<Coordinator>(size_, config.fusion_threshold, config.comm_timeout);
  }
}

Engine::~Engine() = default;

Status Engine::Submit(Entry entry, int64_t* handle) {
  entry.handle = handles_.Create();
  entry.submitted = Clock::now();
  *handle = entry.handle;
  Status status = queue_.Add(std::move(entry));
  if (!status.ok()) {
    handles_.Finish({*handle}, status);
    handles_.Release(*handle);
  }
  return status;
}

Status Engine::Shutdown(double timeout, bool abort) {
  std::unique_lock<std::mutex> lock(mutex_);
  queue_.Close(Status::Error(HVD_SHUT_DOWN, "spark_hvd was shut down on this rank; call init() again"));
  const TimePoint deadline = Clock::now() + ToDuration(timeout);
  if (!leave_) leave_deadline_ = deadline;
  // In this order: a rank that aborts must not be seen to leave in peace.
  if (abort) abort_ = true;
  leave_ = true;
  queue_.Wake();
  // The thread looks at its deadline at least every few milliseconds; more than this means that it is stuck in MPI.
  constexpr double kGrace = 10;
  const TimePoint last = (abort ? Clock::now() : deadline) + ToDuration(kGrace);
  if (!stopped_changed_.wait_until(lock, last, [this] { return stopped_; })) {
    if (thread_.joinable()) thread_.detach();
    joined_ = true;
    return Status::Error(HVD_INTERNAL, "the engine's thread does not answer; it is left behind");
  }
  if (!joined_) {
    joined_ = true;
    thread_.join();
  }
  return ended_;
}

void Engine::Run() {
  pthread_setname_np(pthread_self(), "hvd-engine");
  // Short sleeps are asked for in microseconds; the usual slack of 50 would double them.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  log_(LogLevel::kInfo, "engine started, size " + std::to_string(size_) + ", transport " + transport_->name());
  Status how;
  try {
    how = Loop();
  } catch (const std::exception& e) {
    how = Status::Error(HVD_INTERNAL, std::string("the engine failed: ") + e.what(), {rank_});
  }
  End(how);
}

Status Engine::Loop() {
  Backoff backoff(Clock::now());
  for (;;) {
    bool moved = false;
    Status status = Turn(&moved);
    if (!status.ok()) return status;
    const TimePoint now = Clock::now();
    if (all_left_) return Status::Ok();
    if (abort_) {
      return Status::Error(HVD_PEER_FAILED, "rank " + std::to_string(rank_) + " has stopped without the others",
                           {rank_});
    }
    if (moved) {
      backoff.Moved(now);
      continue;
    }
    status = CheckDeadlines(now);
    if (!status.ok()) return status;
    const Clock::duration pause = backoff.Next(now, queue_.in_flight() == 0 && !left_);
    if (pause == Clock::duration::zero()) {
      std::this_thread::yield();
    } else {
      queue_.Rest(pause);
    }
  }
}

Status Engine::Turn(bool* moved) {
  Status status = SendFresh(moved);
  if (status.ok() && leave_ && !abort_ && !left_) {
    status = SendLeave();
    *moved = true;
  }
  if (status.ok()) status = PullControl();
  while (status.ok() && !inbox_.empty()) {
    const auto [peer, bytes] = std::move(inbox_.front());
    inbox_.pop_front();
    status = HandleMessage(peer, bytes);
    *moved = true;
  }
  if (!status.ok() || !coordinator_) return status;
  const std::vector<Response> responses = coordinator_->Decide(Clock::now());
  if (responses.empty()) return status;
  *moved = true;
  const Bytes packed = size_ > 1 ? PackResponses(responses) : Bytes();
  for (int peer = 1; peer < size_ && status.ok(); ++peer) status = control_->Send(peer, packed);
  return status.ok() ? Follow(responses) : status;
}

Status Engine::SendFresh(bool* moved) {
  std::vector<Request> fresh = queue_.TakeNew();
  if (fresh.empty()) return Status::Ok();
  *moved = true;
  if (!coordinator_) return control_->Send(0, PackRequests(fresh));
  const TimePoint now = Clock::now();
  for (Request& request : fresh) coordinator_->Add(0, std::move(request), now);
  return Status::Ok();
}

Status Engine::SendLeave() {
  left_ = true;
  if (!coordinator_) return control_->Send(0, PackLeave());
  coordinator_->Leave(0);
  return Status::Ok();
}

Status Engine::PullControl() {
  for (;;) {
    bool received = false;
    int peer = 0;
    Bytes bytes;
    Status status = control_->Receive(&received, &peer, &bytes);
    if (!status.ok() || !received) return status;
    MessageType type{};
    status = ReadType(bytes, &type);
    if (!status.ok()) return status;
    if (type == MessageType::kFailure) {
      Status failure;
      status = UnpackFailure(bytes, &failure);
      peer_told_ = true;
      return status.ok() ? failure : status;
    }
    inbox_.emplace_back(peer, std::move(bytes));
  }
}

Status Engine::HandleMessage(int peer, const Bytes& bytes) {
  MessageType type{};
  Status status = ReadType(bytes, &type);
  if (!status.ok()) return status;
  if (type == MessageType::kResponses && !coordinator_ && peer == 0) {
    std::vector<Response> responses;
    status = UnpackResponses(bytes, &responses);
    return status.ok() ? Follow(responses) : status;
  }
  if (type == MessageType::kRequests && coordinator_) {
    std::vector<Request> requests;
    status = UnpackRequests(bytes, &requests);
    if (!status.ok()) return status;
    const TimePoint now = Clock::now();
    for (Request& request : requests) coordinator_->Add(peer, std::move(request), now);
    return status;
  }
  if (type == MessageType::kLeave && coordinator_) {
    coordinator_->Leave(peer);
    return status;
  }
  return Status::Error(HVD_INTERNAL, "rank " + std::to_string(peer) + " sent a message that is not its to send",
                       {peer});
}

Status Engine::Follow(const std::vector<Response>& responses) {
  for (const Response& response : responses) {
    if (response.verdict == Verdict::kAllLeft) {
      all_left_ = true;
      return Status::Ok();
    }
    TransportPatience patience(this);
    Status status = executor_.Execute(response, &patience);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status Engine::CheckDeadlines(TimePoint now) {
  if (leave_) {
    std::unique_lock<std::mutex> lock(mutex_);
    // Rank 0 alone knows who is missing; the others give it time to say so.
    const Clock::duration grace = coordinator_ ? Clock::duration::zero() : std::chrono::milliseconds(500);
    if (now >= leave_deadline_ + grace) {
      const std::vector<int32_t> ranks = coordinator_ ? coordinator_->present() : std::vector<int32_t>{0};
      return Status::Error(HVD_STALLED,
                           "shutdown: " + RankList(ranks) + " did not agree in time" +
                               (coordinator_ ? "" : " (rank 0 knows who has not called shutdown)"),
                           ranks);
    }
  }
  if (coordinator_ || now < next_check_) return Status::Ok();
  next_check_ = now + std::chrono::milliseconds(250);
  // Rank 0 ends what is late with an error. That nothing comes at all, well after that time, is about rank 0 itself.
  const double patience = config_.comm_timeout * 1.25 + std::min(5.0, config_.comm_timeout);
  Entry entry;
  if (!queue_.FindOlder(now - ToDuration(patience), &entry)) return Status::Ok();
  return Status::Error(HVD_PEER_FAILED,
                       std::string(KindName(entry.request.kind)) + " '" + entry.request.name +
                           "': rank 0, which coordinates, did not answer for " + Text(patience) + "; is it dead?",
                       {0});
}

void Engine::TellFailure(const Status& failure) {
  const Bytes packed = PackFailure(failure);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && !control_->Send(peer, packed).ok()) continue;
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
  if (how.ok()) {
    FlushControl(5);
    control_->Close();
  } else {
    if (!peer_told_ && size_ > 1) TellFailure(how);
    // The network may still read from and write to the memory that it was given: it lives as long as the process.
    if (size_ > 1) kept_ = shared_from_this();
    if (!abort_) log_(LogLevel::kWarning, "engine ended: " + how.message);
  }
  const Status pending =
      how.ok() || abort_ ? Status::Error(HVD_SHUT_DOWN, "spark_hvd was shut down while this was in flight") : how;
  queue_.Close(pending);
  executor_.Finish(queue_.TakeAll(), pending);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = how.ok() || abort_ ? Status::Ok() : how;
    if (abort_) ended_ = Status::Error(HVD_SHUT_DOWN, "stopped without the agreement of the other ranks");
    stopped_ = true;
  }
  stopped_changed_.notify_all();
}

}  // namespace spark_hvd
