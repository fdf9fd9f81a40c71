// Carries out what was agreed: brings this rank's entries and the sizes that others told into one Collective, has a
// transport run it, and ends the handles. One collective at a time; nothing here waits.
#ifndef SPARK_HVD_SRC_EXECUTOR_H_
#define SPARK_HVD_SRC_EXECUTOR_H_

#include <functional>
#include <memory>
#include <vector>

#include "fusion.h"
#include "handles.h"
#include "message.h"
#include "tensor_queue.h"
#include "timeline.h"
#include "transport/operation.h"
#include "transport/provider.h"

namespace spark_hvd {

// What is agreed, with this rank's part in it.
struct Job {
  std::vector<Request> requests;  // of one collective, fused
  std::vector<Entry> entries;     // one for each request; of a rank that has joined some have no handle (0)
  std::vector<int64_t> sizes;     // see Response
};

class Executor {
 public:
  Executor(Members members, TensorQueue* queue, HandleTable* handles, Timeline* timeline)
      : members_(std::move(members)), queue_(queue), handles_(handles), timeline_(timeline) {}

  // In the order in which they are asked whether they serve a collective. The last one serves all.
  void SetTransports(std::vector<std::unique_ptr<Transport>> transports) { transports_ = std::move(transports); }
  bool has_transports() const { return !transports_.empty(); }
  // The one that serves such a collective.
  const Transport& Choose(const Collective& collective) const;
  // Without memory: what Choose() needs to know of a collective.
  static Collective Describe(const Request& request);

  bool busy() const { return operation_ != nullptr; }
  // `sequence` is the number of this collective, and the last one used so far; it grows when more are needed.
  void Start(Job job, int64_t* sequence, TimePoint now);
  // Not OK: the transport failed, and with it the engine. The handles are still to be ended.
  Status Advance(TimePoint now, bool* moved);
  // Ends `entries`; their names are free before their waiters wake.
  void Finish(std::vector<Entry> entries, const Status& status);
  // Ends what is under way.
  void Fail(const Status& status);
  // Ranks that the collective under way waits for, and since when nothing moved.
  std::vector<int32_t> Missing() const;
  TimePoint moved_at() const { return moved_at_; }
  // What is under way, for messages.
  std::string What() const;

 private:
  void Prepare();
  void PrepareReduction();
  void PrepareBroadcast();
  void PrepareAllgather();
  void PrepareAlltoall();
  void PrepareReducescatter();
  void FinishJob();

  const Members members_;
  TensorQueue* queue_;
  HandleTable* handles_;
  Timeline* timeline_;
  std::vector<std::unique_ptr<Transport>> transports_;

  Job job_;
  Collective collective_;
  std::vector<Output> outputs_;  // one for each entry
  ScratchBuffer neutral_;        // the part of a rank that has nothing to give
  std::unique_ptr<Operation> operation_;
  TimePoint begun_{}, moved_at_{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_EXECUTOR_H_
