#include "transport/shm/rounds.h"

#include <algorithm>

namespace spark_hvd {

Status Rounds::Advance(bool* moved, bool* done) {
  *done = finished_;
  if (finished_) return Status::Ok();
  if (!begun_) {
    Status status = Begin(moved, &begun_);
    if (!status.ok() || !begun_) return status;
    // Nobody waits for the steps that this rank does not have.
    if (plan_.consumes == 0) Publish(&RankFlags::consumed, Mark(sequence_, kAllRounds));
    *moved = true;
  }
  while (TryTake() || TryConsume() || TryFill()) *moved = true;
  finished_ = filled_ == plan_.fills && consumed_ == plan_.consumes && taken_ == plan_.takes;
  if (finished_) lane_->round += plan_.rounds;
  *done = finished_;
  return Status::Ok();
}

bool Rounds::TryTake() {
  if (taken_ == plan_.takes || taken_ == consumed_) return false;
  if (!arena_->Reached(&RankFlags::consumed, Mark(sequence_, taken_ + 1))) return false;
  Take(taken_++);
  Publish(&RankFlags::taken, Mark(sequence_, taken_ == plan_.takes ? kAllRounds : taken_));
  return true;
}

bool Rounds::TryConsume() {
  if (consumed_ == plan_.consumes || (consumed_ == filled_ && filled_ < plan_.fills)) return false;
  const uint64_t copied = Mark(sequence_, consumed_ + 1);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == position() || !Reads(peer, consumed_)) continue;
    if (arena_->flags(peer).copied.load(std::memory_order_acquire) < copied) return false;
  }
  if (plan_.takes > 0) {
    uint64_t& mark = lane_->out_marks[static_cast<size_t>(arena_->Slot(lane_->round + consumed_))];
    if (!arena_->Reached(&RankFlags::taken, mark)) return false;
    mark = copied;
  }
  Consume(consumed_++);
  Publish(&RankFlags::consumed, Mark(sequence_, consumed_ == plan_.consumes ? kAllRounds : consumed_));
  return true;
}

bool Rounds::TryFill() {
  if (filled_ == plan_.fills) return false;
  const int64_t round = lane_->round + filled_;
  uint64_t& mark = lane_->in_marks[static_cast<size_t>(arena_->Slot(round))];
  if (!arena_->Reached(&RankFlags::consumed, mark)) return false;
  Fill(filled_++, arena_->in_slot(position(), round));
  mark = Mark(sequence_, filled_);
  Publish(&RankFlags::copied, mark);
  return true;
}

std::vector<int32_t> Rounds::Missing() const {
  std::vector<int32_t> missing;
  if (finished_) return missing;
  if (taken_ < plan_.takes && taken_ < consumed_) {
    arena_->AddMissing(&RankFlags::consumed, Mark(sequence_, taken_ + 1), &missing);
  }
  if (consumed_ < plan_.consumes) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == position() || !Reads(peer, consumed_)) continue;
      if (arena_->flags(peer).copied.load() < Mark(sequence_, consumed_ + 1)) missing.push_back(peer);
    }
    const auto slot = static_cast<size_t>(arena_->Slot(lane_->round + consumed_));
    if (plan_.takes > 0) arena_->AddMissing(&RankFlags::taken, lane_->out_marks[slot], &missing);
  }
  if (filled_ < plan_.fills) {
    const auto slot = static_cast<size_t>(arena_->Slot(lane_->round + filled_));
    arena_->AddMissing(&RankFlags::consumed, lane_->in_marks[slot], &missing);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

}  // namespace spark_hvd
