// A small allreduce: each rank sends its tensor whole to all others, and all reduce for themselves, in the same order.
// One message time instead of two.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_WHOLE_ALLREDUCE_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_WHOLE_ALLREDUCE_H_

#include <vector>

#include "fusion.h"
#include "reduction.h"
#include "transport/direct/packed.h"
#include "transport/direct/stream.h"
#include "transport/operation.h"

namespace spark_hvd {

class WholeAllreduce : public Operation {
 public:
  WholeAllreduce(const Circle& circle, const Collective& collective, ScratchBuffer* scratch, ScratchBuffer* packing);
  ~WholeAllreduce() override;

  Status Advance(bool* moved, bool* done) override;
  std::vector<int32_t> Missing() const override;

 private:
  const Circle circle_;
  const int32_t position_, ranks_;
  const Arithmetic arithmetic_;
  const Packed packed_;
  const int64_t bytes_;
  std::vector<const void*> inputs_;
  std::vector<char*> inboxes_;
  std::vector<Stream> in_, out_;
  bool posted_ = false;
  bool ended_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_WHOLE_ALLREDUCE_H_
