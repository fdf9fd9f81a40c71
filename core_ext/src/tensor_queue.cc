#include "tensor_queue.h"

#include <utility>

namespace spark_hvd {

Status TensorQueue::Add(std::vector<Entry> entries) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.ok()) {
    const Request& first = entries.front().request;
    Status status = closed_;
    status.message = std::string(KindName(first.kind)) + " '" + first.name + "': " + closed_.message;
    return status;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const Request& request = entries[i].request;
    if (names_.insert(request.name).second) continue;
    for (size_t k = 0; k < i; ++k) names_.erase(entries[k].request.name);
    return Status::Error(HVD_DUPLICATE_NAME, std::string(KindName(request.kind)) + " '" + request.name +
                                                 "' is in flight on this rank already; wait for it before you "
                                                 "submit that name again, or give another name");
  }
  for (Entry& entry : entries) {
    entry.number = next_number_++;
    fresh_.push_back(std::move(entry));
  }
  has_new_.store(true, std::memory_order_release);
  return Status::Ok();
}

std::vector<Entry> TensorQueue::TakeNew() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_new_.store(false, std::memory_order_relaxed);
  return std::exchange(fresh_, {});
}

void TensorQueue::Remove(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  names_.erase(name);
}

void TensorQueue::Close(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = reason;
}

int64_t TensorQueue::in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(names_.size());
}

}  // namespace spark_hvd
