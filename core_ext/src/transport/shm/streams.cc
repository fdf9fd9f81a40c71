#include "transport/shm/streams.h"

#include <algorithm>
#include <cstring>

namespace spark_hvd {
namespace {

std::vector<int64_t> InBytes(const std::vector<int64_t>& counts, int32_t dtype) {
  std::vector<int64_t> bytes = counts;
  for (int64_t& value : bytes) value *= ElementSize(dtype);
  return bytes;
}

std::vector<int64_t> Begins(const std::vector<int64_t>& bytes) {
  std::vector<int64_t> begins;
  int64_t at = 0;
  for (int64_t value : bytes) {
    begins.push_back(at);
    at += value;
  }
  return begins;
}

int64_t RoundsFor(int64_t bytes, int64_t round_bytes) { return (bytes + round_bytes - 1) / round_bytes; }

int64_t LargestOther(const std::vector<int64_t>& bytes, int self) {
  int64_t largest = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (static_cast<int>(i) != self) largest = std::max(largest, bytes[i]);
  }
  return largest;
}

// One of even lanes of a chunk, in whole cache lines.
int64_t LaneBytes(const Arena& arena) { return arena.options().chunk_bytes / arena.size() / 64 * 64; }

void Copy(const char* from, char* to, int64_t bytes) {
  if (bytes > 0 && from != to) std::memmove(to, from, static_cast<size_t>(bytes));
}

}  // namespace

ShmBroadcast::ShmBroadcast(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence), row_(c.spans, ElementSize(c.dtype)), root_(c.root) {
  const int64_t rounds = RoundsFor(row_.count() * row_.element_size(), arena_->options().chunk_bytes - 64);
  const bool is_root = position() == root_;
  plan_ = {is_root ? rounds : 0, is_root ? 0 : rounds, 0, rounds};
  if (!is_root) return;
  for (const Span& span : c.spans) {
    const int64_t bytes = span.count * row_.element_size();
    Copy(static_cast<const char*>(span.input), static_cast<char*>(span.output), bytes);
  }
}

void ShmBroadcast::Fill(int64_t round, char* slot) {
  const Share chunk = ChunkOf(round);
  row_.CopyInputs(chunk.begin, chunk.end, slot);
}

bool ShmBroadcast::Reads(int peer, int64_t) const { return peer == root_; }

void ShmBroadcast::Consume(int64_t round) {
  const Share chunk = ChunkOf(round);
  row_.CopyOutputs(chunk.begin, chunk.end, InSlot(root_, round));
}

ShmAllgather::ShmAllgather(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence),
      input_(static_cast<const char*>(c.spans.at(0).input)),
      output_(static_cast<char*>(c.spans.at(0).output)),
      bytes_(InBytes(c.send_counts, c.dtype)),
      begins_(Begins(bytes_)) {
  const int64_t chunk = arena_->options().chunk_bytes;
  const int64_t rounds = RoundsFor(*std::max_element(bytes_.begin(), bytes_.end()), chunk);
  const auto self = static_cast<size_t>(position());
  plan_ = {RoundsFor(bytes_[self], chunk), rounds, 0, rounds};
  Copy(input_, output_ + begins_[self], bytes_[self]);
}

int64_t ShmAllgather::BytesIn(int rank, int64_t round) const {
  const int64_t chunk = arena_->options().chunk_bytes;
  return std::clamp<int64_t>(bytes_[static_cast<size_t>(rank)] - round * chunk, 0, chunk);
}

void ShmAllgather::Fill(int64_t round, char* slot) {
  Copy(output_ + begins_[static_cast<size_t>(position())] + round * arena_->options().chunk_bytes, slot,
       BytesIn(position(), round));
}

bool ShmAllgather::Reads(int peer, int64_t round) const { return BytesIn(peer, round) > 0; }

void ShmAllgather::Consume(int64_t round) {
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (position() + step) % ranks();
    Copy(InSlot(peer, round), output_ + begins_[static_cast<size_t>(peer)] + round * arena_->options().chunk_bytes,
         BytesIn(peer, round));
  }
}

ShmAlltoall::ShmAlltoall(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence),
      lane_bytes_(LaneBytes(*arena_)),
      input_(static_cast<const char*>(c.spans.at(0).input)),
      output_(static_cast<char*>(c.spans.at(0).output)),
      sends_(InBytes(c.send_counts, c.dtype)),
      send_begins_(Begins(sends_)),
      receives_(InBytes(c.receive_counts, c.dtype)),
      receive_begins_(Begins(receives_)) {
  // The numbers of rounds differ by rank, so they do not move the turn of the slots.
  plan_ = {RoundsFor(LargestOther(sends_, position()), lane_bytes_),
           RoundsFor(LargestOther(receives_, position()), lane_bytes_), 0, 0};
  const auto self = static_cast<size_t>(position());
  Copy(input_ + send_begins_[self], output_ + receive_begins_[self], sends_[self]);
}

void ShmAlltoall::Fill(int64_t round, char* slot) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == position()) continue;
    const auto to = static_cast<size_t>(peer);
    Copy(input_ + send_begins_[to] + round * lane_bytes_, slot + peer * lane_bytes_,
         std::min(lane_bytes_, sends_[to] - round * lane_bytes_));
  }
}

bool ShmAlltoall::Reads(int peer, int64_t round) const {
  return receives_[static_cast<size_t>(peer)] > round * lane_bytes_;
}

void ShmAlltoall::Consume(int64_t round) {
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (position() + step) % ranks();
    const auto from = static_cast<size_t>(peer);
    Copy(InSlot(peer, round) + position() * lane_bytes_, output_ + receive_begins_[from] + round * lane_bytes_,
         std::min(lane_bytes_, receives_[from] - round * lane_bytes_));
  }
}

ShmReducescatter::ShmReducescatter(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence),
      arithmetic_(Arithmetic::Of(c.dtype, c.op, c.scaling, arena_->size())),
      lane_bytes_(LaneBytes(*arena_)),
      input_(static_cast<const char*>(c.spans.at(0).input)),
      output_(static_cast<char*>(c.spans.at(0).output)),
      bytes_(InBytes(c.receive_counts, c.dtype)),
      begins_(Begins(bytes_)) {
  const int64_t rounds = RoundsFor(*std::max_element(bytes_.begin(), bytes_.end()), lane_bytes_);
  plan_ = {rounds, rounds, 0, rounds};
}

void ShmReducescatter::Fill(int64_t round, char* slot) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == position()) continue;
    const auto to = static_cast<size_t>(peer);
    Copy(input_ + begins_[to] + round * lane_bytes_, slot + peer * lane_bytes_,
         std::min(lane_bytes_, bytes_[to] - round * lane_bytes_));
  }
}

void ShmReducescatter::Consume(int64_t round) {
  const auto self = static_cast<size_t>(position());
  const int64_t bytes = std::min(lane_bytes_, bytes_[self] - round * lane_bytes_);
  if (bytes <= 0) return;
  std::vector<const void*> inputs(static_cast<size_t>(ranks()));
  for (int peer = 0; peer < ranks(); ++peer) {
    inputs[static_cast<size_t>(peer)] = peer == position() ? input_ + begins_[self] + round * lane_bytes_
                                                           : InSlot(peer, round) + position() * lane_bytes_;
  }
  void* output = output_ + round * lane_bytes_;
  Reduce(inputs.data(), ranks(), &output, 1, bytes / ElementSize(arithmetic_.dtype), arithmetic_);
}

}  // namespace spark_hvd
