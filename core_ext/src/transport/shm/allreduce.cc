#include "transport/shm/allreduce.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace spark_hvd {
namespace {

Arithmetic ArithmeticOf(const Collective& c, int ranks) { return Arithmetic::Of(c.dtype, c.op, c.scaling, ranks); }

// Elements of a chunk at most; an even share may have a cache line more.
int64_t ChunkCount(const Arena& arena, int64_t element_size) {
  return (arena.options().chunk_bytes - 64) / element_size;
}

// The value of `entered`: that of a later operation is larger, whatever it says.
uint64_t EntryFlag(int64_t sequence, bool own) { return static_cast<uint64_t>(sequence) << 1 | (own ? 1 : 0); }

}  // namespace

SmallAllreduce::SmallAllreduce(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence), row_(c.spans, ElementSize(c.dtype)), arithmetic_(ArithmeticOf(c, lane->arena->size())) {
  plan_ = {1, 1, 0, 1};
}

void SmallAllreduce::Fill(int64_t, char* slot) { row_.CopyInputs(0, row_.count(), slot); }

void SmallAllreduce::Consume(int64_t round) {
  std::vector<const void*> inputs(static_cast<size_t>(ranks()));
  int64_t at = 0;
  row_.ForEach(0, row_.count(), [&](size_t i, int64_t byte, int64_t count) {
    for (int peer = 0; peer < ranks(); ++peer) inputs[static_cast<size_t>(peer)] = InSlot(peer, round) + at;
    void* output = row_.Output(i) + byte;
    Reduce(inputs.data(), ranks(), &output, 1, count, arithmetic_);
    at += static_cast<int64_t>(row_.Bytes(count));
  });
}

ChunkedAllreduce::ChunkedAllreduce(ShmLane* lane, const Collective& c)
    : Rounds(lane, c.sequence), row_(c.spans, ElementSize(c.dtype)), arithmetic_(ArithmeticOf(c, lane->arena->size())) {
  const int64_t chunk = ChunkCount(*arena_, row_.element_size());
  const int64_t rounds = (row_.count() + chunk - 1) / chunk;
  plan_ = {rounds, rounds, rounds, rounds};
}

Share ChunkedAllreduce::ChunkOf(int64_t round) const {
  return EvenShare(0, row_.count(), round, plan_.rounds, row_.element_size());
}

Share ChunkedAllreduce::PartOf(int rank, int64_t round) const {
  const Share chunk = ChunkOf(round);
  return EvenShare(chunk.begin, chunk.end, rank, ranks(), row_.element_size());
}

void ChunkedAllreduce::Fill(int64_t round, char* slot) {
  const Share chunk = ChunkOf(round), mine = PartOf(position(), round);
  row_.CopyInputs(chunk.begin, mine.begin, slot);
  row_.CopyInputs(mine.end, chunk.end, slot + row_.Bytes(mine.end - chunk.begin));
}

void ChunkedAllreduce::Consume(int64_t round) {
  const Share chunk = ChunkOf(round), mine = PartOf(position(), round);
  std::vector<const void*> inputs(static_cast<size_t>(ranks()));
  size_t in_slot = row_.Bytes(mine.begin - chunk.begin), in_result = 0;
  row_.ForEach(mine.begin, mine.end, [&](size_t i, int64_t byte, int64_t count) {
    for (int peer = 0; peer < ranks(); ++peer) {
      inputs[static_cast<size_t>(peer)] = peer == position() ? row_.Input(i) + byte : InSlot(peer, round) + in_slot;
    }
    void* outputs[] = {row_.Output(i) + byte, OutSlot(position(), round) + in_result};
    Reduce(inputs.data(), ranks(), outputs, 2, count, arithmetic_);
    in_slot += row_.Bytes(count);
    in_result += row_.Bytes(count);
  });
}

void ChunkedAllreduce::Take(int64_t round) {
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (position() + step) % ranks();
    const Share part = PartOf(peer, round);
    row_.CopyOutputs(part.begin, part.end, OutSlot(peer, round));
  }
}

