// The promises of the core: a handle stands for one submitted collective until its caller has waited for it.
#ifndef SPARK_HVD_SRC_HANDLES_H_
#define SPARK_HVD_SRC_HANDLES_H_

#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

class HandleTable {
 public:
  int64_t Create();
  // Ends these handles with `status` and wakes their waiters.
  void Finish(const std::vector<int64_t>& handles, const Status& status);
  // False for a handle that does not exist.
  bool Poll(int64_t handle, bool* done);
  // HVD_TIMEOUT after `timeout` seconds (negative: no limit); anything else is how it ended, and frees the handle.
  Status Wait(int64_t handle, double timeout);
  // Forgets a handle: at once if it has ended, else when it ends.
  bool Release(int64_t handle);

 private:
  struct Slot {
    bool done = false;
    bool released = false;
    Status status;
  };

  std::mutex mutex_;
  std::condition_variable ended_;
  std::unordered_map<int64_t, Slot> slots_;
  int64_t next_ = 1;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_HANDLES_H_
