// Messages of one kind between this rank and one peer, in order, some of them under way.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_LANE_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_LANE_H_

#include <deque>

#include "transport/link.h"

namespace spark_hvd {

class Lane {
 public:
  Lane(Link* link, int peer, Tag tag) : link_(link), peer_(peer), tag_(tag) {}

  Status Send(const void* data, int64_t bytes);
  Status Receive(void* data, int64_t bytes);
  // Takes note of messages that are through, oldest first; sets *moved when there was one.
  Status Advance(bool* moved);
  // Gives up what is under way.
  void Cancel();

  int64_t posted() const { return done_ + under_way(); }
  int64_t done() const { return done_; }
  int64_t under_way() const { return static_cast<int64_t>(requests_.size()); }
  int peer() const { return peer_; }

 private:
  Link* link_;
  int peer_;
  Tag tag_;
  std::deque<Link::Request> requests_;
  int64_t done_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_LANE_H_
