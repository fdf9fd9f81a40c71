// The reduction kernels against arithmetic written out element by element; every instruction set against every other.
#include "reduction.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>

#include "check.h"

using namespace spark_hvd;

namespace {

std::vector<InstructionSet> Available() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
  if (BestInstructionSet() != InstructionSet::kPortable) sets.push_back(InstructionSet::kAvx2);
  if (BestInstructionSet() == InstructionSet::kAvx512) sets.push_back(InstructionSet::kAvx512);
  return sets;
}

double HalfToDouble(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

double BrainToDouble(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

// The nearest number with so many bits of fraction, ties to even; smaller than the least exponent: its quantum.
double RoundTo(double value, int fraction_bits, int least_exponent, double overflow) {
  if (value == 0 || !std::isfinite(value)) return value;
  if (std::fabs(value) >= overflow) return std::copysign(INFINITY, value);
  const int exponent = std::max(std::ilogb(value), least_exponent);
  const double quantum = std::ldexp(1.0, exponent - fraction_bits);
  return std::nearbyint(value / quantum) * quantum;
}

template <typename T>
std::vector<T> RandomValues(int count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    if constexpr (std::is_floating_point<T>::value) {
      value =
          static_cast<T>(std::ldexp(static_cast<double>(random() % 4001) - 2000, static_cast<int>(random() % 40) - 20));
    } else {
      value = static_cast<T>(random());
    }
  }
  return values;
}

template <typename T>
T Wrapped(T a, T b, int32_t op) {
  if constexpr (std::is_integral<T>::value) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    if (op == HVD_SUM) return static_cast<T>(x + y);
    if (op == HVD_PRODUCT) return static_cast<T>(x * y);
  }
  if (op == HVD_MIN) return b < a ? b : a;
  if (op == HVD_MAX) return b > a ? b : a;
  return op == HVD_SUM ? static_cast<T>(a + b) : static_cast<T>(a * b);
}

template <typename T>
T Finished(T value, const Arithmetic& arithmetic) {
  if (arithmetic.divisor != 1) {
    if constexpr (std::is_integral<T>::value) {
      value = static_cast<T>(static_cast<int64_t>(value) / arithmetic.divisor);
    } else {
      value = value / static_cast<T>(arithmetic.divisor);
    }
  }
  if (arithmetic.postscale == 1.0) return value;
  if constexpr (std::is_integral<T>::value) return static_cast<T>(static_cast<double>(value) * arithmetic.postscale);
  return value * static_cast<T>(arithmetic.postscale);
}

template <typename T>
void CheckType(int32_t dtype) {
  std::vector<Arithmetic> cases;
  for (int32_t op : {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT}) cases.push_back({dtype, op, 1.0, 1.0, 1});
  cases.push_back({dtype, HVD_SUM, 1.0, 1.0, 3});
  cases.push_back({dtype, HVD_SUM, 1.0, 0.5, 4});
  cases.push_back({dtype, HVD_SUM, 0.25, 1.0, 1});
  for (const Arithmetic& arithmetic : cases) {
    for (int ranks : {1, 2, 3, 5}) {
      for (int count : {0, 1, 7, 63, 64, 65, 255, 257, 1001}) {
        std::vector<std::vector<T>> inputs;
        std::vector<const void*> pointers;
        for (int rank = 0; rank < ranks; ++rank) inputs.push_back(RandomValues<T>(count, rank * 31u + count));
        for (const auto& input : inputs) pointers.push_back(input.data());
        std::vector<T> want(static_cast<size_t>(count));
        for (size_t i = 0; i < want.size(); ++i) {
          const auto at = [&](int rank) {
            const T value = inputs[static_cast<size_t>(rank)][i];
            return arithmetic.prescale == 1.0 ? value
                                              : static_cast<T>(static_cast<double>(value) * arithmetic.prescale);
          };
          T value = at(0);
          for (int rank = 1; rank < ranks; ++rank) value = Wrapped(value, at(rank), arithmetic.op);
          want[i] = Finished(value, arithmetic);
        }
        for (InstructionSet set : Available()) {
          std::vector<T> first(want.size()), second(want.size());
          void* outputs[] = {first.data(), second.data()};
          ReduceWith(set, pointers.data(), ranks, outputs, 2, count, arithmetic);
          for (size_t i = 0; i < want.size(); ++i) {
            if (std::memcmp(&first[i], &want[i], sizeof(T)) == 0) continue;
            throw std::runtime_error(std::string(DtypeName(dtype)) + " " + OpName(arithmetic.op) + " of " +
                                     std::to_string(ranks) + ", element " + std::to_string(i) + ": " +
                                     std::to_string(first[i]) + ", not " + std::to_string(want[i]));
          }
          CHECK(first == second);
        }
      }
    }
  }
}

// Every number of a 16-bit type plus a few others, in each instruction set, against one rounding of the exact sum.
void CheckNarrow(int32_t dtype, double (*decode)(uint16_t), int fraction_bits, int least_exponent, double overflow) {
  std::vector<uint16_t> all(65536), other(65536), got(65536), first;
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (uint16_t shift : {0x0000, 0x0001, 0x3c01, 0x8001, 0x1234, 0x7c00}) {
    std::fill(other.begin(), other.end(), shift);
    const void* inputs[] = {all.data(), other.data()};
    void* output = got.data();
    first.clear();
    for (InstructionSet set : Available()) {
      ReduceWith(set, inputs, 2, &output, 1, 65536, {dtype, HVD_SUM, 1.0, 1.0, 1});
      if (first.empty()) first = got;
      CHECK(first == got);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const float sum = static_cast<float>(decode(all[i])) + static_cast<float>(decode(shift));
      const double want = RoundTo(sum, fraction_bits, least_exponent, overflow), found = decode(got[i]);
      CHECK(want == found || (std::isnan(want) && std::isnan(found)));
    }
  }
}

}  // namespace

