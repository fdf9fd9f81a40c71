// Memory for tensors that the other ranks of the host can map: what hvd_alloc gives.
//
// A large allocation has a segment of its own, small ones share segments. A segment goes when its last allocation does;
// a mark in its last page tells peers to unmap it. Nothing here depends on an engine: memory outlives it as long as it
// has an owner.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_SEGMENTS_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_SEGMENTS_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "transport/shm/memory.h"
#include "transport/shm/peer_memory.h"

namespace spark_hvd {

// Lies in the last page of each segment.
struct SegmentMark {
  std::atomic<uint32_t> freed;
};
SegmentMark* MarkOf(const SharedMemory& segment);

// Used by any thread.
class Segments {
 public:
  ~Segments();
  // Zeroed, aligned to 64 bytes at least, writable. HVD_UNAVAILABLE when there is no memory.
  Status Allocate(int64_t bytes, void** out);
  // Gives back what Allocate() gave; false for any other pointer.
  bool Free(void* data);
  // Whether [data, data + bytes) lies in one allocation, and where peers find it.
  bool Find(const void* data, int64_t bytes, TensorAddress* out) const;
  int64_t allocations() const;

 private:
  struct Segment {
    SharedMemory memory;
    std::map<int64_t, int64_t> used;  // offset -> bytes
    int64_t capacity = 0;
  };

  Status AddSegment(int64_t bytes, std::shared_ptr<Segment>* out);

  mutable std::mutex mutex_;
  std::map<const char*, std::shared_ptr<Segment>> segments_;  // by first address
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_SEGMENTS_H_
