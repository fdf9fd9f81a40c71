// Arithmetic on host memory: reductions over ranks. The order of the operations is part of the contract.
//
// Kernels exist for several instruction sets; the best one that the processor has is taken when the program runs. All
// of them give the same bits: same order, no fused multiply-add, no approximation.
#ifndef SPARK_HVD_SRC_REDUCTION_H_
#define SPARK_HVD_SRC_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "types.h"

namespace spark_hvd {

// What happens to each element: every input is multiplied by prescale, then they are combined from left to right, then
// the result is divided by the divisor and multiplied by postscale. Floats do all this in their own type, 16-bit floats
// in float32 with one rounding at the end. Integers wrap around; their division and scaling truncate toward zero. A NaN
// in any input makes minimum and maximum NaN.
struct Arithmetic {
  int32_t dtype = HVD_FLOAT32;
  int32_t op = HVD_SUM;  // HVD_AVERAGE is a sum: see divisor
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;

  // That of a collective over `ranks`.
  static Arithmetic Of(int32_t dtype, int32_t op, const Scaling& scaling, int64_t ranks);
};

// Reduces `ranks` inputs of `count` elements and writes the result to each of the `copies` outputs. An output may be
// one of the inputs, but may not overlap it otherwise.
void Reduce(const void* const* inputs, int ranks, void* const* outputs, int copies, int64_t count,
            const Arithmetic& arithmetic);

enum class InstructionSet { kPortable, kAvx2, kAvx512 };
// The best one that this processor has.
InstructionSet BestInstructionSet();
// Reduce() with the kernels of one set, which the processor must have.
void ReduceWith(InstructionSet set, const void* const* inputs, int ranks, void* const* outputs, int copies,
                int64_t count, const Arithmetic& arithmetic);

// 16-bit floats in float32, exactly, and back with one rounding. The output of Narrow may be its input.
void Widen(const void* in, float* out, int64_t count, int32_t dtype);
void Narrow(const float* in, void* out, int64_t count, int32_t dtype);
// Reduce() of 16-bit floats for who has more to add: what comes out is float32, neither divided nor postscaled.
void ReduceWide(const void* const* inputs, int ranks, float* out, int64_t count, const Arithmetic& arithmetic);

// out[i] = inputs[0][i] + inputs[1][i] + ..., scaled; the prescale is not applied.
void SumInOrder(const std::vector<const void*>& inputs, void* out, int64_t count, int32_t dtype,
                const Scaling& scaling);
// out[i] = in[i] * factor. `out` may equal `in`.
void Scale(const void* in, void* out, int64_t count, int32_t dtype, double factor);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_REDUCTION_H_
