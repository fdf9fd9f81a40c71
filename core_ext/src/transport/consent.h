// How the ranks of a process set confirm a group that they have learned to expect: no message to the coordinator.
//
// For each sequence number every rank votes once: ready (it has all tensors of the group) or not (it has other work
// that must be agreed on first). The number is carried out when all are ready, and skipped on all ranks when one is
// not.
#ifndef SPARK_HVD_SRC_TRANSPORT_CONSENT_H_
#define SPARK_HVD_SRC_TRANSPORT_CONSENT_H_

#include <cstdint>

#include "status.h"

namespace spark_hvd {

enum class Answer : uint8_t { kOpen, kAllReady, kRefused };

class Consent {
 public:
  virtual ~Consent() = default;
  // Sequence numbers are voted on in ascending order, some are left out on all ranks. Wakes the peers if it can.
  virtual Status Vote(int64_t sequence, bool ready) = 0;
  // For the number that was voted on last. Once not open, the same for ever, on all ranks.
  virtual Status Ask(int64_t sequence, Answer* answer) = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_CONSENT_H_
