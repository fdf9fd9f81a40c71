// Messages of one kind between this rank and one peer, in order, some of them under way.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_STREAM_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_STREAM_H_

#include <deque>
#include <vector>

#include "transport/link.h"
#include "transport/provider.h"

namespace spark_hvd {

// The kinds of messages of a process set.
enum class Use : int32_t { kContribution = 0, kResult = 1, kBlock = 2, kConsent = 3 };

// A process set, seen over a link between all ranks of the world.
struct Circle {
  Link* link = nullptr;
  Members members;

  // Sets use different tags, so that what they have under way at once does not mix. The standard grants 32,767.
  int32_t Tag(Use use) const { return kControlTag + 1 + members.set % 8000 * 4 + static_cast<int32_t>(use); }
};

class Stream {
 public:
  // `peer`: position in the process set.
  Stream(const Circle& circle, int32_t peer, Use use)
      : link_(circle.link), peer_(peer), rank_(circle.members.ranks[peer]), tag_(circle.Tag(use)) {}

  Status Send(const void* data, int64_t bytes);
  Status Receive(void* data, int64_t bytes);
  // Takes note of messages that are through, oldest first; sets *moved when there was one.
  Status Advance(bool* moved);
  // Gives up what is under way.
  void Cancel();

  int64_t posted() const { return done_ + under_way(); }
  int64_t done() const { return done_; }
  int64_t under_way() const { return static_cast<int64_t>(requests_.size()); }
  int32_t peer() const { return peer_; }

 private:
  Link* link_;
  int32_t peer_;
  int32_t rank_;
  int32_t tag_;
  std::deque<Link::Request> requests_;
  int64_t done_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_STREAM_H_
