// What ranks tell each other while they agree, and its bytes. Owns the format only.
//
// A message is a header (protocol version, type, process set, round of agreement), then fields in host byte order (all
// ranks of a run have the same architecture). The parsers trust nothing: a message that is cut, too long, or from
// another version is an error, never a read beyond its end.
//
//   kRequests   member -> coordinator   collectives that became ready there, in order of submission
//   kLeave      member -> coordinator   it submits nothing more
//   kResponses  coordinator -> members  what to do next, in this order, the same list on every member
//   kAsk        member -> members       it has waited long for a learned group; those without it shall refuse
//   kFailure    any -> all              the sender's engine has ended by an error or an abort; here is why
//   kAlive      any -> all              nothing but that the sender's engine runs
#ifndef SPARK_HVD_SRC_MESSAGE_H_
#define SPARK_HVD_SRC_MESSAGE_H_

#include <string>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

using Bytes = std::vector<char>;

enum class MessageType : uint8_t {
  kRequests = 1,
  kLeave = 2,
  kResponses = 3,
  kFailure = 4,
  kAsk = 5,
  kAlive = 6,
};

struct Header {
  MessageType type = MessageType::kAlive;
  int32_t set = 0;
  int32_t round = 0;
};

enum class Verdict : uint8_t {
  kExecute = 0,   // run `requests` as one
  kError = 1,     // end the collectives `names` with `status`
  kAllLeft = 2,   // every rank has left: stop
  kPredict = 3,   // go on by what was learned, if something was
  kBoundary = 4,  // from now on each of `names` begins a learned group
  kJoined = 5,    // all have joined, `value` was the last rank
  kExchanged = 6  // the exchange `requests` brought `payloads`
};

struct Response {
  Verdict verdict = Verdict::kExecute;
  std::vector<std::string> names;
  std::vector<Request> requests;
  std::vector<int64_t> sizes;         // allgather: rows by rank; alltoall: rows, sender by receiver
  std::vector<std::string> payloads;  // by rank
  int64_t value = 0;
  Status status;
  std::vector<int32_t> members;  // positions of those that a kError concerns; empty: all

  bool Concerns(int32_t position) const;
};

Response MakeError(std::vector<std::string> names, Status status, std::vector<int32_t> members = {});

// `boundary`: name that should begin a learned group from now on; empty: none.
Bytes PackRequests(const Header& header, const std::vector<Request>& requests, const std::string& boundary);
Bytes PackResponses(const Header& header, const std::vector<Response>& responses);
Bytes PackFailure(const Status& status);
Bytes PackAsk(const Header& header, int64_t sequence);
// kLeave and kAlive are a header alone.
Bytes PackHeader(const Header& header);

// Fails for a message that is too short or was written by another version of the core.
Status ReadHeader(const Bytes& bytes, Header* header);
Status UnpackRequests(const Bytes& bytes, std::vector<Request>* requests, std::string* boundary);
Status UnpackResponses(const Bytes& bytes, std::vector<Response>* responses);
Status UnpackFailure(const Bytes& bytes, Status* failure);
Status UnpackAsk(const Bytes& bytes, int64_t* sequence);

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_MESSAGE_H_
