#include "handles.h"

#include <string>
#include <utility>

namespace spark_hvd {

int64_t HandleTable::Create(int32_t parts) {
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[next_];
  slot.open = parts;
  slot.outcome.outputs.resize(parts);
  return next_++;
}

void HandleTable::Finish(int64_t handle, int32_t part, const Status& status, Output output) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) return;
  Slot& slot = found->second;
  if (!status.ok() && slot.outcome.status.ok()) slot.outcome.status = status;
  slot.outcome.outputs[part] = std::move(output);
  if (--slot.open > 0) return;
  if (slot.released) slots_.erase(found);
  if (sleepers_ > 0) changed_.notify_all();
}

bool HandleTable::Poll(int64_t handle, bool* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) return false;
  found->second.waited = true;
  *done = found->second.open == 0;
  return true;
}

bool HandleTable::Take(int64_t handle, Outcome* outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) {
    outcome->status =
        Status::Error(HVD_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " does not exist (any more)");
    return true;
  }
  if (found->second.open > 0) return false;
  *outcome = std::move(found->second.outcome);
  slots_.erase(found);
  return true;
}

void HandleTable::MarkWaited(int64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found != slots_.end()) found->second.waited = true;
}

bool HandleTable::IsWaited(int64_t handle) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  return found != slots_.end() && found->second.waited;
}

void HandleTable::Sleep(int64_t handle, TimePoint limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++sleepers_;
  const int64_t nudges = nudges_;
  changed_.wait_until(lock, limit, [&] {
    auto found = slots_.find(handle);
    return nudges_ != nudges || found == slots_.end() || found->second.open == 0;
  });
  --sleepers_;
}

void HandleTable::Nudge() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++nudges_;
  if (sleepers_ > 0) changed_.notify_all();
}

bool HandleTable::Release(int64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(handle);
  if (found == slots_.end()) return false;
  if (found->second.open == 0) {
    slots_.erase(found);
  } else {
    found->second.released = true;
  }
  return true;
}

void HandleTable::Forget(int64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  slots_.erase(handle);
}

}  // namespace spark_hvd
