#include "reduction.h"

#include <algorithm>
#include <cstring>

#include "reduction_lanes.h"

namespace spark_hvd {
namespace {

struct Job {
  const void* const* inputs;
  int ranks;
  void* const* outputs;
  int copies;
  int64_t count;
  const Arithmetic& arithmetic;
};

// What a kernel does besides combining. A division by a power of two is a multiplication: the same number, many times
// faster. Integers are scaled elsewhere.
enum class Scales { kNone, kMultiplies, kDivides };

Scales ScalesOf(const Arithmetic& arithmetic) {
  if ((arithmetic.divisor & (arithmetic.divisor - 1)) != 0) return Scales::kDivides;
  const bool scaled = arithmetic.prescale != 1.0 || arithmetic.postscale != 1.0 || arithmetic.divisor != 1;
  return scaled ? Scales::kMultiplies : Scales::kNone;
}

template <typename T>
struct Factors {
  using Value = typename Lanes<T>::Value;
  explicit Factors(const Arithmetic& arithmetic)
      : before(static_cast<Value>(arithmetic.prescale)),
        divisor(static_cast<Value>(arithmetic.divisor)),
        reciprocal(static_cast<Value>(1.0 / static_cast<double>(arithmetic.divisor))),
        after(static_cast<Value>(arithmetic.postscale)) {}
  const Value before, divisor, reciprocal, after;
};

// `kWidth` registers from byte `at` on; only the last may be filled in part, up to `bytes` in memory.
template <typename T, int32_t kOp, Scales kScales, int kWidth>
SPARK_HVD_INLINE void Step(const Job& job, const Factors<T>& factors, int64_t at, int64_t bytes) {
  using L = Lanes<T>;
  typename L::Register acc[kWidth];
  const char* input = static_cast<const char*>(job.inputs[0]) + at;
  for (int i = 0; i < kWidth; ++i) {
    L::Load(input + i * L::kStoredBytes, bytes, &acc[i]);
    if (kScales != Scales::kNone) acc[i] *= factors.before;
  }
  for (int rank = 1; rank < job.ranks; ++rank) {
    input = static_cast<const char*>(job.inputs[rank]) + at;
    for (int i = 0; i < kWidth; ++i) {
      typename L::Register value;
      L::Load(input + i * L::kStoredBytes, bytes, &value);
      if (kScales != Scales::kNone) value *= factors.before;
      Combine<kOp, T>(&acc[i], value);
    }
  }
  for (int i = 0; i < kWidth; ++i) {
    if (kScales == Scales::kMultiplies) acc[i] *= factors.reciprocal;
    if (kScales == Scales::kDivides) acc[i] /= factors.divisor;
    if (kScales != Scales::kNone) acc[i] *= factors.after;
  }
  for (int copy = 0; copy < job.copies; ++copy) {
    char* output = static_cast<char*>(job.outputs[copy]) + at;
    for (int i = 0; i < kWidth; ++i) L::Store(acc[i], output + i * L::kStoredBytes, bytes);
  }
}

template <int kWidth, typename T, int32_t kOp, Scales kScales>
SPARK_HVD_INLINE void Run(const Job& job) {
  constexpr int64_t kStep = Lanes<T>::kStoredBytes;
  const Factors<T> factors(job.arithmetic);
  const int64_t bytes = job.count * static_cast<int64_t>(sizeof(T));
  int64_t at = 0;
  for (; at + kWidth * kStep <= bytes; at += kWidth * kStep) Step<T, kOp, kScales, kWidth>(job, factors, at, kStep);
  for (; at < bytes; at += kStep) Step<T, kOp, kScales, 1>(job, factors, at, std::min(kStep, bytes - at));
}

template <int kWidth, typename T, int32_t kOp>
SPARK_HVD_INLINE void RunScaled(const Job& job) {
  if constexpr (std::is_floating_point<typename Lanes<T>::Value>::value) {
    switch (ScalesOf(job.arithmetic)) {
      case Scales::kMultiplies:
        return Run<kWidth, T, kOp, Scales::kMultiplies>(job);
      case Scales::kDivides:
        return Run<kWidth, T, kOp, Scales::kDivides>(job);
      case Scales::kNone:
        break;
    }
  }
  Run<kWidth, T, kOp, Scales::kNone>(job);
}

template <typename T>
void RunPortableOp(const Job& job) {
  switch (job.arithmetic.op) {
    case HVD_MIN:
      return RunScaled<1, T, HVD_MIN>(job);
    case HVD_MAX:
      return RunScaled<1, T, HVD_MAX>(job);
    case HVD_PRODUCT:
      return RunScaled<1, T, HVD_PRODUCT>(job);
    default:
      return RunScaled<1, T, HVD_SUM>(job);
  }
}

void RunPortable(const Job& job) {
  switch (job.arithmetic.dtype) {
    case HVD_FLOAT32:
      return RunPortableOp<float>(job);
    case HVD_FLOAT64:
      return RunPortableOp<double>(job);
    case HVD_FLOAT16:
      return RunPortableOp<Half>(job);
    case HVD_BFLOAT16:
      return RunPortableOp<Brain>(job);
    case HVD_UINT8:
      return RunPortableOp<uint8_t>(job);
    case HVD_INT8:
      return RunPortableOp<int8_t>(job);
    case HVD_INT16:
      return RunPortableOp<int16_t>(job);
    case HVD_INT32:
      return RunPortableOp<int32_t>(job);
    case HVD_INT64:
      return RunPortableOp<int64_t>(job);
    default:
      return;
  }
}

// Sums of floats are what gradients need, so these have kernels for wide registers.
bool HasWideKernel(const Arithmetic& arithmetic) {
  return IsFloat(arithmetic.dtype) && (arithmetic.op == HVD_SUM || arithmetic.op == HVD_AVERAGE);
}

SPARK_HVD_INLINE void RunWide(const Job& job) {
  constexpr int kWidth = 4;
  switch (job.arithmetic.dtype) {
    case HVD_FLOAT32:
      return RunScaled<kWidth, float, HVD_SUM>(job);
    case HVD_FLOAT64:
      return RunScaled<kWidth, double, HVD_SUM>(job);
    case HVD_FLOAT16:
      return RunScaled<kWidth, Half, HVD_SUM>(job);
    default:
      return RunScaled<kWidth, Brain, HVD_SUM>(job);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void RunAvx2(const Job& job) { RunWide(job); }
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void RunAvx512(const Job& job) {
  RunWide(job);
}
#endif

struct Conversion {
  const void* from;
  void* to;
  int64_t count;
  int32_t dtype;  // of the 16-bit floats
  bool widens;
};

template <typename T>
SPARK_HVD_INLINE void ConvertAll(const Conversion& job) {
  constexpr int64_t kNarrow = NarrowLanes<T>::kStoredBytes, kWide = sizeof(Floats);
  const char* from = static_cast<const char*>(job.from);
  char* to = static_cast<char*>(job.to);
  for (int64_t left = job.count; left > 0; left -= NarrowLanes<T>::kCount) {
    const int64_t count = std::min(left, NarrowLanes<T>::kCount);
    Floats values{};
    if (job.widens) {
      NarrowLanes<T>::Load(from, count * 2, &values);
      std::memcpy(to, &values, static_cast<size_t>(count * 4));
    } else {
      std::memcpy(&values, from, static_cast<size_t>(count * 4));
      NarrowLanes<T>::Store(values, to, count * 2);
    }
    from += job.widens ? kNarrow : kWide;
    to += job.widens ? kWide : kNarrow;
  }
}

SPARK_HVD_INLINE void RunConversion(const Conversion& job) {
  if (job.dtype == HVD_FLOAT16) return ConvertAll<Half>(job);
  ConvertAll<Brain>(job);
}

void ConvertPortable(const Conversion& job) { RunConversion(job); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) void ConvertAvx2(const Conversion& job) { RunConversion(job); }
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void ConvertAvx512(
    const Conversion& job) {
  RunConversion(job);
}
#endif

void Convert(const Conversion& job) {
#if defined(__x86_64__)
  if (BestInstructionSet() == InstructionSet::kAvx512) return ConvertAvx512(job);
  if (BestInstructionSet() == InstructionSet::kAvx2) return ConvertAvx2(job);
#endif
  ConvertPortable(job);
}

// Integers with a scale or a divisor: block by block, combined by the kernels, scaled here.
constexpr int64_t kBlock = 512;

template <typename T>
void ScaleIntegers(const T* in, T* out, int64_t count, double factor) {
  // A double does not hold every 64-bit integer.
  if (factor == 1.0) {
    if (in != out) std::memcpy(out, in, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<double>(in[i]) * factor);
}

template <typename T>
void ReduceScaledIntegers(InstructionSet set, const Job& job) {
  const Arithmetic& arithmetic = job.arithmetic;
  Arithmetic plain;
  plain.dtype = arithmetic.dtype;
  plain.op = arithmetic.op;
  T sum[kBlock], next[kBlock];
  for (int64_t at = 0; at < job.count; at += kBlock) {
    const int64_t n = std::min(kBlock, job.count - at);
    const auto input = [&](int rank) { return static_cast<const T*>(job.inputs[rank]) + at; };
    ScaleIntegers(input(0), sum, n, arithmetic.prescale);
    for (int rank = 1; rank < job.ranks; ++rank) {
      ScaleIntegers(input(rank), next, n, arithmetic.prescale);
      const void* both[] = {sum, next};
      void* target = sum;
      ReduceWith(set, both, 2, &target, 1, n, plain);
    }
    if (arithmetic.divisor != 1) {
      for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<T>(static_cast<int64_t>(sum[i]) / arithmetic.divisor);
    }
    ScaleIntegers(sum, sum, n, arithmetic.postscale);
    for (int copy = 0; copy < job.copies; ++copy) {
      std::memcpy(static_cast<T*>(job.outputs[copy]) + at, sum, static_cast<size_t>(n) * sizeof(T));
    }
  }
}

void ReduceScaledIntegers(InstructionSet set, const Job& job) {
  switch (job.arithmetic.dtype) {
    case HVD_UINT8:
      return ReduceScaledIntegers<uint8_t>(set, job);
    case HVD_INT8:
      return ReduceScaledIntegers<int8_t>(set, job);
    case HVD_INT16:
      return ReduceScaledIntegers<int16_t>(set, job);
    case HVD_INT32:
      return ReduceScaledIntegers<int32_t>(set, job);
    default:
      return ReduceScaledIntegers<int64_t>(set, job);
  }
}

bool ScalesIntegers(const Arithmetic& arithmetic) {
  return !IsFloat(arithmetic.dtype) &&
         (arithmetic.prescale != 1.0 || arithmetic.divisor != 1 || arithmetic.postscale != 1.0);
}

// A truth value is 0 or 1: "or" is the maximum, "and" the minimum.
Arithmetic OfTruthValues(Arithmetic arithmetic) {
  arithmetic = Arithmetic{HVD_UINT8, arithmetic.op, 1.0, 1.0, 1};
  arithmetic.op = arithmetic.op == HVD_MIN || arithmetic.op == HVD_PRODUCT ? HVD_MIN : HVD_MAX;
  return arithmetic;
}

}  // namespace

Arithmetic Arithmetic::Of(int32_t dtype, int32_t op, const Scaling& scaling, int64_t ranks) {
  Arithmetic arithmetic;
  arithmetic.dtype = dtype;
  arithmetic.op = op;
  arithmetic.prescale = scaling.prescale;
  arithmetic.postscale = scaling.postscale;
  arithmetic.divisor = scaling.average ? ranks : 1;
  return arithmetic;
}

InstructionSet BestInstructionSet() {
#if defined(__x86_64__)
  static const InstructionSet best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return InstructionSet::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? InstructionSet::kAvx2 : InstructionSet::kPortable;
  }();
  return best;
#else
  return InstructionSet::kPortable;
#endif
}

void ReduceWith(InstructionSet set, const void* const* inputs, int ranks, void* const* outputs, int copies,
                int64_t count, const Arithmetic& arithmetic) {
  if (arithmetic.dtype == HVD_BOOL) {
    return ReduceWith(set, inputs, ranks, outputs, copies, count, OfTruthValues(arithmetic));
  }
  const Job job{inputs, ranks, outputs, copies, count, arithmetic};
  if (ScalesIntegers(arithmetic)) return ReduceScaledIntegers(set, job);
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512 && HasWideKernel(arithmetic)) return RunAvx512(job);
  if (set == InstructionSet::kAvx2 && HasWideKernel(arithmetic)) return RunAvx2(job);
#endif
  RunPortable(job);
}

void Reduce(const void* const* inputs, int ranks, void* const* outputs, int copies, int64_t count,
            const Arithmetic& arithmetic) {
  ReduceWith(BestInstructionSet(), inputs, ranks, outputs, copies, count, arithmetic);
}

void Widen(const void* in, float* out, int64_t count, int32_t dtype) { Convert({in, out, count, dtype, true}); }

void Narrow(const float* in, void* out, int64_t count, int32_t dtype) { Convert({in, out, count, dtype, false}); }

void ReduceWide(const void* const* inputs, int ranks, float* out, int64_t count, const Arithmetic& arithmetic) {
  Arithmetic plain;
  plain.op = arithmetic.op;
  float next[kBlock];
  for (int64_t at = 0; at < count; at += kBlock, out += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    for (int rank = 0; rank < ranks; ++rank) {
      float* values = rank == 0 ? out : next;
      Widen(static_cast<const char*>(inputs[rank]) + 2 * at, values, n, arithmetic.dtype);
      if (arithmetic.prescale != 1.0) Scale(values, values, n, HVD_FLOAT32, arithmetic.prescale);
      const void* both[] = {out, next};
      void* target = out;
      if (rank > 0) Reduce(both, 2, &target, 1, n, plain);
    }
  }
}

void SumInOrder(const std::vector<const void*>& inputs, void* out, int64_t count, int32_t dtype,
                const Scaling& scaling) {
  Arithmetic arithmetic = Arithmetic::Of(dtype, HVD_SUM, scaling, static_cast<int64_t>(inputs.size()));
  arithmetic.prescale = 1.0;
  Reduce(inputs.data(), static_cast<int>(inputs.size()), &out, 1, count, arithmetic);
}

void Scale(const void* in, void* out, int64_t count, int32_t dtype, double factor) {
  Arithmetic arithmetic;
  arithmetic.dtype = dtype;
  arithmetic.prescale = factor;
  Reduce(&in, 1, &out, 1, count, arithmetic);
}

}  // namespace spark_hvd