LargeAllreduce::LargeAllreduce(ShmLane* lane, const Collective& c)
    : lane_(lane),
      arena_(lane->arena.get()),
      sequence_(c.sequence),
      row_(c.spans, ElementSize(c.dtype)),
      arithmetic_(ArithmeticOf(c, arena_->size())),
      collective_(c) {
  if (static_cast<int64_t>(c.spans.size()) > Arena::kMaxTensors) return;
  for (const Span& span : c.spans) {
    TensorAddress address;
    if (!lane->segments->Find(span.output, span.count * row_.element_size(), &address)) {
      addresses_.clear();
      return;
    }
    addresses_.push_back(address);
  }
}

void LargeAllreduce::Enter() {
  const bool own = !addresses_.empty();
  if (own) {
    // The peers read what they reduce where they write it.
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const Span& span = row_.spans()[i];
      if (span.input != span.output && span.count > 0) std::memcpy(span.output, span.input, row_.Bytes(span.count));
    }
    std::copy(addresses_.begin(), addresses_.end(), arena_->tensors(arena_->position()));
  }
  arena_->Set(&RankFlags::entered, EntryFlag(sequence_, own));
  arena_->RingPeers();
  stage_ = own ? Stage::kEntering : Stage::kChunks;
}

bool LargeAllreduce::AllOwn() const {
  for (int peer = 0; peer < arena_->size(); ++peer) {
    if (arena_->flags(peer).entered.load(std::memory_order_acquire) != EntryFlag(sequence_, true)) return false;
  }
  return true;
}

Status LargeAllreduce::ReduceShare() {
  const int ranks = arena_->size();
  const Share mine = EvenShare(0, row_.count(), arena_->position(), ranks, row_.element_size());
  std::vector<void*> tensors(static_cast<size_t>(ranks));
  Status status;
  row_.ForEach(mine.begin, mine.end, [&](size_t i, int64_t byte, int64_t count) {
    for (int peer = 0; peer < ranks && status.ok(); ++peer) {
      char* data = row_.Output(i);
      if (peer != arena_->position()) {
        status = arena_->host()->peer_memory()->Find(arena_->tensors(peer)[i], &data);
      }
      tensors[static_cast<size_t>(peer)] = data + byte;
    }
    if (status.ok()) Reduce(tensors.data(), ranks, tensors.data(), ranks, count, arithmetic_);
  });
  if (status.ok()) return status;
  // The descriptors of a peer that is killed go a moment before it counts as ended: that is what to tell.
  constexpr double kLong = 1e9;
  Status peers;
  for (int i = 0; i < 200 && peers.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 0 : 1));
    peers = arena_->host()->CheckPeers(Clock::now(), kLong);
  }
  return peers.ok() ? status : peers;
}

Status LargeAllreduce::Advance(bool* moved, bool* done) {
  *done = false;
  if (stage_ == Stage::kStart) {
    Enter();
    *moved = true;
  }
  if (stage_ == Stage::kEntering) {
    // A peer cannot go on to its next operation before this rank has done its share of this one.
    if (!arena_->Reached(&RankFlags::entered, EntryFlag(sequence_, false))) return Status::Ok();
    *moved = true;
    stage_ = Stage::kChunks;
    if (AllOwn()) {
      Status status = ReduceShare();
      if (!status.ok()) return status;
      arena_->Set(&RankFlags::consumed, Mark(sequence_, kAllRounds));
      arena_->RingPeers();
      stage_ = Stage::kLeaving;
    }
  }
  if (stage_ == Stage::kLeaving && arena_->Reached(&RankFlags::consumed, Mark(sequence_, kAllRounds))) {
    stage_ = Stage::kDone;
    *moved = true;
  }
  if (stage_ == Stage::kChunks) {
    if (!chunks_) chunks_ = std::make_unique<ChunkedAllreduce>(lane_, collective_);
    return chunks_->Advance(moved, done);
  }
  *done = stage_ == Stage::kDone;
  return Status::Ok();
}

std::vector<int32_t> LargeAllreduce::Missing() const {
  if (chunks_) return chunks_->Missing();
  std::vector<int32_t> missing;
  if (stage_ == Stage::kEntering) arena_->AddMissing(&RankFlags::entered, EntryFlag(sequence_, false), &missing);
  if (stage_ == Stage::kLeaving) arena_->AddMissing(&RankFlags::consumed, Mark(sequence_, kAllRounds), &missing);
  return missing;
}

}  // namespace spark_hvd
