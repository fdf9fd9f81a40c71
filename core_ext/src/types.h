// The nouns of the core: element types, reductions, kinds of collectives, and what a caller hands in. No behaviour but
// sizes and names.
#ifndef SPARK_HVD_SRC_TYPES_H_
#define SPARK_HVD_SRC_TYPES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spark_hvd/core.h"

namespace spark_hvd {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Seconds = std::chrono::duration<double>;

// A wait of this many seconds; anything above a year is cut to a year, which the clock can still add.
inline Clock::duration ToDuration(double seconds) {
  constexpr double kYear = 365.0 * 24 * 3600;
  if (!(seconds < kYear)) seconds = kYear;
  if (seconds < 0) seconds = 0;
  return std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

enum class Kind : uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kBarrier = 2,
  kAllgather = 3,
  kAlltoall = 4,
  kReducescatter = 5,
  kJoin = 6,      // agreement only, as the next one: no transport sees them
  kExchange = 7,  // a few bytes from each rank to all, with the agreement itself
};
constexpr int kKinds = 8;

// 0 for a number that is no dtype.
int64_t ElementSize(int32_t dtype);
bool IsFloat(int32_t dtype);
const char* DtypeName(int32_t dtype);
const char* OpName(int32_t op);
const char* KindName(Kind kind);
std::string ShapeText(const std::vector<int64_t>& shape);

// What is done to the sum of an allreduce besides summing. Average divides by the size first, postscale multiplies
// then.
struct Scaling {
  double prescale = 1.0;
  double postscale = 1.0;
  bool average = false;
};

// One collective as all ranks must agree on it: this is what travels to the coordinator.
struct Request {
  Kind kind = Kind::kBarrier;
  std::string name;
  int32_t dtype = HVD_FLOAT32;
  int32_t op = HVD_SUM;  // allreduce, reducescatter
  int32_t root = 0;      // broadcast: a position in the process set
  Scaling scaling;       // allreduce, reducescatter; .average follows op
  std::vector<int64_t> shape;
  std::string group;       // collectives of one group are carried out together; empty: none
  int32_t group_size = 0;  // members of the group
  // The rank's own, which others need not share.
  std::vector<int64_t> splits;  // alltoall: rows for each rank
  std::string payload;          // exchange
  double age = 0;               // seconds since it was submitted, when it was sent

  int64_t count() const;
  int64_t bytes() const { return count() * ElementSize(dtype); }
  // A scalar is one row.
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t row_count() const;  // elements of a row
  // Whether both mean the same collective, the ranks' own parts aside.
  bool SameAs(const Request& other) const;
};

// A result whose size the caller could not know: the core's memory, given to whoever asks for it.
struct Output {
  std::unique_ptr<char, void (*)(char*)> memory{nullptr, [](char*) {}};
  int64_t bytes = 0;
  int64_t rows = 0;
  std::vector<int64_t> splits;  // alltoall: rows received from each rank; exchange: bytes from each rank
  int64_t value = 0;            // join: the last rank to join

  // Room for `size` bytes, aligned to a cache line. Throws std::bad_alloc.
  void Reserve(int64_t size);
};

// A request with the caller's memory and the handle that it waits on.
struct Entry {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;  // null: the core makes an Output
  int64_t handle = 0;
  int32_t part = 0;    // place of its output among those of the handle
  int64_t number = 0;  // order of submission
  TimePoint submitted{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TYPES_H_
