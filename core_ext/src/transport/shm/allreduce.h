// Allreduce inside a host: three ways, chosen by size and by where the tensors lie; the same bits in each.
//
// Small: everybody reduces everything from the in-slots; one step of waiting. Own memory (every tensor of every rank
// lies in memory that the ranks share): each rank reduces its share of all tensors in one pass and writes it to all
// ranks' tensors; nothing is copied. Else: each rank reduces its share of each chunk out of the in-slots, and the
// others copy it out.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_ALLREDUCE_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_ALLREDUCE_H_

#include <memory>

#include "reduction.h"
#include "transport/shm/rounds.h"
#include "transport/shm/tensor_row.h"

namespace spark_hvd {

class SmallAllreduce : public Rounds {
 public:
  SmallAllreduce(ShmLane* lane, const Collective& collective);

 private:
  void Fill(int64_t round, char* slot) override;
  void Consume(int64_t round) override;

  const TensorRow row_;
  const Arithmetic arithmetic_;
};

class ChunkedAllreduce : public Rounds {
 public:
  ChunkedAllreduce(ShmLane* lane, const Collective& collective);

 private:
  Share ChunkOf(int64_t round) const;
  Share PartOf(int rank, int64_t round) const;
  void Fill(int64_t round, char* slot) override;
  void Consume(int64_t round) override;
  void Take(int64_t round) override;

  const TensorRow row_;
  const Arithmetic arithmetic_;
};

// Starts as own memory if it can; goes on in chunks if another rank cannot.
class LargeAllreduce : public Operation {
 public:
  LargeAllreduce(ShmLane* lane, const Collective& collective);
  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  enum class Stage { kStart, kEntering, kLeaving, kChunks, kDone };

  void Enter();
  bool AllOwn() const;
  Status ReduceShare();

  ShmLane* const lane_;
  Arena* const arena_;
  const int64_t sequence_;
  const TensorRow row_;
  const Arithmetic arithmetic_;
  const Collective collective_;
  std::vector<TensorAddress> addresses_;  // empty: not all in own memory
  Stage stage_ = Stage::kStart;
  std::unique_ptr<ChunkedAllreduce> chunks_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_ALLREDUCE_H_
