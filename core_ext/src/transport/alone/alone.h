// A process that nobody launched: a world of one. No peer, no message; only copies and scaling.
#ifndef SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_
#define SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_

#include "control_plane.h"
#include "transport/transport.h"

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
  Status Allreduce(const Reduction& reduction, Patience* patience) override;
  Status Broadcast(void* data, int64_t bytes, int root, Patience* patience) override;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_ALONE_ALONE_H_
