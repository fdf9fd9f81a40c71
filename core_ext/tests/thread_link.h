// Ranks as threads of one process. Messages behave as the strictest MPI may: a send is complete only when its receiver
// has taken it, straight from the sender's memory, so a buffer that is reused too early shows. A rank can be made deaf,
// which is how a dead one looks to the others.
#ifndef SPARK_HVD_TESTS_THREAD_LINK_H_
#define SPARK_HVD_TESTS_THREAD_LINK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "transport/direct/direct_transport.h"
#include "transport/link.h"

namespace spark_hvd::test {

class Hub;

// The links of a world of `size` ranks.
std::vector<std::shared_ptr<Link>> MakeLinks(int size);
// Everything that `rank` sends or should receive from now on is lost.
void MakeDeaf(const std::shared_ptr<Link>& link);

// Calls `body(rank)` in one thread per rank and throws the first failure when all have ended.
void RunRanks(int size, const std::function<void(int)>& body);

// One engine per rank over thread links. Engines that still run are aborted when the world ends.
class World {
 public:
  explicit World(int size, EngineConfig config = QuietConfig(), DirectOptions options = {});
  ~World();

  static EngineConfig QuietConfig();
  int size() const { return static_cast<int>(engines_.size()); }
  Engine& operator[](int rank) { return *engines_[static_cast<size_t>(rank)]; }
  void Deafen(int rank) { MakeDeaf(links_[static_cast<size_t>(rank)]); }

  static Entry Named(Kind kind, const std::string& name);
  // A collective of floats in one dimension; `out`, if any, gets the size of `in`.
  static Entry Floats(Kind kind, const std::string& name, const std::vector<float>& in,
                      std::vector<float>* out = nullptr);

  // These submit and return the handle; they throw when it is refused.
  int64_t Submit(int rank, Entry entry, int32_t set = 0);
  int64_t Submit(int rank, std::vector<Entry> entries, int32_t set = 0);
  int64_t Allreduce(int rank, const std::string& name, const std::vector<float>& in, std::vector<float>* out,
                    int32_t op = HVD_SUM, double prescale = 1.0, double postscale = 1.0);
  int64_t Broadcast(int rank, const std::string& name, std::vector<float>* data, int root);
  int64_t Barrier(int rank, const std::string& name);
  Status Wait(int rank, int64_t handle, double timeout = 20);
  Outcome WaitOutcome(int rank, int64_t handle, double timeout = 20);
  // Submits and waits as one.
  Status Run(int rank, Entry entry, Outcome* outcome = nullptr);

 private:
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Engine>> engines_;
};

}  // namespace spark_hvd::test

#endif  // SPARK_HVD_TESTS_THREAD_LINK_H_
