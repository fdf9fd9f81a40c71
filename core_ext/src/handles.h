// The promises of the core: a handle stands for what was submitted together until its caller has waited for it.
#ifndef SPARK_HVD_SRC_HANDLES_H_
#define SPARK_HVD_SRC_HANDLES_H_

#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

// How the collectives of a handle ended: the first failure, if any, and what the core made for them, by part.
struct Outcome {
  Status status;
  std::vector<Output> outputs;
};

class HandleTable {
 public:
  int64_t Create(int32_t parts);
  // One part has ended. The handle ends with its last one.
  void Finish(int64_t handle, int32_t part, const Status& status, Output output);
  // False for a handle that does not exist.
  bool Poll(int64_t handle, bool* done);
  // True when it has ended or does not exist (then outcome->status says so); a handle that has ended is freed.
  bool Take(int64_t handle, Outcome* outcome);
  // Somebody waits for it now.
  void MarkWaited(int64_t handle);
  // Whether somebody waits, has waited or has polled: the collective should not be put off.
  bool IsWaited(int64_t handle) const;
  // Sleeps until the handle has ended, a Nudge(), or `limit`.
  void Sleep(int64_t handle, TimePoint limit);
  // Wakes all sleepers.
  void Nudge();
  // Forgets a handle: at once if it has ended, else when it ends.
  bool Release(int64_t handle);
  // Forgets a handle whose collectives never started.
  void Forget(int64_t handle);

 private:
  struct Slot {
    int32_t open = 0;  // parts
    bool released = false;
    bool waited = false;
    Outcome outcome;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int sleepers_ = 0;
  int64_t nudges_ = 0;
  std::unordered_map<int64_t, Slot> slots_;
  int64_t next_ = 1;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_HANDLES_H_
