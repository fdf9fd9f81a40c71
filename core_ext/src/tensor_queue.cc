#include "tensor_queue.h"

#include <utility>

namespace spark_hvd {

Status TensorQueue::Add(Entry entry) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    Request request = entry.request;
    const bool added = entries_.emplace(request.name, std::move(entry)).second;
    if (!added) {
      return Status::Error(HVD_DUPLICATE_NAME, std::string(KindName(request.kind)) + " '" + request.name +
                                                   "' is in flight on this rank already; wait for it before you "
                                                   "submit that name again, or give another name");
    }
    fresh_.push_back(std::move(request));
    woken_ = true;
  }
  awake_.notify_one();
  return Status::Ok();
}

std::vector<Request> TensorQueue::TakeNew() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(fresh_, {});
}

bool TensorQueue::Find(const std::string& name, Entry* entry) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end()) return false;
  *entry = found->second;
  return true;
}

void TensorQueue::Remove(const std::vector<Entry>& entries) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries) entries_.erase(entry.request.name);
}

bool TensorQueue::FindOlder(TimePoint limit, Entry* entry) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& item : entries_) {
    if (item.second.submitted < limit) {
      *entry = item.second;
      return true;
    }
  }
  return false;
}

void TensorQueue::Close(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = reason;
}

std::vector<Entry> TensorQueue::TakeAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> all;
  for (auto& item : entries_) all.push_back(std::move(item.second));
  entries_.clear();
  fresh_.clear();
  return all;
}

int64_t TensorQueue::in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

void TensorQueue::Rest(Clock::duration longest) {
  std::unique_lock<std::mutex> lock(mutex_);
  awake_.wait_for(lock, longest, [this] { return woken_; });
  woken_ = false;
}

void TensorQueue::Wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
  }
  awake_.notify_one();
}

}  // namespace spark_hvd
