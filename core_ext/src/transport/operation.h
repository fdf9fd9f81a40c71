// What a transport is asked to do, and how it goes on: a collective in flight is a state machine that never waits.
//
// The engine drives it: Advance() goes as far as it can with what the peers have done so far, and returns. So
// operations of several process sets can be in flight at once, in any order, and whoever waits for a handle can drive
// the engine. Operations of one process set are started in the same order with the same sequence numbers on all of its
// ranks.
#ifndef SPARK_HVD_SRC_TRANSPORT_OPERATION_H_
#define SPARK_HVD_SRC_TRANSPORT_OPERATION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

// Part of a fused collective: one tensor. `output` may equal `input`.
struct Span {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements
};

// A collective as a transport sees it. All ranks of the process set start it with the same values but for the pointers
// and what is marked as this rank's own. Ranks are positions in the process set.
struct Collective {
  Kind kind = Kind::kBarrier;
  int32_t dtype = HVD_FLOAT32;
  int32_t op = HVD_SUM;
  Scaling scaling;
  int32_t root = 0;
  int64_t sequence = 0;     // ascends with the operations of the process set, the same on every rank, from 1
  std::vector<Span> spans;  // allreduce: any number, in one order on all ranks; barrier: none; others: exactly one
  // The output lies apart from the input, but for allreduce and broadcast.
  // Elements by rank. receive_counts: what each contributes (allgather) or receives (reducescatter), the same on all
  // ranks. Alltoall: what this rank sends to each and receives from each, its own.
  std::vector<int64_t> send_counts, receive_counts;
};

// Destroyed before it is done only when it or its transport is broken.
class Operation {
 public:
  virtual ~Operation() = default;
  // *moved: something happened. *done: this rank's part is complete (outputs are final, inputs may be changed).
  // Not OK: the transport is broken and is not used again.
  virtual Status Advance(bool* moved, bool* done) = 0;
  // The ranks of the process set that it waits for now.
  virtual std::vector<int32_t> Missing() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Whether it carries this collective; the same answer on all ranks of the set.
  virtual bool Serves(const Collective& collective) const = 0;
  virtual std::unique_ptr<Operation> Start(const Collective& collective) = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_OPERATION_H_
