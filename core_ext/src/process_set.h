// How the ranks of one process set agree on what to do next, and do it: a state machine that never waits.
//
// It is in one of two modes, the same on all members at the same point of their common history:
//   negotiating  requests go to the coordinator (the first member), decisions come back, all members follow them;
//   predicting   what follows was learned. Members confirm the foretold group by a Consent, and no message is sent. A
//                member that lacks a part of the group while it has other work that cannot wait refuses: then all
//                members skip this number and negotiate.
// Each change of mode begins a new round. Messages carry the round they belong to: an older one is void (what it asked
// for is asked again), a newer one is kept until this rank is there too.
//
// All methods but queue() are called by whoever drives the engine, one thread at a time.
#ifndef SPARK_HVD_SRC_PROCESS_SET_H_
#define SPARK_HVD_SRC_PROCESS_SET_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator.h"
#include "executor.h"
#include "handles.h"
#include "log.h"
#include "message.h"
#include "response_cache.h"
#include "tensor_queue.h"
#include "timeline.h"
#include "transport/consent.h"
#include "transport/provider.h"

namespace spark_hvd {

// Counted since the start, over all process sets; read by anybody.
struct Counters {
  std::atomic<int64_t> messages{0};    // sent to agree
  std::atomic<int64_t> negotiated{0};  // groups carried out after messages
  std::atomic<int64_t> predicted{0};   // groups carried out without
  std::atomic<int64_t> refused{0};     // foretold groups that were skipped
  std::atomic<int64_t> tensors{0};     // collectives carried out
};

struct SetOptions {
  CoordinatorOptions coordinator;
  int64_t cache_capacity = 8192;  // collectives that are learned; 0: none
};

class ProcessSet {
 public:
  // What the engine lends.
  struct Means {
    std::function<Status(int32_t rank, Bytes bytes)> send;
    HandleTable* handles;
    Timeline* timeline;
    Counters* counters;
    const Log* log;
  };

  ProcessSet(Members members, const SetOptions& options, Means means);

  const Members& members() const { return members_; }
  TensorQueue& queue() { return queue_; }
  const Executor& executor() const { return executor_; }
  void Equip(std::vector<std::unique_ptr<Transport>> transports, std::unique_ptr<Consent> consent);

  Status Receive(int32_t rank, const Header& header, Bytes bytes);
  // Goes one step on. *moved: something happened.
  Status Turn(TimePoint now, bool* moved);
  // Fails when something has waited for too long.
  Status CheckDeadlines(TimePoint now) const;
  // This rank submits nothing more.
  void Leave() { leaving_ = true; }
  bool all_left() const { return all_left_; }
  // Members that have not left, as far as this rank knows.
  std::vector<int32_t> present() const;
  bool is_coordinator() const { return coordinator_ != nullptr; }
  // What is in flight waits for a message rather than for flags.
  bool expects_messages() const { return !predicting_ && (!pending_.empty() || leaving_); }
  bool idle() const { return pending_.empty() && !executor_.busy() && !leaving_; }
  // Ends everything that has not ended.
  void Fail(const Status& status);

 private:
  void Admit();
  Status Begin(TimePoint now, bool* moved);
  // Negotiating.
  Status Negotiate(TimePoint now, bool* moved);
  Status SendUnsent(TimePoint now);
  Status Decide(TimePoint now, bool* moved);
  Status Open(int32_t rank, const Header& header, const Bytes& bytes);
  Status Follow(Response response, TimePoint now);
  Status Execute(Response response, TimePoint now);
  void End(const Response& response);
  Status StartNegotiating();
  // Predicting.
  void Foretell();
  Status Confirm(TimePoint now, bool* moved);
  bool ShouldRefuse(TimePoint now);
  Status Ask(TimePoint now);
  Status ExecuteForetold(TimePoint now);

  void Run(Job job, TimePoint now);
  bool Take(const std::string& name, Entry* entry);
  bool InGroup(const ResponseCache::Item* item) const { return item != nullptr && item->mark == generation_; }
  Header HeaderOf(MessageType type) const { return {type, members_.set, round_}; }

  const Members members_;
  const SetOptions options_;
  const Means means_;
  TensorQueue queue_;
  Executor executor_;
  ResponseCache cache_;
  std::unique_ptr<Coordinator> coordinator_;  // on the first member
  std::unique_ptr<Consent> consent_;

  std::unordered_map<std::string, Entry> pending_;  // submitted, not being carried out
  bool joined_ = false;
  int64_t sequence_ = 0;
  int32_t round_ = 0;
  bool predicting_ = false;

  // Negotiating.
  std::vector<std::string> unsent_;
  std::string boundary_;  // to be told to the coordinator
  std::deque<Response> decided_;
  std::deque<std::pair<int32_t, Bytes>> early_;  // of a later round
  TimePoint busy_at_{};
  bool leaving_ = false;
  bool left_ = false;
  bool all_left_ = false;

  // Predicting.
  std::vector<ResponseCache::Item*> group_;
  int64_t generation_ = 0;
  size_t missing_ = 0;       // of the group
  bool unforeseen_ = false;  // something is pending that was never learned
  bool voted_ = false;
  TimePoint voted_at_{}, next_ask_{}, next_look_{};
  int64_t asked_ = 0;  // a peer waits for this number
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_PROCESS_SET_H_
