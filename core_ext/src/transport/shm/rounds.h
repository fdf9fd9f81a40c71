// Operations that go through the slots of an arena, round by round, without a step that waits.
//
// A round: fill (put what peers need into an in-slot), consume (read the peers' in-slots of this round; perhaps leave a
// result in an out-slot), take (read the peers' out-slots). Each step starts as soon as the flags allow it, the later
// steps first, so that data is still in the cache. Slots are used in turn, by all operations of the set together.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_ROUNDS_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_ROUNDS_H_

#include <memory>
#include <vector>

#include "transport/operation.h"
#include "transport/shm/arena.h"
#include "transport/shm/segments.h"

namespace spark_hvd {

// What the operations of a set leave to the next one.
struct ShmLane {
  explicit ShmLane(std::shared_ptr<Arena> arena_in, std::shared_ptr<Segments> segments_in)
      : arena(std::move(arena_in)),
        segments(std::move(segments_in)),
        in_marks(static_cast<size_t>(arena->options().slots)),
        out_marks(static_cast<size_t>(arena->options().slots)) {}

  const std::shared_ptr<Arena> arena;
  const std::shared_ptr<Segments> segments;
  int64_t round = 0;  // rounds of all operations so far, the same number on all ranks
  // What the peers' consumed and taken must have come to before a slot of this rank may be written again.
  std::vector<uint64_t> in_marks, out_marks;
};

// How many steps an operation has on this rank; `rounds` is the same on all ranks.
struct RoundPlan {
  int64_t fills = 0, consumes = 0, takes = 0, rounds = 0;
};

class Rounds : public Operation {
 public:
  Status Advance(bool* moved, bool* done) final;
  std::vector<int32_t> Missing() const override;

 protected:
  Rounds(ShmLane* lane, int64_t sequence) : lane_(lane), arena_(lane->arena.get()), sequence_(sequence) {}

  // Called until *begun; what must be settled between the ranks before the first round.
  virtual Status Begin(bool* moved, bool* begun) {
    (void)moved;
    *begun = true;
    return Status::Ok();
  }
  virtual void Fill(int64_t round, char* slot) = 0;
  // Whether Consume(round) reads the in-slot of that peer.
  virtual bool Reads(int peer, int64_t round) const {
    (void)peer;
    (void)round;
    return true;
  }
  virtual void Consume(int64_t round) = 0;
  virtual void Take(int64_t round) { (void)round; }

  int ranks() const { return arena_->size(); }
  int position() const { return arena_->position(); }
  const char* InSlot(int peer, int64_t round) const { return arena_->in_slot(peer, lane_->round + round); }
  char* OutSlot(int peer, int64_t round) const { return arena_->out_slot(peer, lane_->round + round); }
  void Publish(Flag RankFlags::* flag, uint64_t value) {
    arena_->Set(flag, value);
    arena_->RingPeers();
  }

  ShmLane* const lane_;
  Arena* const arena_;
  const int64_t sequence_;
  RoundPlan plan_;

 private:
  bool TryTake();
  bool TryConsume();
  bool TryFill();

  bool begun_ = false, finished_ = false;
  int64_t filled_ = 0, consumed_ = 0, taken_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_ROUNDS_H_
