// One engine: the background thread of a rank, which agrees with the others and carries out what was agreed.
//
// Only this thread uses the control plane and the transport, and it never blocks in them. Callers' threads touch the
// queue and the handles. The thread ends in one of two ways: all ranks have left (agreed), or a failure or abort, which
// it tells the other ranks as far as that can be done without waiting.
#ifndef SPARK_HVD_SRC_ENGINE_H_
#define SPARK_HVD_SRC_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "backoff.h"
#include "control_plane.h"
#include "coordinator.h"
#include "executor.h"
#include "handles.h"
#include "log.h"
#include "tensor_queue.h"
#include "transport/transport.h"

namespace spark_hvd {

struct EngineConfig {
  int64_t fusion_threshold = 4 << 20;  // bytes
  double comm_timeout = 600;           // seconds
  int log_level = static_cast<int>(LogLevel::kWarning);
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> Start(const EngineConfig& config, std::unique_ptr<ControlPlane> control,
                                       std::unique_ptr<Transport> transport);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  HandleTable& handles() { return handles_; }

  // `entry.handle` is set here.
  Status Submit(Entry entry, int64_t* handle);
  // See hvd_shutdown.
  Status Shutdown(double timeout, bool abort);

 private:
  class TransportPatience;

  Engine(const EngineConfig& config, std::unique_ptr<ControlPlane> control, std::unique_ptr<Transport> transport);

  void Run();
  Status Loop();
  Status Turn(bool* moved);
  Status SendFresh(bool* moved);
  Status SendLeave();
  // Takes all messages that have come into the inbox; fails with the sender's reason when one tells of a failure.
  Status PullControl();
  Status HandleMessage(int peer, const Bytes& bytes);
  Status Follow(const std::vector<Response>& responses);
  Status CheckDeadlines(TimePoint now);
  void TellFailure(const Status& failure);
  void FlushControl(double seconds);
  void End(const Status& how);

  const EngineConfig config_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Transport> transport_;
  const int rank_, size_;
  const Log log_;
  TensorQueue queue_;
  HandleTable handles_;
  Executor executor_;

  // The thread's own.
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::deque<std::pair<int, Bytes>> inbox_;
  bool left_ = false;
  bool all_left_ = false;
  bool peer_told_ = false;        // the failure came from a peer, who has told all others
  std::shared_ptr<Engine> kept_;  // itself, after a failure
  TimePoint next_check_{};

  // Between Shutdown() and the thread.
  std::atomic<bool> leave_{false};
  std::atomic<bool> abort_{false};
  std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false;
  bool joined_ = false;
  Status ended_;
  TimePoint leave_deadline_{};
  std::thread thread_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_ENGINE_H_
