#include "handles.h"

namespace spark_hvd {

int64_t HandleTable::Create() {
  std::lock_guard<std::mutex> lock(mutex_);
  slots_.emplace(next_, Slot());
  return next_++;
}

void HandleTable::Finish(const std::vector<int64_t>& handles, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t handle : handles) {
      auto found = slots_.find(handle);
      if (found == slots_.end()) continue;
      if (found->second.released) {
        slots_.erase(found);
      } else {
        found->second.done = true;
        found->second.status = status;
      }
    }
  }
  ended_.notify_all();
}

bool HandleTable::Poll(int64_t handle, bool* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) return false;
  *done = found->second.done;
  return true;
}

Status HandleTable::Wait(int64_t handle, double timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const TimePoint end = Clock::now() + ToDuration(timeout);
  for (;;) {
    // Looked up again after every sleep: another thread may have waited for the same handle and freed it.
    auto found = slots_.find(handle);
    if (found == slots_.end()) {
      return Status::Error(HVD_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " does not exist (any more)");
    }
    if (found->second.done) {
      Status status = std::move(found->second.status);
      slots_.erase(found);
      return status;
    }
    if (timeout < 0) {
      ended_.wait(lock);
    } else if (Clock::now() >= end) {
      return Status::Error(HVD_TIMEOUT, "");
    } else {
      ended_.wait_until(lock, end);
    }
  }
}

bool HandleTable::Release(int64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) return false;
  if (found->second.done) {
    slots_.erase(found);
  } else {
    found->second.released = true;
  }
  return true;
}

}  // namespace spark_hvd
