#include "transport/shm/streams.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace spark_hvd {
namespace {

std::vector<int64_t> InBytes(const std::vector<int64_t>& counts, int32_t dtype) {
  std::vector<int64_t> bytes = counts;
  for (int64_t& value : bytes) value *= ElementSize(dtype);
  return bytes;
}

std::vector<int64_t> Begins(const std::vector<int64_t>& extents) {
  std::vector<int64_t> begins;
  int64_t at = 0;
  for (int64_t value : extents) {
    begins.push_back(at);
    at += value;
  }
  return begins;
}

int64_t RoundsFor(int64_t extent, int64_t step) { return (extent + step - 1) / step; }

int64_t Sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

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
    : ShmAllgather(lane, c.sequence, c.spans.at(0).input, c.receive_counts,
                   TensorRow({{nullptr, c.spans.at(0).output, Sum(c.receive_counts)}}, ElementSize(c.dtype))) {}

ShmAllgather::ShmAllgather(ShmLane* lane, int64_t sequence, const void* part, const std::vector<int64_t>& counts,
                           TensorRow row)
    : Rounds(lane, sequence),
      input_(static_cast<const char*>(part)),
      row_(std::move(row)),
      chunk_(arena_->options().chunk_bytes / row_.element_size()),
      counts_(counts),
      begins_(Begins(counts)) {
  const auto self = static_cast<size_t>(position());
  const int64_t rounds = RoundsFor(*std::max_element(counts_.begin(), counts_.end()), chunk_);
  plan_ = {RoundsFor(counts_[self], chunk_), rounds, 0, rounds};
}

int64_t ShmAllgather::CountIn(int rank, int64_t round) const {
  return std::clamp<int64_t>(counts_[static_cast<size_t>(rank)] - round * chunk_, 0, chunk_);
}

void ShmAllgather::Fill(int64_t round, char* slot) {
  const char* from = input_ + round * chunk_ * row_.element_size();
  const int64_t count = CountIn(position(), round), begin = begins_[static_cast<size_t>(position())] + round * chunk_;
  Copy(from, slot, static_cast<int64_t>(row_.Bytes(count)));
  row_.CopyOutputs(begin, begin + count, slot);
}

bool ShmAllgather::Reads(int peer, int64_t round) const { return CountIn(peer, round) > 0; }

void ShmAllgather::Consume(int64_t round) {
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (position() + step) % ranks();
    const int64_t begin = begins_[static_cast<size_t>(peer)] + round * chunk_;
    row_.CopyOutputs(begin, begin + CountIn(peer, round), InSlot(peer, round));
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
    : ShmReducescatter(
          lane, c.sequence, TensorRow({{c.spans.at(0).input, nullptr, Sum(c.receive_counts)}}, ElementSize(c.dtype)),
          c.spans.at(0).output, c.receive_counts, Arithmetic::Of(c.dtype, c.op, c.scaling, lane->arena->size())) {}

ShmReducescatter::ShmReducescatter(ShmLane* lane, int64_t sequence, TensorRow row, void* part,
                                   const std::vector<int64_t>& counts, const Arithmetic& arithmetic, bool wide)
    : Rounds(lane, sequence),
      arithmetic_(arithmetic),
      row_(std::move(row)),
      lane_(LaneBytes(*arena_) / row_.element_size()),
      wide_(wide),
      output_(static_cast<char*>(part)),
      counts_(counts),
      begins_(Begins(counts)) {
  const int64_t rounds = RoundsFor(*std::max_element(counts_.begin(), counts_.end()), lane_);
  plan_ = {rounds, rounds, 0, rounds};
}

void ShmReducescatter::Fill(int64_t round, char* slot) {
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto to = static_cast<size_t>(peer);
    const int64_t count = std::min(lane_, counts_[to] - round * lane_), begin = begins_[to] + round * lane_;
    if (peer != position()) row_.CopyInputs(begin, begin + count, slot + row_.Bytes(peer * lane_));
  }
}

void ShmReducescatter::Consume(int64_t round) {
  const auto self = static_cast<size_t>(position());
  const int64_t total = std::min(lane_, counts_[self] - round * lane_), begin = begins_[self] + round * lane_;
  std::vector<const void*> inputs(static_cast<size_t>(ranks()));
  int64_t at = 0;  // elements
  row_.ForEach(begin, begin + total, [&](size_t i, int64_t byte, int64_t count) {
    for (int peer = 0; peer < ranks(); ++peer) {
      inputs[static_cast<size_t>(peer)] =
          peer == position() ? row_.Input(i) + byte : InSlot(peer, round) + row_.Bytes(position() * lane_ + at);
    }
    const int64_t place = round * lane_ + at;
    if (wide_) {
      ReduceWide(inputs.data(), ranks(), reinterpret_cast<float*>(output_) + place, count, arithmetic_);
    } else {
      void* output = output_ + row_.Bytes(place);
      Reduce(inputs.data(), ranks(), &output, 1, count, arithmetic_);
    }
    at += count;
  });
}

}  // namespace spark_hvd
