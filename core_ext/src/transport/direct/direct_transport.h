// Collectives over any Link, in host memory: every rank speaks to every other.
//
// An allreduce is a reduce-scatter and an allgather in one flow. The elements are cut into one slice per rank. Each
// rank receives the contributions of all others to its own slice, sums them in ascending rank order, and sends the
// result to all. Slices are cut into pieces, so that sending, summing and receiving overlap and a piece stays in the
// cache. Small ones go whole to everybody, who sums for himself: one message time instead of two. Since the order of
// the additions is the same in both ways and for each slice, all ranks get the same bits, in every run. A broadcast
// goes down a binomial tree, piece by piece.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_

#include <memory>

#include "fusion.h"
#include "transport/link.h"
#include "transport/transport.h"

namespace spark_hvd {

struct DirectOptions {
  int64_t piece_bytes = 256 << 10;
  int64_t small_bytes = 16 << 10;  // what one rank sends in all, up to which an allreduce goes whole to everybody
  int64_t window = 4;              // pieces under way in each direction
};

class DirectTransport : public Transport {
 public:
  explicit DirectTransport(std::shared_ptr<Link> link, DirectOptions options = {});

  const char* name() const override { return "direct"; }
  Status Allreduce(const Reduction& reduction, Patience* patience) override;
  Status Broadcast(void* data, int64_t bytes, int root, Patience* patience) override;

 private:
  Status AllreduceSmall(const Reduction& reduction, const void* source, Patience* patience);

  std::shared_ptr<Link> link_;
  DirectOptions options_;
  FusionBuffer scratch_;  // contributions of the others
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_
