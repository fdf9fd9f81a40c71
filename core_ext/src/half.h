// One 16-bit float at a time, to float32 and back (round to nearest, ties to even).
#ifndef SPARK_HVD_SRC_HALF_H_
#define SPARK_HVD_SRC_HALF_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace spark_hvd {

inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FromBfloat16(uint16_t half) { return FromBits(static_cast<uint32_t>(half) << 16); }

inline uint16_t ToBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return FromBits(sign | magnitude << 13 | 0x7f800000);
  if (magnitude >= 0x400) return FromBits(sign | ((magnitude << 13) + (112u << 23)));
  const float tiny = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return sign != 0 ? -tiny : tiny;
}

inline uint16_t ToFloat16(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65,536 or more
  if (magnitude >= 0x38800000) {
    return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
  }
  // The sum with 0.5 has the last place of a subnormal half: the adder rounds.
  return static_cast<uint16_t>(sign | (BitsOf(FromBits(magnitude) + 0.5f) - 0x3f000000));
}

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_HALF_H_
