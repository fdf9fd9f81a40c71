// How the ranks of a process set confirm a group that they have learned to expect: no message to the coordinator.
//
// For each sequence number every rank votes once: ready (it has all tensors of the group) or not (it has other work
// that must be agreed on first). The number is carried out when all are ready, and skipped on all ranks when one is
// not.
#ifndef SPARK_HVD_SRC_TRANSPORT_CONSENT_H_
#define SPARK_HVD_SRC_TRANSPORT_CONSENT_H_

#include <cstdint>
#include <vector>

#include "status.h"

namespace spark_hvd {

enum class Answer : uint8_t { kOpen, kAllReady, kRefused };

class Consent {
 public:
  virtual ~Consent() = default;
  // Sequence numbers are voted on in ascending order, some are left out on all ranks. Wakes the peers if it can.
  virtual Status Vote(int64_t sequence, bool ready) = 0;
  // The answer, the same on all ranks, once all have voted. Before this rank's own vote: kRefused when a peer is known
  // to have refused; this rank should vote too then, for the others wait for it.
  virtual Status Ask(int64_t sequence, Answer* answer) = 0;
  // Members of the set that it waits for now, directly.
  virtual std::vector<int32_t> Missing() const = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_CONSENT_H_
