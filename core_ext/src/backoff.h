// How long to rest while nothing moves: first not at all, then an eighth of the time waited so far. So a wait is never
// much longer than it had to be, and a long one costs nearly no processor time.
#ifndef SPARK_HVD_SRC_BACKOFF_H_
#define SPARK_HVD_SRC_BACKOFF_H_

#include <algorithm>

#include "types.h"

namespace spark_hvd {

class Backoff {
 public:
  // Limits of one rest: while peers are awaited, and while this rank has nothing in flight.
  static constexpr Clock::duration kSpin = std::chrono::microseconds(50);
  static constexpr Clock::duration kShortest = std::chrono::microseconds(20);
  static constexpr Clock::duration kLongest = std::chrono::microseconds(500);
  static constexpr Clock::duration kLongestIdle = std::chrono::milliseconds(5);

  explicit Backoff(TimePoint now) : moved_(now) {}
  void Moved(TimePoint now) { moved_ = now; }
  Clock::duration Waited(TimePoint now) const { return now - moved_; }

  // Zero: look again at once, after giving others the processor.
  Clock::duration Next(TimePoint now, bool idle) const {
    const Clock::duration waited = Waited(now);
    if (waited < kSpin) return Clock::duration::zero();
    return std::clamp(waited / 8, kShortest, idle ? kLongestIdle : kLongest);
  }

 private:
  TimePoint moved_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_BACKOFF_H_
