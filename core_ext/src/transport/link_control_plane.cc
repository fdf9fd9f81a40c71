#include "transport/link_control_plane.h"

#include <climits>
#include <utility>

namespace spark_hvd {

Status LinkControlPlane::Send(int peer, Bytes bytes) {
  if (bytes.size() > static_cast<size_t>(INT_MAX)) {
    return Status::Error(HVD_INTERNAL, "a message between ranks of more than 2 GiB");
  }
  outgoing_.push_back({peer, std::move(bytes), 0});
  Message& message = outgoing_.back();
  Status status = link_->Send(peer, kControlTag, message.bytes.data(), static_cast<int64_t>(message.bytes.size()),
                              &message.request);
  if (!status.ok()) outgoing_.pop_back();
  return status;
}

Status LinkControlPlane::Receive(bool* received, int* peer, Bytes* bytes) {
  *received = false;
  bool sent = false;
  Status status = Flush(&sent);
  if (!status.ok()) return status;
  if (incoming_.empty()) {
    bool found = false;
    int64_t size = 0;
    Message message;
    status = link_->Probe(kControlTag, &found, &message.peer, &size);
    if (!status.ok() || !found) return status;
    message.bytes.resize(static_cast<size_t>(size));
    incoming_.push_back(std::move(message));
    Message& kept = incoming_.back();
    status = link_->Receive(kept.peer, kControlTag, kept.bytes.data(), size, &kept.request);
    if (!status.ok()) {
      incoming_.clear();
      return status;
    }
  }
  status = link_->Test(&incoming_.front().request, received);
  if (!status.ok() || !*received) return status;
  *peer = incoming_.front().peer;
  *bytes = std::move(incoming_.front().bytes);
  incoming_.clear();
  return status;
}

Status LinkControlPlane::Flush(bool* sent) {
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    bool done = false;
    Status status = link_->Test(&it->request, &done);
    if (!status.ok()) return status;
    it = done ? outgoing_.erase(it) : std::next(it);
  }
  *sent = outgoing_.empty();
  return Status::Ok();
}

}  // namespace spark_hvd
