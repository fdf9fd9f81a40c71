// Small allreduces that are ready together are carried out as one. Owns the plan (pure) and the kind of buffer.
//
// Fusion never changes a result: each element is summed over the ranks in one order wherever it lies.
#ifndef SPARK_HVD_SRC_FUSION_H_
#define SPARK_HVD_SRC_FUSION_H_

#include <memory>
#include <vector>

#include "types.h"

namespace spark_hvd {

// Whether both can be carried out as one collective.
bool CanFuse(const Request& a, const Request& b);

// Groups of indices into `ready`. Collectives that can be fused share a group up to `threshold` bytes; all else stands
// alone. Neighbours of one explicit group stay together whatever their size. Groups are ordered by their first member,
// members by index.
std::vector<std::vector<size_t>> PlanFusion(const std::vector<Request>& ready, int64_t threshold);

// Memory that grows to what was asked for and is kept between steps.
class ScratchBuffer {
 public:
  // At least `bytes`, aligned to a cache line.
  char* Reserve(int64_t bytes);

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  int64_t capacity_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_FUSION_H_
