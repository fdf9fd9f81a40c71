#include "reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace spark_hvd {
namespace {

// Elements that are summed over all ranks before the next ones are touched: they stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <typename T>
void Finish(T* values, int64_t count, size_t ranks, const Scaling& scaling) {
  if (scaling.average) {
    using Divisor = std::conditional_t<std::is_floating_point<T>::value, T, int64_t>;
    const Divisor divisor = static_cast<Divisor>(ranks);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / divisor);
  }
  if (scaling.postscale != 1.0) {
    if constexpr (std::is_floating_point<T>::value) {
      const T factor = static_cast<T>(scaling.postscale);
      for (int64_t i = 0; i < count; ++i) values[i] *= factor;
    } else {
      for (int64_t i = 0; i < count; ++i)
        values[i] = static_cast<T>(static_cast<double>(values[i]) * scaling.postscale);
    }
  }
}

template <typename T>
void Sum(const std::vector<const void*>& inputs, void* out, int64_t count, const Scaling& scaling) {
  T sum[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    std::memcpy(sum, static_cast<const T*>(inputs[0]) + at, static_cast<size_t>(n) * sizeof(T));
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* input = static_cast<const T*>(inputs[k]) + at;
      for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<T>(sum[i] + input[i]);
    }
    Finish(sum, n, inputs.size(), scaling);
    std::memcpy(static_cast<T*>(out) + at, sum, static_cast<size_t>(n) * sizeof(T));
  }
}

template <typename T>
void Multiply(const void* in, void* out, int64_t count, double factor) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  if constexpr (std::is_floating_point<T>::value) {
    const T typed = static_cast<T>(factor);
    for (int64_t i = 0; i < count; ++i) to[i] = from[i] * typed;
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<double>(from[i]) * factor);
  }
}

// Calls `f` with a value of the C++ type that stands for `dtype`.
template <typename F>
void WithType(int32_t dtype, F f) {
  switch (dtype) {
    case HVD_FLOAT32:
      return f(float{});
    case HVD_FLOAT64:
      return f(double{});
    case HVD_UINT8:
      return f(uint8_t{});
    case HVD_INT32:
      return f(int32_t{});
    case HVD_INT64:
      return f(int64_t{});
    default:
      return;
  }
}

}  // namespace

void SumInOrder(const std::vector<const void*>& inputs, void* out, int64_t count, int32_t dtype,
                const Scaling& scaling) {
  WithType(dtype, [&](auto type) { Sum<decltype(type)>(inputs, out, count, scaling); });
}

void Scale(const void* in, void* out, int64_t count, int32_t dtype, double factor) {
  WithType(dtype, [&](auto type) { Multiply<decltype(type)>(in, out, count, factor); });
}

}  // namespace spark_hvd
