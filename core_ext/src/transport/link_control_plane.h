// The control plane of ranks that have a Link between them.
#ifndef SPARK_HVD_SRC_TRANSPORT_LINK_CONTROL_PLANE_H_
#define SPARK_HVD_SRC_TRANSPORT_LINK_CONTROL_PLANE_H_

#include <list>
#include <memory>

#include "control_plane.h"
#include "transport/link.h"

namespace spark_hvd {

class LinkControlPlane : public ControlPlane {
 public:
  explicit LinkControlPlane(std::shared_ptr<Link> link) : link_(std::move(link)) {}

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  Status Send(int peer, Bytes bytes) override;
  Status Receive(bool* received, int* peer, Bytes* bytes) override;
  Status Flush(bool* sent) override;
  void Close() override { link_->Close(); }

 private:
  struct Message {
    int peer = 0;
    Bytes bytes;
    Link::Request request = 0;
  };

  std::shared_ptr<Link> link_;
  std::list<Message> outgoing_;  // a list: the bytes must not move while they travel
  std::list<Message> incoming_;  // at most one: the message that Probe() found
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_LINK_CONTROL_PLANE_H_
