// One engine: what a rank needs to take part in collectives, and who moves it on.
//
// The engine is driven by one thread at a time: a caller that waits for a handle, or, when nobody waits, the engine's
// own thread. Whoever drives holds the progress lock, uses the control plane and the transports, and never blocks in
// them. So a synchronous call is carried out by its caller's own thread, and what was submitted without waiting goes on
// in the background. The engine ends in one of two ways: all ranks have left (agreed), or a failure or abort, which is
// told to the other ranks as far as that can be done without waiting.
#ifndef SPARK_HVD_SRC_ENGINE_H_
#define SPARK_HVD_SRC_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backoff.h"
#include "bell.h"
#include "control_plane.h"
#include "handles.h"
#include "liveness.h"
#include "local_bell.h"
#include "log.h"
#include "process_set.h"
#include "timeline.h"
#include "transport/provider.h"

namespace spark_hvd {

struct EngineConfig {
  SetOptions set;
  double heartbeat_timeout = 60;  // seconds of silence until a rank counts as dead
  int log_level = static_cast<int>(LogLevel::kWarning);
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // Collective over all ranks. `providers`: in the order in which they are asked; the last one serves everything.
  static Status Start(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
                      std::vector<std::unique_ptr<Provider>> providers, std::shared_ptr<Engine>* out);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Counters& counters() const { return counters_; }
  Timeline& timeline() { return timeline_; }

  // All of `entries` belong to one handle. `entry.handle` and the like are set here.
  Status Submit(int32_t set, std::vector<Entry> entries, int64_t* handle);
  // HVD_TIMEOUT after `timeout` seconds (negative: no limit); else how it ended, and the handle is freed.
  Outcome Wait(int64_t handle, double timeout);
  // Submit() and Wait() at once, which wakes nobody when this thread can do the work itself. The handle is valid after
  // HVD_TIMEOUT.
  Outcome Run(int32_t set, std::vector<Entry> entries, double timeout, int64_t* handle);
  bool Poll(int64_t handle, bool* done) { return handles_.Poll(handle, done); }
  bool Release(int64_t handle) { return handles_.Release(handle); }

  // Makes a process set of these ranks; all ranks of the world call it, with the same ranks.
  Status AddSet(std::vector<int32_t> ranks, int32_t* set);
  // Likewise; fails on all ranks when collectives of the set are in flight on one.
  Status RemoveSet(int32_t set);
  // The set, or null when it does not exist or this rank is not in it.
  std::shared_ptr<ProcessSet> FindSet(int32_t set) const;
  // Name of the transport that carries such a collective.
  Status TransportOf(int32_t set, const Request& request, const void* data, std::string* name);

  // See hvd_shutdown.
  Status Shutdown(double timeout, bool abort);

 private:
  Engine(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
         std::vector<std::unique_ptr<Provider>> providers);

  // Set-up.
  std::shared_ptr<ProcessSet> MakeSet(Members members);
  Status Equip(ProcessSet* set);
  Status ExchangeIn(int32_t set, const std::string& name, const std::string& mine, std::vector<std::string>* all);

  // Calls `f` under the progress lock, which a waiter that sleeps gives up for it.
  template <typename F>
  void WithProgress(F f) {
    ++wanted_;
    bell().Ring();
    {
      std::lock_guard<std::mutex> lock(progress_);
      --wanted_;
      f();
    }
  }

  // Driving.
  void Background();
  Outcome DriveUntilDone(int64_t handle, TimePoint end);
  bool DriveOnce(TimePoint now, bool* moved);
  Status Turn(TimePoint now, bool* moved);
  Status PullControl(TimePoint now, bool* moved);
  Status Dispatch(int rank, Bytes bytes, TimePoint now);
  Status CheckDeadlines(TimePoint now);
  // A rank is gone: what it did before that still counts.
  void FinishWhatCame();
  // Nothing moved: looks again at once, or sleeps.
  void Rest(uint32_t seen, Clock::duration spin, TimePoint end, TimePoint* now, TimePoint* moved_at);
  Clock::duration Pause(Clock::duration waited) const;
  void Survey();
  void LeaveAsWaiter();
  void Park();

  // Ending.
  void TellFailure(const Status& failure);
  void FlushControl(double seconds);
  void End(const Status& how);

  Bell& bell() const { return *bell_.load(std::memory_order_acquire); }

  const EngineConfig config_;
  const std::unique_ptr<ControlPlane> control_;
  const std::vector<std::unique_ptr<Provider>> providers_;
  const int rank_, size_;
  const Log log_;
  Timeline timeline_;
  Counters counters_;
  HandleTable handles_;
  LocalBell local_bell_;
  std::atomic<Bell*> bell_;

  // Under the progress lock.
  std::mutex progress_;
  Liveness liveness_;
  std::vector<std::pair<int, Bytes>> orphans_;  // messages for sets that are not there yet
  bool peer_told_ = false;                      // the failure came from a peer, who has told all others
  TimePoint next_check_{};
  std::atomic<TimePoint> next_pull_{TimePoint{}};
  std::atomic<bool> flushing_{false};   // messages are on their way out
  std::atomic<bool> idle_{false};       // nothing is in flight here
  std::atomic<bool> expecting_{false};  // an answer to a message is awaited
  std::atomic<bool> pull_skipped_{false};

  mutable std::mutex sets_mutex_;
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;  // changed under both locks
  std::vector<std::shared_ptr<ProcessSet>> turning_;     // the same, under the progress lock alone
  int32_t next_set_ = 1;
  std::mutex set_up_;  // one change of the sets at a time

  // Callers and the engine's thread.
  std::atomic<int> waiters_{0};
  std::atomic<int> wanted_{0};         // threads that want the progress lock for a moment
  std::atomic<int64_t> waited_at_{0};  // ticks of the clock when a waiter left last
  std::mutex park_mutex_;
  std::condition_variable park_changed_;

  // Between Shutdown() and whoever drives.
  std::atomic<bool> leave_{false}, abort_{false}, ended_{false};
  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool stopped_ = false;
  bool joined_ = false;
  Status end_status_;
  TimePoint leave_deadline_{};
  std::thread thread_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_ENGINE_H_
