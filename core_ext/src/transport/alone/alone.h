// A process set of one rank: nobody to talk to, and collectives that are copies.
#ifndef SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_
#define SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_

#include <memory>

#include "control_plane.h"
#include "transport/consent.h"
#include "transport/operation.h"
#include "transport/provider.h"

namespace spark_hvd {

class AloneControlPlane : public ControlPlane {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Send(int peer, Bytes bytes) override;
  Status Receive(bool* received, int* peer, Bytes* bytes) override;
  Status Flush(bool* sent) override;
  void Close() override {}
};

class AloneTransport : public Transport {
 public:
  const char* name() const override { return "alone"; }
  bool Serves(const Collective&) const override { return true; }
  std::unique_ptr<Operation> Start(const Collective& collective) override;
};

class AloneConsent : public Consent {
 public:
  Status Vote(int64_t sequence, bool ready) override;
  Status Ask(int64_t sequence, Answer* answer) override;
  std::vector<int32_t> Missing() const override { return {}; }

 private:
  int64_t sequence_ = 0;
  bool ready_ = false;
};

// Serves sets of one rank, and no others.
class AloneProvider : public Provider {
 public:
  Status Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) override;
  std::unique_ptr<Consent> OpenConsent(const Members& members) override;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_
