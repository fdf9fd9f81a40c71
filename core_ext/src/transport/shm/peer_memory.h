// Maps the memory that local ranks allocated for tensors, when an operation first meets it; forgets what they freed.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_PEER_MEMORY_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_PEER_MEMORY_H_

#include <map>
#include <mutex>

#include "transport/shm/memory.h"

namespace spark_hvd {

// Where one tensor lies, as its owner publishes it.
struct TensorAddress {
  MemoryAddress segment;
  int64_t offset = 0;
};

class PeerMemory {
 public:
  // `out` stays valid as long as the owner does not free it.
  Status Find(const TensorAddress& address, char** out);
  // Unmaps what its owner has freed. To be called now and then.
  void Sweep();

 private:
  using Key = std::pair<int64_t, uint64_t>;  // process, inode

  std::mutex mutex_;
  std::map<Key, SharedMemory> segments_;
  Key last_{};
  char* last_data_ = nullptr;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_PEER_MEMORY_H_
