#include "transport/shm/segments.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>

namespace spark_hvd {
namespace {

constexpr int64_t kAlignment = 128;
constexpr int64_t kSharedBytes = 4 << 20;  // segments for small allocations
constexpr int64_t kLargestShared = kSharedBytes / 4;

// The first gap that holds `bytes`, or -1.
int64_t FindGap(const std::map<int64_t, int64_t>& used, int64_t capacity, int64_t bytes) {
  int64_t at = 0;
  for (const auto& [offset, length] : used) {
    if (offset - at >= bytes) return at;
    at = offset + length;
  }
  return capacity - at >= bytes ? at : -1;
}

}  // namespace

SegmentMark* MarkOf(const SharedMemory& segment) {
  return reinterpret_cast<SegmentMark*>(segment.data() + segment.bytes() - sysconf(_SC_PAGESIZE));
}

Segments::~Segments() {
  for (auto& item : segments_) MarkOf(item.second->memory)->freed.store(1, std::memory_order_release);
}

Status Segments::AddSegment(int64_t bytes, std::shared_ptr<Segment>* out) {
  auto segment = std::make_shared<Segment>();
  segment->capacity = WholePages(bytes);
  Status status = SharedMemory::Create(segment->capacity + sysconf(_SC_PAGESIZE), &segment->memory);
  if (!status.ok()) return status;
  segments_[segment->memory.data()] = segment;
  *out = std::move(segment);
  return status;
}

Status Segments::Allocate(int64_t bytes, void** out) {
  if (bytes < 0) return Status::Error(HVD_INVALID_ARGUMENT, "an allocation of " + std::to_string(bytes) + " bytes");
  const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Segment> home;
  int64_t offset = -1;
  if (size <= kLargestShared) {
    for (auto& item : segments_) {
      if (item.second->capacity != kSharedBytes) continue;
      offset = FindGap(item.second->used, kSharedBytes, size);
      if (offset < 0) continue;
      home = item.second;
      break;
    }
  }
  if (!home) {
    Status status = AddSegment(size <= kLargestShared ? kSharedBytes : size, &home);
    if (!status.ok()) return status;
    offset = 0;
  }
  home->used[offset] = size;
  char* data = home->memory.data() + offset;
  memset(data, 0, static_cast<size_t>(size));
  *out = data;
  return Status::Ok();
}

bool Segments::Free(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = segments_.upper_bound(static_cast<const char*>(data));
  if (after == segments_.begin()) return false;
  auto home = std::prev(after);
  Segment& segment = *home->second;
  if (segment.used.erase(static_cast<char*>(data) - segment.memory.data()) == 0) return false;
  if (segment.used.empty()) {
    MarkOf(segment.memory)->freed.store(1, std::memory_order_release);
    segments_.erase(home);
  }
  return true;
}

bool Segments::Find(const void* data, int64_t bytes, TensorAddress* out) const {
  const char* begin = static_cast<const char*>(data);
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = segments_.upper_bound(begin);
  if (after == segments_.begin()) return false;
  const Segment& segment = *std::prev(after)->second;
  const int64_t offset = begin - segment.memory.data();
  if (offset + bytes > segment.capacity) return false;
  *out = {segment.memory.address(), offset};
  return true;
}

int64_t Segments::allocations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t count = 0;
  for (const auto& item : segments_) count += static_cast<int64_t>(item.second->used.size());
  return count;
}

}  // namespace spark_hvd
