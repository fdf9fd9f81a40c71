// Messages between two ranks: the little that a transport over a network needs, and that each MPI can give.
// Used by one thread; no call blocks. Messages of one sender and tag arrive in order.
#ifndef SPARK_HVD_SRC_TRANSPORT_LINK_H_
#define SPARK_HVD_SRC_TRANSPORT_LINK_H_

#include <cstdint>

#include "status.h"

namespace spark_hvd {

// The tag of control messages; each process set has a few of its own behind it.
constexpr int32_t kControlTag = 1;

class Link {
 public:
  using Request = uint64_t;

  virtual ~Link() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `data` must stay as it is until Test() says done. `bytes` fits an int.
  virtual Status Send(int peer, int32_t tag, const void* data, int64_t bytes, Request* request) = 0;
  virtual Status Receive(int peer, int32_t tag, void* data, int64_t bytes, Request* request) = 0;
  // A request that is done must not be tested again.
  virtual Status Test(Request* request, bool* done) = 0;
  // Whether a message with this tag waits, from whom, how long; Receive() from that peer takes it.
  virtual Status Probe(int32_t tag, bool* found, int* peer, int64_t* bytes) = 0;
  // After a failure: tries to keep a receive from writing to its memory.
  virtual void Cancel(Request* request) = 0;
  // Gives back what is shared with the other ranks, who all do the same.
  virtual void Close() = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_LINK_H_
