// Who shares memory with whom, and what the ranks of one host know of each other: pages, bells, lives.
//
// Two ranks are on one host if each can map the other's page and finds the token in it that the other spoke of. Names
// and addresses never decide: containers share those.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_HOST_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_HOST_H_

#include <memory>
#include <string>
#include <vector>

#include "bell.h"
#include "status.h"
#include "transport/exchange.h"
#include "transport/shm/memory.h"
#include "transport/shm/page.h"
#include "transport/shm/peer_memory.h"

namespace spark_hvd {

// The ranks of each host, ascending; hosts by their lowest rank.
using Hosts = std::vector<std::vector<int32_t>>;

// Pure: reaches[i][j] says whether rank i can map rank j's page. Ranks are together only if all of them reach each
// other.
Hosts GroupByReach(const std::vector<std::string>& reaches);

class ShmHost {
 public:
  // Collective over all ranks. Where no shared memory is to be had, a rank is alone on its host; see trouble().
  static Status Open(int rank, int size, const Exchange& exchange, std::shared_ptr<ShmHost>* out);
  ~ShmHost();
  ShmHost(const ShmHost&) = delete;
  ShmHost& operator=(const ShmHost&) = delete;

  int rank() const { return rank_; }
  const Hosts& hosts() const { return hosts_; }
  // The ranks of this host, this one among them.
  const std::vector<int32_t>& local() const { return hosts_[host_]; }
  // This rank's place among local(), and that of any rank: -1 if it is on another host.
  int local_rank() const { return LocalRank(rank_); }
  int LocalRank(int32_t rank) const;
  int host() const { return host_; }
  // Among the ranks with this local rank, host by host, as Horovod counts.
  int cross_rank() const;
  int cross_size() const;
  bool is_homogeneous() const;
  // More ranks than processors that they may use.
  bool crowded() const { return crowded_; }
  // Why this rank has no memory to share; empty if it has.
  const std::string& trouble() const { return trouble_; }

  Bell* bell();
  // Maps what local ranks publish of their own memory.
  PeerMemory* peer_memory() { return &peer_memory_; }

  // To be called about once a second by a thread that proves this rank alive.
  void Beat();
  // What the others read when this process is gone.
  void SayFarewell(Farewell farewell, const std::string& cause);
  // HVD_PEER_FAILED names local ranks whose process has ended, or that have not beaten for `heartbeat_timeout` seconds
  // as far as this rank could see; with the cause, if they told one. Cheap enough for every few milliseconds.
  Status CheckPeers(TimePoint now, double heartbeat_timeout);

 private:
  struct Peer;
  class HostBell;

  ShmHost(int rank, int size);
  Status Probe(const Exchange& exchange);
  std::string Reach(const std::vector<std::string>& all);
  bool HasEnded(const Peer& peer) const;

  const int rank_, size_;
  std::string trouble_;
  SharedMemory own_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; empty where not on this host
  Hosts hosts_;
  int host_ = 0;
  bool crowded_ = false;
  std::unique_ptr<HostBell> bell_;
  PeerMemory peer_memory_;
  TimePoint checked_{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_HOST_H_
