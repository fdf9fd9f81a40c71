// Who makes transports for process sets. Set-up is collective over the ranks of the set and runs on callers' threads.
#ifndef SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_
#define SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_

#include <memory>
#include <vector>

#include "bell.h"
#include "status.h"
#include "transport/consent.h"
#include "transport/exchange.h"
#include "transport/operation.h"

namespace spark_hvd {

// The ranks of a process set, ascending in the world, and this rank's position among them.
struct Members {
  int32_t set = 0;
  std::vector<int32_t> ranks;
  int32_t position = 0;

  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
};

class Provider {
 public:
  virtual ~Provider() = default;
  // Collective. *out stays empty, on all members alike, when this provider cannot serve the set (it says why in the
  // log); then the next one does. Not OK: the exchange failed.
  virtual Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) = 0;
  // A consent of its own for the set, faster than messages; called after Open() gave a transport. Empty: none.
  virtual std::unique_ptr<Consent> OpenConsent(const Members& members) = 0;
  // A bell that ranks of this host can ring, once the set of all ranks was opened; the engine sleeps on it then. It
  // lives as long as the provider. Null: none.
  virtual Bell* bell() { return nullptr; }
  // Whether the ranks that it watches live. HVD_PEER_FAILED names the dead. Called now and then by whoever drives.
  virtual Status Check(TimePoint now) {
    (void)now;
    return Status::Ok();
  }
  // The engine of this rank ends: in peace, or for this cause, which the other ranks' Check() tells them.
  virtual void Farewell(const Status& how) { (void)how; }
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_
