// One step of a reduction kernel: 64 bytes of accumulators of one element type, whatever the instruction set.
//
// Written with the compiler's vector types, so that each kernel is this very code compiled for its instruction set and
// the bits cannot differ. Everything here is inlined into the kernels; nothing may be called from elsewhere.
#ifndef SPARK_HVD_SRC_REDUCTION_LANES_H_
#define SPARK_HVD_SRC_REDUCTION_LANES_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduction.h"

// Vectors wider than the baseline's registers are never passed by value across a real call here.
#pragma GCC diagnostic ignored "-Wpsabi"

#define SPARK_HVD_INLINE inline __attribute__((always_inline))

namespace spark_hvd {

constexpr int64_t kVectorBytes = 64;

// Element types that memory holds in two bytes and arithmetic in a float.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));

SPARK_HVD_INLINE void Widen(const Shorts& from, Brain, Floats* to) {
  const Words words = __builtin_convertvector(from, Words) << 16;
  *to = (Floats)words;
}

SPARK_HVD_INLINE void Narrow(const Floats& from, Brain, Shorts* to) {
  const Words words = (Words)from;
  const Words rounded = (words + 0x7fff + ((words >> 16) & 1)) >> 16;
  const Words nan = (words >> 16) | 0x40;  // stays a NaN though its low bits go
  *to = __builtin_convertvector((words & 0x7fffffff) > 0x7f800000 ? nan : rounded, Shorts);
}

SPARK_HVD_INLINE void Widen(const Shorts& from, Half, Floats* to) {
  const Words half = __builtin_convertvector(from, Words);
  const Words magnitude = half & 0x7fff;
  const Words normal = (magnitude << 13) + (112u << 23);
  const Words special = (magnitude << 13) | 0x7f800000;
  // Below the smallest normal number the value is its bits times 2^-24, exactly.
  typedef int32_t Ints __attribute__((vector_size(64)));
  const Floats tiny = __builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f;
  Words words = magnitude < 0x400 ? (Words)tiny : normal;
  words = magnitude >= 0x7c00 ? special : words;
  words |= (half & 0x8000) << 16;
  *to = (Floats)words;
}

SPARK_HVD_INLINE void Narrow(const Floats& from, Half, Shorts* to) {
  const Words words = (Words)from;
  const Words magnitude = words & 0x7fffffff;
  const Words normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // The sum with 0.5 has the last place of a subnormal half: the adder rounds.
  const Floats shifted = (Floats)magnitude + 0.5f;
  const Words tiny = (Words)shifted - 0x3f000000;
  Words half = magnitude < 0x38800000 ? tiny : normal;
  half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;
  half = magnitude > 0x7f800000 ? (0x7e00 | ((magnitude >> 13) & 0x3ff)) : half;
  *to = __builtin_convertvector(half | ((words >> 16) & 0x8000), Shorts);
}

// How T is held: `Stored` in memory, `Value` in registers.
template <typename T>
struct Lanes {
  using Value = T;
  typedef T Register __attribute__((vector_size(64)));
  static constexpr int64_t kCount = kVectorBytes / static_cast<int64_t>(sizeof(T));

  static SPARK_HVD_INLINE void Load(const char* from, int64_t bytes, Register* to) {
    if (bytes < kVectorBytes) *to = Register{};
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  static SPARK_HVD_INLINE void Store(const Register& from, char* to, int64_t bytes) {
    std::memcpy(to, &from, static_cast<size_t>(bytes));
  }
  static constexpr int64_t kStoredBytes = kVectorBytes;
};

template <typename T>
struct NarrowLanes {
  using Value = float;
  using Register = Floats;
  static constexpr int64_t kCount = 16;
  static constexpr int64_t kStoredBytes = 32;

  static SPARK_HVD_INLINE void Load(const char* from, int64_t bytes, Register* to) {
    Shorts stored{};
    std::memcpy(&stored, from, static_cast<size_t>(bytes));
    Widen(stored, T{}, to);
  }
  static SPARK_HVD_INLINE void Store(const Register& from, char* to, int64_t bytes) {
    Shorts stored;
    Narrow(from, T{}, &stored);
    std::memcpy(to, &stored, static_cast<size_t>(bytes));
  }
};

template <>
struct Lanes<Half> : NarrowLanes<Half> {};
template <>
struct Lanes<Brain> : NarrowLanes<Brain> {};

// acc = acc op value, for each lane.
template <int32_t kOp, typename T>
SPARK_HVD_INLINE void Combine(typename Lanes<T>::Register* acc, const typename Lanes<T>::Register& value) {
  using Value = typename Lanes<T>::Value;
  using Register = typename Lanes<T>::Register;
  if constexpr (kOp == HVD_MIN) {
    *acc = (value < *acc) | (value != value) ? value : *acc;
  } else if constexpr (kOp == HVD_MAX) {
    *acc = (value > *acc) | (value != value) ? value : *acc;
  } else if constexpr (std::is_integral<Value>::value) {
    // Unsigned, so that running over is wrapping around.
    typedef std::make_unsigned_t<Value> Unsigned __attribute__((vector_size(64)));
    const Unsigned a = (Unsigned)*acc, b = (Unsigned)value;
    const Unsigned result = kOp == HVD_SUM ? a + b : a * b;
    *acc = (Register)result;
  } else {
    *acc = kOp == HVD_SUM ? *acc + value : *acc * value;
  }
}

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_REDUCTION_LANES_H_
