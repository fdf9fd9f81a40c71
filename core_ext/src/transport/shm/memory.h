// Memory that other processes of the host can map: memfd, so no name, nothing left behind, no limit of /dev/shm.
//
// Pages are reserved when it is made: running out of memory is an error here, never a SIGBUS later.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_MEMORY_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_MEMORY_H_

#include <cstdint>
#include <string>

#include "status.h"

namespace spark_hvd {

// Where a peer finds memory: a descriptor of a process, and what tells whether it is still the same memory.
struct MemoryAddress {
  int64_t pid = 0;
  int64_t descriptor = -1;
  uint64_t inode = 0;
  int64_t bytes = 0;
};

// One mapping; unmapped and closed when it goes.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory() { Release(); }
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // New memory of this process, all zero. HVD_UNAVAILABLE says how much was needed and what there is.
  static Status Create(int64_t bytes, SharedMemory* out);
  // Maps what a peer made. Fails if that process is not to be seen from here, or holds something else there.
  static Status Open(const MemoryAddress& address, SharedMemory* out);

  char* data() const { return data_; }
  int64_t bytes() const { return address_.bytes; }
  const MemoryAddress& address() const { return address_; }
  // A forked child does not get this mapping, so it cannot keep the memory alive or touch it.
  void HideFromChildren();
  // Peers that have not opened it yet no longer can.
  void CloseDescriptor();

 private:
  Status Map();
  // So that the first collective does not pay for the page tables.
  void FaultIn();
  void Release();

  char* data_ = nullptr;
  int descriptor_ = -1;
  MemoryAddress address_;
};

// bytes rounded up to whole pages.
int64_t WholePages(int64_t bytes);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_MEMORY_H_
