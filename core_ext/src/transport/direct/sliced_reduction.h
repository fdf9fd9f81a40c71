// One large allreduce or reducescatter under way: which pieces were sent, received, reduced.
//
// The elements are cut into one slice per rank. Each rank receives the contributions of all others to its own slice,
// reduces them in ascending rank order, and, for an allreduce, sends the result to all.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_REDUCTION_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_REDUCTION_H_

#include <vector>

#include "fusion.h"
#include "reduction.h"
#include "transport/direct/packed.h"
#include "transport/direct/stream.h"
#include "transport/operation.h"

namespace spark_hvd {

class SlicedReduction : public Operation {
 public:
  // `scratch` is used until the operation ends.
  SlicedReduction(const Circle& circle, const Collective& collective, ScratchBuffer* scratch, ScratchBuffer* packing,
                  int64_t piece_bytes, int64_t window);
  ~SlicedReduction() override;

  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  // What passes between this rank and one other.
  struct Peer {
    Stream contributions_out, contributions_in, results_out, results_in;
  };

  int64_t SliceBegin(int32_t member) const { return begins_[member]; }
  int64_t Pieces(int32_t member) const;
  int64_t PieceBegin(int32_t member, int64_t piece) const { return SliceBegin(member) + piece * piece_count_; }
  int64_t PieceCount(int32_t member, int64_t piece) const;
  const char* Source(int64_t element) const { return source_ + element * element_size_; }
  char* Target(int64_t element) const { return target_ + element * element_size_; }
  char* Inbox(size_t peer_index, int64_t piece) const;

  Status Post(size_t peer_index, bool* moved);
  Status Take(bool* moved);
  bool ReduceNext();
  bool IsDone() const;

  const Circle circle_;
  const int32_t position_, ranks_;
  const int64_t element_size_, window_;
  const Arithmetic arithmetic_;
  const bool shares_results_;
  Packed packed_;
  std::vector<int64_t> begins_;  // of the slices, and the end
  int64_t piece_count_ = 1;
  const char* source_;
  char* target_;
  char* inbox_;
  std::vector<Peer> peers_;
  int64_t reduced_ = 0;  // pieces of my slice that are final
  bool ended_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_REDUCTION_H_
