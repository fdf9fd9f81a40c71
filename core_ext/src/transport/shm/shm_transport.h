// Collectives of a process set whose ranks share one host, and how they agree on what they expect: through flags.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "transport/consent.h"
#include "transport/operation.h"
#include "transport/provider.h"
#include "transport/shm/arena.h"
#include "transport/shm/rounds.h"

namespace spark_hvd {

class ShmTransport : public Transport {
 public:
  ShmTransport(std::shared_ptr<Arena> arena, std::shared_ptr<Segments> segments)
      : lane_(std::move(arena), std::move(segments)) {}

  const char* name() const override { return "shm"; }
  bool Serves(const Collective& collective) const override;
  std::unique_ptr<Operation> Start(const Collective& collective) override;

 private:
  ShmLane lane_;
};

// Each rank's ballots are flags in its part of the arena: the last two votes, so that a rank that looks late still sees
// the vote that it asks about. Nobody votes a third time before all have seen the first.
class ShmConsent : public Consent {
 public:
  explicit ShmConsent(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  Status Vote(int64_t sequence, bool ready) override;
  Status Ask(int64_t sequence, Answer* answer) override;
  std::vector<int32_t> Missing() const override;

 private:
  std::shared_ptr<Arena> arena_;
  int64_t votes_ = 0;
  int64_t sequence_ = 0;  // voted on last
};

// Serves sets that lie on one host, and watches the ranks of this host.
class ShmProvider : public Provider {
 public:
  using Note = std::function<void(const std::string&)>;

  // `note` takes one line when a set on one host must do without shared memory.
  ShmProvider(std::shared_ptr<Segments> segments, double heartbeat_timeout, Note note, ArenaOptions options = {})
      : segments_(std::move(segments)),
        heartbeat_timeout_(heartbeat_timeout),
        note_(std::move(note)),
        options_(options) {}

  // The first set is the world: there the ranks find out who shares memory.
  Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) override;
  std::unique_ptr<Consent> OpenConsent(const Members& members) override;
  Bell* bell() override { return host_ ? host_->bell() : nullptr; }
  Status Check(TimePoint now) override;
  void Farewell(const Status& how) override;

  // Null before the first Open().
  const std::shared_ptr<ShmHost>& host() const { return host_; }

 private:
  const std::shared_ptr<Segments> segments_;
  const double heartbeat_timeout_;
  const Note note_;
  const ArenaOptions options_;
  std::shared_ptr<ShmHost> host_;
  std::map<int32_t, std::weak_ptr<Arena>> arenas_;  // by process set
  TimePoint next_beat_{};
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_SHM_TRANSPORT_H_
