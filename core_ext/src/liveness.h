// Who has been heard from, and when: a rank whose engine is silent for too long counts as dead.
//
// Every rank sends a word to the first one, and the first one to every rank, when it has sent nothing for a while; so
// the first one notices who is silent and tells all, and its own silence is noticed by all. Pure but for what `send`
// does.
#ifndef SPARK_HVD_SRC_LIVENESS_H_
#define SPARK_HVD_SRC_LIVENESS_H_

#include <functional>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

class Liveness {
 public:
  Liveness(int rank, int size, double timeout, TimePoint now);

  void Heard(int rank, TimePoint now) { heard_[rank] = now; }
  // Sends what is due and fails when a rank was silent for too long.
  Status Check(TimePoint now, const std::function<Status(int rank)>& send);

 private:
  const int rank_, size_;
  const double timeout_;
  std::vector<TimePoint> heard_;
  TimePoint next_beat_{}, checked_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_LIVENESS_H_