TEST(reduction_of_each_type) {
  CheckType<float>(HVD_FLOAT32);
  CheckType<double>(HVD_FLOAT64);
  CheckType<uint8_t>(HVD_UINT8);
  CheckType<int8_t>(HVD_INT8);
  CheckType<int16_t>(HVD_INT16);
  CheckType<int32_t>(HVD_INT32);
  CheckType<int64_t>(HVD_INT64);
}

TEST(reduction_of_halves) { CheckNarrow(HVD_FLOAT16, HalfToDouble, 10, -14, 65520.0); }

TEST(reduction_of_brain_floats) { CheckNarrow(HVD_BFLOAT16, BrainToDouble, 7, -126, std::ldexp(511.0 / 256.0, 127)); }

TEST(reduction_of_16_bit_floats_rounds_once) {
  // 2048 + 1 + 1 is 2050 in float32; rounded after each addition it would stay 2048.
  const uint16_t big = 0x6800, one = 0x3c00;
  const void* inputs[] = {&big, &one, &one};
  uint16_t result = 0;
  void* output = &result;
  Reduce(inputs, 3, &output, 1, 1, {HVD_FLOAT16, HVD_SUM, 1.0, 1.0, 1});
  CHECK_EQUAL(HalfToDouble(result), 2050.0);
}

TEST(reduction_of_truth_values) {
  const uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1};
  const void* inputs[] = {a, b};
  for (int32_t op : {HVD_SUM, HVD_MAX, HVD_MIN, HVD_PRODUCT}) {
    uint8_t result[4];
    void* output = result;
    Reduce(inputs, 2, &output, 1, 4, {HVD_BOOL, op, 1.0, 1.0, 1});
    const bool any = op == HVD_SUM || op == HVD_MAX;
    for (int i = 0; i < 4; ++i) CHECK_EQUAL(int{result[i]}, int{any ? a[i] | b[i] : a[i] & b[i]});
  }
}

TEST(reduction_keeps_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
  for (const float* first : {&nan, &one}) {
    const void* inputs[] = {first, first == &nan ? &one : &nan};
    for (int32_t op : {HVD_MIN, HVD_MAX, HVD_SUM}) {
      float result = 0;
      void* output = &result;
      Reduce(inputs, 2, &output, 1, 1, {HVD_FLOAT32, op, 1.0, 1.0, 1});
      CHECK(std::isnan(result));
    }
  }
}

TEST(reduction_in_place_of_any_input) {
  std::vector<float> a(1000, 1), b(1000, 2), c(1000, 4);
  void* all[] = {a.data(), b.data(), c.data()};
  Reduce(all, 3, all, 3, 1000, {HVD_FLOAT32, HVD_SUM, 1.0, 1.0, 1});
  for (const auto& values : {a, b, c}) {
    for (float value : values) CHECK_EQUAL(value, 7.f);
  }
}

TEST(widening_is_exact_and_narrowing_undoes_it) {
  for (int32_t dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
    std::vector<uint16_t> all(65536 + 5), back(all.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(all.size());
    const auto count = static_cast<int64_t>(all.size());
    Widen(all.data(), wide.data(), count, dtype);
    for (size_t i = 0; i < all.size(); ++i) {
      const double want = dtype == HVD_FLOAT16 ? HalfToDouble(all[i]) : BrainToDouble(all[i]);
      CHECK(std::isnan(want) ? std::isnan(wide[i]) : static_cast<double>(wide[i]) == want);
    }
    Narrow(wide.data(), back.data(), count, dtype);
    for (size_t i = 0; i < all.size(); ++i) CHECK(std::isnan(wide[i]) || back[i] == all[i]);
    // In place.
    Narrow(wide.data(), wide.data(), count, dtype);
    CHECK(std::memcmp(wide.data(), back.data(), back.size() * 2) == 0);
  }
}

TEST(wide_result_is_the_narrow_one_before_it_is_rounded) {
  for (int32_t dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
    for (int32_t op : {HVD_SUM, HVD_PRODUCT}) {
      for (double prescale : {1.0, 0.3}) {
        constexpr int64_t kCount = 1001;
        std::vector<std::vector<uint16_t>> inputs(3, std::vector<uint16_t>(kCount));
        std::vector<const void*> pointers;
        for (size_t rank = 0; rank < inputs.size(); ++rank) {
          const std::vector<float> values = RandomValues<float>(kCount, static_cast<unsigned>(rank));
          Narrow(values.data(), inputs[rank].data(), kCount, dtype);
          pointers.push_back(inputs[rank].data());
        }
        Arithmetic arithmetic;
        arithmetic.dtype = dtype;
        arithmetic.op = op;
        arithmetic.prescale = prescale;
        std::vector<uint16_t> want(kCount), found(kCount);
        void* out = want.data();
        Reduce(pointers.data(), 3, &out, 1, kCount, arithmetic);
        std::vector<float> wide(kCount);
        ReduceWide(pointers.data(), 3, wide.data(), kCount, arithmetic);
        Narrow(wide.data(), found.data(), kCount, dtype);
        CHECK(found == want);
      }
    }
  }
}
