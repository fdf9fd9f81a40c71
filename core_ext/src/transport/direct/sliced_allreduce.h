// One large allreduce under way: which pieces were sent, received, summed. Owns no memory but its counters.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_ALLREDUCE_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_ALLREDUCE_H_

#include <vector>

#include "transport/direct/lane.h"
#include "transport/transport.h"

namespace spark_hvd {

class SlicedAllreduce {
 public:
  // `source` is what is summed (it may be reduction.output); `scratch` holds ScratchBytes().
  SlicedAllreduce(Link* link, const Reduction& reduction, const void* source, char* scratch, int64_t piece_bytes,
                  int64_t window);

  static int64_t ScratchBytes(int ranks, int64_t piece_bytes, int64_t window);
  Status Run(Patience* patience);

 private:
  // What passes between this rank and one other.
  struct Peer {
    Lane contributions_out, contributions_in, results_out, results_in;
    bool IsDone(int64_t my_pieces, int64_t peer_pieces) const;
  };

  int64_t SliceBegin(int rank) const { return reduction_.count * rank / ranks_; }
  int64_t Pieces(int rank) const;
  int64_t PieceBegin(int rank, int64_t piece) const { return SliceBegin(rank) + piece * piece_count_; }
  int64_t PieceCount(int rank, int64_t piece) const;
  const char* Source(int64_t element) const { return source_ + element * element_size_; }
  char* Output(int64_t element) const { return static_cast<char*>(reduction_.output) + element * element_size_; }
  char* Inbox(size_t peer_index, int64_t piece) const;

  Status Post(size_t peer_index, bool* moved);
  Status Advance(bool* moved);
  Status SumReady(bool* moved);
  bool IsDone() const;
  std::vector<int32_t> WaitingFor() const;

  const Reduction& reduction_;
  const char* source_;
  char* scratch_;
  const int rank_, ranks_;
  const int64_t element_size_, piece_count_, window_;
  std::vector<Peer> peers_;
  int64_t summed_ = 0;  // pieces of my slice that are final
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_SLICED_ALLREDUCE_H_
