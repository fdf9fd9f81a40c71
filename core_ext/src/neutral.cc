#include "neutral.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "types.h"

namespace spark_hvd {
namespace {

template <typename T>
void Fill(void* data, int64_t count, T value) {
  std::fill_n(static_cast<T*>(data), count, value);
}

template <typename T>
T Extreme(int32_t op) {
  using Limits = std::numeric_limits<T>;
  if (op == HVD_PRODUCT) return T{1};
  if constexpr (Limits::has_infinity) return op == HVD_MIN ? Limits::infinity() : -Limits::infinity();
  return op == HVD_MIN ? Limits::max() : Limits::lowest();
}

// Bits of 16-bit floats.
uint16_t Extreme16(int32_t op, uint16_t one, uint16_t infinity) {
  if (op == HVD_PRODUCT) return one;
  return op == HVD_MIN ? infinity : static_cast<uint16_t>(infinity | 0x8000u);
}

}  // namespace

void FillNeutral(void* data, int64_t count, int32_t dtype, int32_t op) {
  if (op != HVD_MIN && op != HVD_MAX && op != HVD_PRODUCT) {
    std::memset(data, 0, static_cast<size_t>(count * ElementSize(dtype)));
    return;
  }
  switch (dtype) {
    case HVD_FLOAT32:
      return Fill(data, count, Extreme<float>(op));
    case HVD_FLOAT64:
      return Fill(data, count, Extreme<double>(op));
    case HVD_UINT8:
      return Fill(data, count, Extreme<uint8_t>(op));
    case HVD_INT8:
      return Fill(data, count, Extreme<int8_t>(op));
    case HVD_INT16:
      return Fill(data, count, Extreme<int16_t>(op));
    case HVD_INT32:
      return Fill(data, count, Extreme<int32_t>(op));
    case HVD_INT64:
      return Fill(data, count, Extreme<int64_t>(op));
    case HVD_FLOAT16:
      return Fill(data, count, Extreme16(op, 0x3c00, 0x7c00));
    case HVD_BFLOAT16:
      return Fill(data, count, Extreme16(op, 0x3f80, 0x7f80));
    case HVD_BOOL:
      return Fill(data, count, static_cast<uint8_t>(op == HVD_MAX ? 0 : 1));
    default:
      return;
  }
}

}  // namespace spark_hvd
