#include "transport/direct/stream.h"

namespace spark_hvd {

Status Stream::Send(const void* data, int64_t bytes) {
  Link::Request request = 0;
  Status status = link_->Send(rank_, tag_, data, bytes, &request);
  if (status.ok()) requests_.push_back(request);
  return status;
}

Status Stream::Receive(void* data, int64_t bytes) {
  Link::Request request = 0;
  Status status = link_->Receive(rank_, tag_, data, bytes, &request);
  if (status.ok()) requests_.push_back(request);
  return status;
}

Status Stream::Advance(bool* moved) {
  while (!requests_.empty()) {
    bool done = false;
    Status status = link_->Test(&requests_.front(), &done);
    if (!status.ok() || !done) return status;
    requests_.pop_front();
    ++done_;
    *moved = true;
  }
  return Status::Ok();
}

void Stream::Cancel() {
  for (Link::Request& request : requests_) link_->Cancel(&request);
}

}  // namespace spark_hvd
