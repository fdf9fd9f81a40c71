// Arithmetic on host memory: sums over ranks and scaling. The order of the additions is part of the contract.
#ifndef SPARK_HVD_SRC_REDUCTION_H_
#define SPARK_HVD_SRC_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "types.h"

namespace spark_hvd {

// out[i] = inputs[0][i] + inputs[1][i] + ... from left to right, in the element type; then, as `scaling` says, divided
// by the number of inputs (integers: truncated toward zero) and multiplied by postscale. `out` may be one of the
// inputs.
void SumInOrder(const std::vector<const void*>& inputs, void* out, int64_t count, int32_t dtype,
                const Scaling& scaling);

// out[i] = in[i] * factor; integers are rounded toward zero. `out` may equal `in`.
void Scale(const void* in, void* out, int64_t count, int32_t dtype, double factor);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_REDUCTION_H_
