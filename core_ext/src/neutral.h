// What a rank without data adds to a reduction: values that leave the result as it is.
#ifndef SPARK_HVD_SRC_NEUTRAL_H_
#define SPARK_HVD_SRC_NEUTRAL_H_

#include <cstdint>

namespace spark_hvd {

// Zero for sum, average and adasum, one for product, the largest value for min, the smallest for max.
void FillNeutral(void* data, int64_t count, int32_t dtype, int32_t op);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_NEUTRAL_H_
