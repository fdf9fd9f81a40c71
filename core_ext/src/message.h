// What ranks tell each other while they agree, and its bytes. Owns the format only.
//
// A message is one byte of protocol version, one byte of type, then fields in host byte order (all ranks of a run have
// the same architecture). The parsers trust nothing: a message that is cut, too long, or from another version is an
// error, never a read beyond its end.
//
//   kRequests   rank r -> rank 0   collectives that became ready on r, in order of submission
//   kLeave      rank r -> rank 0   r submits nothing more
//   kResponses  rank 0 -> all      what to do next, in this order, the same list on every rank
//   kFailure    any -> all         the sender's engine has ended by an error or an abort; here is why
#ifndef SPARK_HVD_SRC_MESSAGE_H_
#define SPARK_HVD_SRC_MESSAGE_H_

#include <string>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

using Bytes = std::vector<char>;

enum class MessageType : uint8_t { kRequests = 1, kLeave = 2, kResponses = 3, kFailure = 4 };

enum class Verdict : uint8_t {
  kExecute = 0,  // run the collectives `names` as one
  kError = 1,    // end the collectives `names` with `status`
  kAllLeft = 2,  // every rank has left: stop
};

struct Response {
  Verdict verdict = Verdict::kExecute;
  std::vector<std::string> names;
  Status status;
  std::vector<int32_t> ranks;  // whom a kError concerns; empty: all

  bool Concerns(int rank) const;
};

Bytes PackRequests(const std::vector<Request>& requests);
Bytes PackLeave();
Bytes PackResponses(const std::vector<Response>& responses);
Bytes PackFailure(const Status& status);

// Type of a message; fails for one that is too short or was written by another version of the core.
Status ReadType(const Bytes& bytes, MessageType* type);
Status UnpackRequests(const Bytes& bytes, std::vector<Request>* requests);
Status UnpackResponses(const Bytes& bytes, std::vector<Response>* responses);
Status UnpackFailure(const Bytes& bytes, Status* failure);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_MESSAGE_H_
