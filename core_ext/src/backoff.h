// How long to rest while nothing moves and nobody can ring: an eighth of the time waited so far. So a wait is never
// much longer than it had to be, and a long one costs nearly no processor time.
#ifndef SPARK_HVD_SRC_BACKOFF_H_
#define SPARK_HVD_SRC_BACKOFF_H_

#include <algorithm>

#include "types.h"

namespace spark_hvd {

struct Backoff {
  // Limits of one rest: while peers are awaited, and while this rank has nothing in flight.
  static constexpr Clock::duration kShortest = std::chrono::microseconds(20);
  static constexpr Clock::duration kLongest = std::chrono::microseconds(500);
  static constexpr Clock::duration kLongestIdle = std::chrono::milliseconds(5);

  static Clock::duration Pause(Clock::duration waited, bool idle) {
    return std::clamp(waited / 8, kShortest, idle ? kLongestIdle : kLongest);
  }
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_BACKOFF_H_
