#include "transport/shm/peer_memory.h"

#include "transport/shm/segments.h"

namespace spark_hvd {

Status PeerMemory::Find(const TensorAddress& address, char** out) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Key key{address.segment.pid, address.segment.inode};
  if (last_data_ == nullptr || key != last_) {
    auto found = segments_.find(key);
    if (found == segments_.end()) {
      SharedMemory segment;
      Status status = SharedMemory::Open(address.segment, &segment);
      if (!status.ok()) {
        status.code = HVD_INTERNAL;
        status.message = "memory of a peer cannot be mapped: " + status.message;
        return status;
      }
      segment.HideFromChildren();
      found = segments_.emplace(key, std::move(segment)).first;
    }
    last_ = key;
    last_data_ = found->second.data();
  }
  *out = last_data_ + address.offset;
  return Status::Ok();
}

void PeerMemory::Sweep() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = segments_.begin(); it != segments_.end();) {
    if (MarkOf(it->second)->freed.load(std::memory_order_acquire) == 0) {
      ++it;
      continue;
    }
    if (it->first == last_) last_data_ = nullptr;
    it = segments_.erase(it);
  }
}

}  // namespace spark_hvd
