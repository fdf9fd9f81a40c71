// Rank 0's part in agreeing: who has joined which collective, whether they mean the same thing, what may run next.
//
// Pure: no clock, no thread, no I/O of its own. Requests go in, decisions come out; the engine carries both.
// Collectives pair by name: the n-th request of a name on one rank meets the n-th on the others. A collective that was
// given up because ranks were missing is remembered for those ranks, so that their late request gets the same answer
// and the count stays in step.
#ifndef SPARK_HVD_SRC_COORDINATOR_H_
#define SPARK_HVD_SRC_COORDINATOR_H_

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "message.h"
#include "status.h"
#include "types.h"

namespace spark_hvd {

class Coordinator {
 public:
  Coordinator(int size, int64_t fusion_threshold, double comm_timeout);

  void Add(int rank, Request request, TimePoint now);
  // `rank` submits nothing more: what it has not joined can never run.
  void Leave(int rank);
  // Everything that is decided since the last call, in the order in which it is to happen.
  std::vector<Response> Decide(TimePoint now);
  // Ranks that have not left yet.
  std::vector<int32_t> present() const;

 private:
  struct Pending {
    Request first;
    int first_rank = 0;
    std::vector<std::pair<int32_t, Request>> different;  // requests that are not like the first
    std::vector<char> joined;
    int count = 0;
    TimePoint since;
  };

  std::vector<int32_t> Ranks(const Pending& pending, bool joined) const;
  void GiveUp(const std::string& name, const Pending& pending, const Status& why);
  void GiveUpStalled(TimePoint now);
  std::string Disagreement(const Pending& pending) const;

  const int size_;
  const int64_t fusion_threshold_;
  const double comm_timeout_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Request> ready_;                                        // joined by all and of one mind
  std::vector<Response> errors_;                                      // to be told
  std::map<std::pair<int, std::string>, std::deque<Status>> missed_;  // (rank, name) -> answers to late requests
  std::vector<char> left_;
  bool told_all_left_ = false;
  TimePoint next_check_{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_COORDINATOR_H_
