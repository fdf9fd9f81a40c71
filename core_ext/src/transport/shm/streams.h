// The collectives that carry data from rank to rank inside a host: each rank writes what others need into its own
// in-slots, round by round, and they read it there.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_STREAMS_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_STREAMS_H_

#include <vector>

#include "reduction.h"
#include "transport/shm/rounds.h"
#include "transport/shm/tensor_row.h"

namespace spark_hvd {

// No data: a round that all must have come to.
class ShmBarrier : public Rounds {
 public:
  ShmBarrier(ShmLane* lane, const Collective& collective) : Rounds(lane, collective.sequence) { plan_ = {1, 1, 0, 0}; }

 private:
  void Fill(int64_t, char*) override {}
  void Consume(int64_t) override {}
};

// The root fills, the others read.
class ShmBroadcast : public Rounds {
 public:
  ShmBroadcast(ShmLane* lane, const Collective& collective);

 private:
  Share ChunkOf(int64_t round) const { return EvenShare(0, row_.count(), round, plan_.rounds, row_.element_size()); }
  void Fill(int64_t round, char* slot) override;
  bool Reads(int peer, int64_t round) const override;
  void Consume(int64_t round) override;

  const TensorRow row_;
  const int root_;
};

// Everybody fills, everybody reads all.
class ShmAllgather : public Rounds {
 public:
  ShmAllgather(ShmLane* lane, const Collective& collective);
  // The parts `counts` of a row, each from the rank whose it is, into the tensors of the row.
  ShmAllgather(ShmLane* lane, int64_t sequence, const void* part, const std::vector<int64_t>& counts, TensorRow row);

 private:
  int64_t CountIn(int rank, int64_t round) const;
  void Fill(int64_t round, char* slot) override;
  bool Reads(int peer, int64_t round) const override;
  void Consume(int64_t round) override;

  const char* input_;
  const TensorRow row_;
  const int64_t chunk_;                   // elements
  std::vector<int64_t> counts_, begins_;  // by rank
};

// A slot has one lane per receiver. Ranks have as many rounds as they have to send and to receive.
class ShmAlltoall : public Rounds {
 public:
  ShmAlltoall(ShmLane* lane, const Collective& collective);

 private:
  void Fill(int64_t round, char* slot) override;
  bool Reads(int peer, int64_t round) const override;
  void Consume(int64_t round) override;

  const int64_t lane_bytes_;
  const char* input_;
  char* output_;
  std::vector<int64_t> sends_, send_begins_, receives_, receive_begins_;  // bytes, by rank
};

// A slot has one lane per receiver, who reduces what all ranks have put there for it.
class ShmReducescatter : public Rounds {
 public:
  ShmReducescatter(ShmLane* lane, const Collective& collective);
  // The parts `counts` of a row, each reduced to the rank whose it is. `wide`: 16-bit floats come out as ReduceWide()
  // has them.
  ShmReducescatter(ShmLane* lane, int64_t sequence, TensorRow row, void* part, const std::vector<int64_t>& counts,
                   const Arithmetic& arithmetic, bool wide = false);

 private:
  void Fill(int64_t round, char* slot) override;
  void Consume(int64_t round) override;

  const Arithmetic arithmetic_;
  const TensorRow row_;
  const int64_t lane_;  // elements
  const bool wide_;
  char* output_;
  std::vector<int64_t> counts_, begins_;  // of each rank's result
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_STREAMS_H_
