// Collectives over any Link, in host memory: every rank speaks to every other.
//
// The order of the operations of a reduction is the same for each element in each of its ways (sliced, small), so all
// ranks get the same bits, in every run.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_

#include <memory>

#include "fusion.h"
#include "transport/direct/stream.h"
#include "transport/link.h"
#include "transport/operation.h"
#include "transport/provider.h"

namespace spark_hvd {

struct DirectOptions {
  int64_t piece_bytes = 256 << 10;
  int64_t small_bytes = 16 << 10;  // what one rank sends in all, up to which an allreduce goes whole to everybody
  int64_t window = 4;              // pieces under way in each direction
};

class DirectTransport : public Transport {
 public:
  DirectTransport(std::shared_ptr<Link> link, Members members, DirectOptions options = {});

  const char* name() const override { return "mpi"; }
  bool Serves(const Collective& collective) const override { return collective.op != HVD_ADASUM; }
  // One operation at a time.
  std::unique_ptr<Operation> Start(const Collective& collective) override;

 private:
  std::shared_ptr<Link> link_;
  const Circle circle_;
  DirectOptions options_;
  ScratchBuffer scratch_;  // contributions of the others
  ScratchBuffer packing_;  // several tensors in one
};

class DirectProvider : public Provider {
 public:
  explicit DirectProvider(std::shared_ptr<Link> link, DirectOptions options = {})
      : link_(std::move(link)), options_(options) {}

  Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) override;
  std::unique_ptr<Consent> OpenConsent(const Members& members) override;

 private:
  std::shared_ptr<Link> link_;
  const DirectOptions options_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_DIRECT_TRANSPORT_H_
