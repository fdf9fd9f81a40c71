// Ranks that share memory: as threads of this process, or as processes of their own (forked), which is what they are in
// life. Both get an exchange over memory that the test made beforehand.
#ifndef SPARK_HVD_TESTS_SHM_WORLD_H_
#define SPARK_HVD_TESTS_SHM_WORLD_H_

#include <functional>
#include <memory>

#include "transport/operation.h"
#include "transport/shm/shm_transport.h"

namespace spark_hvd::test {

// One rank's side of shared memory, with one set of all ranks.
struct ShmRank {
  int rank = 0, size = 0;
  Exchange exchange;
  std::shared_ptr<ShmHost> host;  // set by Open()
  std::shared_ptr<Segments> segments;
  std::unique_ptr<ShmProvider> provider;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Consent> consent;
  std::string note;
  int64_t sequence = 0;
  std::function<void()> disturb;  // called before each look
  double heartbeat_timeout = 60;

  // Opens everything; fails the test unless the ranks share one host.
  void Open(ArenaOptions options = {});
  // Starts and drives to the end, as an engine does: looks, then sleeps on the bell.
  void Run(Collective collective);
  void Drive(Operation* operation, double timeout = 20);
};

using RankBody = std::function<void(ShmRank&)>;

void RunThreads(int size, const RankBody& body);
// Each rank is a child process. Throws the first failure; a rank that `may_die` may end by a signal.
void RunProcesses(int size, const RankBody& body, int may_die = -1);

}  // namespace spark_hvd::test

#endif  // SPARK_HVD_TESTS_SHM_WORLD_H_
