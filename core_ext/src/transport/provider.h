// Who makes transports for process sets. Set-up is collective over the ranks of the set and runs on callers' threads.
#ifndef SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_
#define SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "status.h"
#include "transport/consent.h"
#include "transport/operation.h"

namespace spark_hvd {

// The ranks of a process set, ascending in the world, and this rank's position among them.
struct Members {
  int32_t set = 0;
  std::vector<int32_t> ranks;
  int32_t position = 0;

  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
};

// Gives a few bytes of each member to all, by position. Collective; ends with an error rather than wait for ever.
using Exchange = std::function<Status(const std::string& mine, std::vector<std::string>* all)>;

class Provider {
 public:
  virtual ~Provider() = default;
  // Collective. *out stays empty, on all members alike, when this provider cannot serve the set (it says why in the
  // log); then the next one does. Not OK: the exchange failed.
  virtual Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) = 0;
  // A consent of its own for the set, faster than messages; called after Open() gave a transport. Empty: none.
  virtual std::unique_ptr<Consent> OpenConsent(const Members& members) = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_PROVIDER_H_
