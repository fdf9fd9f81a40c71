// Who carries a collective. One transport is one folder; the engine knows this interface only.
//
// Every rank calls the same methods in the same order with the same counts; the engine has seen to it. A method returns
// when this rank's part is done: its output is complete and its input may be changed. While it waits it asks its
// `Patience` whether it may go on, so a lost peer or a shutdown ends it. After anything but OK the transport is
// not used again and memory that it was given may still be written to by the network: its owner must not reuse it.
#ifndef SPARK_HVD_SRC_TRANSPORT_TRANSPORT_H_
#define SPARK_HVD_SRC_TRANSPORT_TRANSPORT_H_

#include <functional>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

// The engine's side of a wait.
class Patience {
 public:
  virtual ~Patience() = default;
  // Something moved: the clock starts anew.
  virtual void Moved() = 0;
  // Nothing moved: rests a little, and fails when there is no sense in waiting on. `waiting_for` names the peers.
  virtual Status Rest(const std::function<std::vector<int32_t>()>& waiting_for) = 0;
};

struct Reduction {
  const void* input = nullptr;
  void* output = nullptr;  // may equal input
  int64_t count = 0;       // elements
  int32_t dtype = HVD_FLOAT32;
  Scaling scaling;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Each element is summed over the ranks in ascending order, whatever else happens.
  virtual Status Allreduce(const Reduction& reduction, Patience* patience) = 0;
  // `data` holds the bytes of `root` on every rank afterwards.
  virtual Status Broadcast(void* data, int64_t bytes, int root, Patience* patience) = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_TRANSPORT_H_
