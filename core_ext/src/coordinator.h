// The coordinator's part in agreeing: who has joined which collective, whether they mean the same, what may run next.
//
// Pure: no clock, no thread, no I/O of its own. Requests go in, decisions come out; the process set carries both. It
// lives on the first rank of a process set and speaks of members by their position there, in messages by their rank.
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

struct CoordinatorOptions {
  int64_t fusion_threshold = 4 << 20;  // bytes
  double comm_timeout = 600;           // seconds until a collective that not all have joined is an error
  double stall_check = 60;             // seconds until it is reported; 0: never
};

class Coordinator {
 public:
  // `ranks`: of the members, by position.
  Coordinator(std::vector<int32_t> ranks, const CoordinatorOptions& options);

  void Add(int32_t member, Request request, TimePoint now);
  // From now on `name` begins a learned group.
  void AddBoundary(const std::string& name) { boundaries_.push_back(name); }
  // `member` submits nothing more: what it has not joined can never run.
  void Leave(int32_t member);
  // Everything that is decided since the last call, in the order in which it is to happen. It ends with kPredict when
  // nothing is open; then nothing more is decided until Resume().
  std::vector<Response> Decide(TimePoint now);
  // The members have come to the kPredict. `predicting`: they go on by what they learned, and what they have asked for
  // and did not get is asked again later.
  void Resume(bool predicting);
  // Members that have not left yet, as ranks.
  std::vector<int32_t> present() const;
  // Lines about collectives that wait too long, once for each.
  std::vector<std::string> TakeReports() { return std::exchange(reports_, {}); }

 private:
  struct Pending {
    Request first;
    std::vector<std::pair<int32_t, Request>> different;  // requests that are not like the first
    std::vector<char> asked;
    int count = 0;  // of those that asked
    std::vector<int64_t> sizes;
    std::vector<std::string> payloads;
    TimePoint since;
    bool reported = false;
  };
  // What is agreed, with the sizes that ranks told.
  struct Ready {
    Request request;
    std::vector<int64_t> sizes;
    std::vector<std::string> payloads;
  };

  void Note(int32_t member, Request request, TimePoint now);
  bool IsComplete(const Pending& pending) const;
  void Complete(Pending pending);
  void Settle(Ready ready, Status status);
  std::vector<int32_t> Members(const Pending& pending, bool asked) const;
  std::vector<int32_t> RanksOf(const std::vector<int32_t>& members) const;
  void GiveUpAllGone();
  void GiveUpGone(const std::string& name);
  void GiveUp(const std::string& name, const Pending& pending, const Status& why);
  void Report(TimePoint now);
  void GiveUpStalled(TimePoint now);
  Status Check(const Pending& pending) const;
  std::string Disagreement(const Pending& pending) const;

  const std::vector<int32_t> ranks_;
  const int32_t size_;
  const CoordinatorOptions options_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<Ready> ready_;
  std::map<std::string, std::vector<std::pair<Ready, Status>>> held_;     // by explicit group, until all of it is there
  std::vector<Response> errors_, joins_;                                  // to be told
  std::map<std::pair<int32_t, std::string>, std::deque<Status>> missed_;  // (member, name) -> answers to late requests
  std::vector<std::string> boundaries_;
  std::vector<std::string> reports_;
  std::vector<char> left_;
  std::vector<char> joined_;
  int32_t last_joined_ = -1;
  bool frozen_ = false;
  bool told_all_left_ = false;
  TimePoint next_check_{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_COORDINATOR_H_
