#include "transport/shm/arena.h"

#include <string.h>

#include <algorithm>

namespace spark_hvd {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

constexpr int64_t kFlagBytes = 4096;
constexpr int64_t kTensorBytes = Arena::kMaxTensors * static_cast<int64_t>(sizeof(TensorAddress));

}  // namespace

Arena::Arena(std::shared_ptr<ShmHost> host, const std::vector<int32_t>& ranks, const ArenaOptions& options)
    : host_(std::move(host)), options_(options) {
  for (int32_t rank : ranks) {
    if (host_->LocalRank(rank) < 0) continue;
    if (rank == host_->rank()) position_ = static_cast<int>(ranks_.size());
    ranks_.push_back(rank);
  }
  const int64_t size = static_cast<int64_t>(ranks_.size());
  options_.chunk_bytes = RoundUp(std::max(options_.chunk_bytes, size * options_.least_part_bytes), 4096);
  options_.small_bytes = std::min(options_.small_bytes, options_.chunk_bytes);
  // A part is at most its even share and what alignment adds.
  out_slot_bytes_ = RoundUp(options_.chunk_bytes / size + 128, 4096);
  parts_.resize(ranks_.size());
}

int64_t Arena::PartBytes() const {
  return kFlagBytes + RoundUp(kTensorBytes, 4096) + options_.slots * (options_.chunk_bytes + out_slot_bytes_);
}

Status Arena::Adopt(SharedMemory memory, Part* part) const {
  if (memory.bytes() < PartBytes()) return Status::Error(HVD_INTERNAL, "a peer's arena has another size");
  memory.HideFromChildren();
  char* at = memory.data();
  part->flags = reinterpret_cast<RankFlags*>(at);
  part->tensors = reinterpret_cast<TensorAddress*>(at + kFlagBytes);
  part->in = at + kFlagBytes + RoundUp(kTensorBytes, 4096);
  part->out = part->in + options_.slots * options_.chunk_bytes;
  part->memory = std::move(memory);
  return Status::Ok();
}

Status Arena::Open(std::shared_ptr<ShmHost> host, const std::vector<int32_t>& ranks, const Exchange& exchange,
                   const ArenaOptions& options, std::shared_ptr<Arena>* out, std::string* why) {
  std::shared_ptr<Arena> arena(new Arena(std::move(host), ranks, options));
  SharedMemory own;
  Status trouble = SharedMemory::Create(arena->PartBytes(), &own);
  const MemoryAddress address = own.address();
  // First round: where each rank's part is; second: whether all could be mapped. A text tells of trouble.
  std::vector<std::string> all;
  std::string mine = trouble.ok() ? std::string(reinterpret_cast<const char*>(&address), sizeof address) : "";
  Status status = exchange(mine, &all);
  if (!status.ok()) return status;
  for (size_t i = 0; i < ranks.size() && trouble.ok(); ++i) {
    const auto local = std::find(arena->ranks_.begin(), arena->ranks_.end(), ranks[i]);
    if (local == arena->ranks_.end() || all[i].size() != sizeof(MemoryAddress)) continue;
    const auto position = static_cast<size_t>(local - arena->ranks_.begin());
    SharedMemory memory;
    if (static_cast<int>(position) != arena->position_) {
      MemoryAddress theirs;
      memcpy(&theirs, all[i].data(), sizeof theirs);
      trouble = SharedMemory::Open(theirs, &memory);
    } else {
      memory = std::move(own);
    }
    if (trouble.ok()) trouble = arena->Adopt(std::move(memory), &arena->parts_[position]);
  }
  status = exchange(trouble.message, &all);
  if (!status.ok()) return status;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].empty()) *why += (why->empty() ? "rank " : "; rank ") + std::to_string(ranks[i]) + ": " + all[i];
  }
  if (!why->empty()) return status;
  Part& part = arena->parts_[static_cast<size_t>(arena->position_)];
  part.memory.CloseDescriptor();
  arena->own_ = part.flags;
  *out = std::move(arena);
  return status;
}

void Arena::RingPeers() {
  for (int position = 0; position < size(); ++position) {
    if (position != position_) host_->bell()->RingPeer(ranks_[static_cast<size_t>(position)]);
  }
}

bool Arena::Reached(Flag RankFlags::* flag, uint64_t value) const {
  for (int position = 0; position < size(); ++position) {
    if (position != position_ && (flags(position).*flag).load(std::memory_order_acquire) < value) return false;
  }
  return true;
}

void Arena::AddMissing(Flag RankFlags::* flag, uint64_t value, std::vector<int32_t>* out) const {
  for (int position = 0; position < size(); ++position) {
    if (position != position_ && (flags(position).*flag).load(std::memory_order_acquire) < value) {
      out->push_back(position);
    }
  }
}

}  // namespace spark_hvd
