// The memory through which the ranks of one process set on one host pass data: flags, and slots for pieces.
//
// Each rank makes its own part and maps those of the others; it writes to its own part alone. Its flags:
//   entered    the operation that it has started, and whether all its tensors lie in own memory
//   copied     rounds whose input lies in its in-slots
//   consumed   rounds for which it needs nobody's in-slots any more, and whose results lie in its out-slots
//   taken      rounds for which it needs nobody's out-slots any more
//   ballots    its last two votes on operations that are not agreed yet
// A mark is (sequence of the operation, rounds done); it only grows, so a peer that is ahead satisfies every wait.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_ARENA_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_ARENA_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/exchange.h"
#include "transport/shm/host.h"

namespace spark_hvd {

constexpr int kRoundBits = 20;
constexpr int64_t kAllRounds = (int64_t{1} << kRoundBits) - 1;

inline uint64_t Mark(int64_t sequence, int64_t rounds) {
  return static_cast<uint64_t>(sequence) << kRoundBits | static_cast<uint64_t>(rounds);
}

using Flag = std::atomic<uint64_t>;

struct alignas(128) RankFlags {
  Flag entered;
  Flag copied;
  Flag consumed;
  Flag taken;
  Flag ballots[2];
};

struct ArenaOptions {
  int64_t chunk_bytes = 256 << 10;  // one round: all ranks' parts of it together
  int64_t small_bytes = 16 << 10;   // up to here everybody reduces everything
  int slots = 4;
  int64_t least_part_bytes = 16 << 10;
};

class Arena {
 public:
  static constexpr int64_t kMaxTensors = 1024;  // of one operation in own memory

  // Collective over the set, whose ranks (of the world) may lie on several hosts; the arena holds those of this host.
  // *out stays empty on all ranks when one could not have its memory; `why` says which and how much.
  static Status Open(std::shared_ptr<ShmHost> host, const std::vector<int32_t>& ranks, const Exchange& exchange,
                     const ArenaOptions& options, std::shared_ptr<Arena>* out, std::string* why);

  int size() const { return static_cast<int>(parts_.size()); }
  int position() const { return position_; }
  // World ranks by position.
  const std::vector<int32_t>& ranks() const { return ranks_; }
  const ArenaOptions& options() const { return options_; }
  int64_t out_slot_bytes() const { return out_slot_bytes_; }
  ShmHost* host() const { return host_.get(); }

  const RankFlags& flags(int position) const { return *parts_[static_cast<size_t>(position)].flags; }
  char* in_slot(int position, int64_t round) const {
    return parts_[static_cast<size_t>(position)].in + Slot(round) * options_.chunk_bytes;
  }
  char* out_slot(int position, int64_t round) const {
    return parts_[static_cast<size_t>(position)].out + Slot(round) * out_slot_bytes_;
  }
  TensorAddress* tensors(int position) const { return parts_[static_cast<size_t>(position)].tensors; }
  int64_t Slot(int64_t round) const { return round % options_.slots; }

  // Sets a flag of this rank; what was written before is visible to who reads it.
  void Set(Flag RankFlags::* flag, uint64_t value) { (own_->*flag).store(value, std::memory_order_release); }
  void SetBallot(int64_t vote, uint64_t value) { own_->ballots[vote & 1].store(value, std::memory_order_release); }
  uint64_t ballot(int position, int64_t vote) const {
    return flags(position).ballots[vote & 1].load(std::memory_order_acquire);
  }
  void RingPeers();
  // Whether each other rank's flag has come to `value`.
  bool Reached(Flag RankFlags::* flag, uint64_t value) const;
  void AddMissing(Flag RankFlags::* flag, uint64_t value, std::vector<int32_t>* out) const;

 private:
  struct Part {
    SharedMemory memory;
    RankFlags* flags = nullptr;
    TensorAddress* tensors = nullptr;
    char* in = nullptr;
    char* out = nullptr;
  };

  Arena(std::shared_ptr<ShmHost> host, const std::vector<int32_t>& ranks, const ArenaOptions& options);
  int64_t PartBytes() const;
  Status Adopt(SharedMemory memory, Part* part) const;

  std::shared_ptr<ShmHost> host_;
  std::vector<int32_t> ranks_;
  int position_ = 0;
  ArenaOptions options_;
  int64_t out_slot_bytes_ = 0;
  std::vector<Part> parts_;
  RankFlags* own_ = nullptr;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_ARENA_H_
