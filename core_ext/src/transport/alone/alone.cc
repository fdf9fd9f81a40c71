#include "transport/alone/alone.h"

#include <cstring>

#include "reduction.h"

namespace spark_hvd {
namespace {

class AloneOperation : public Operation {
 public:
  explicit AloneOperation(const Collective& collective) : collective_(collective) {}

  Status Advance(bool* moved, bool* done) override {
    const bool reduces = collective_.kind == Kind::kAllreduce || collective_.kind == Kind::kReducescatter;
    const Arithmetic arithmetic = Arithmetic::Of(collective_.dtype, collective_.op, collective_.scaling, 1);
    for (const Span& span : collective_.spans) {
      void* output = span.output;
      const size_t bytes = static_cast<size_t>(span.count * ElementSize(collective_.dtype));
      if (reduces) {
        Reduce(&span.input, 1, &output, 1, span.count, arithmetic);
      } else if (bytes > 0 && span.output != span.input) {
        std::memcpy(span.output, span.input, bytes);
      }
    }
    *moved = *done = true;
    return Status::Ok();
  }

  std::vector<int32_t> Missing() const override { return {}; }

 private:
  const Collective collective_;
};

}  // namespace

Status AloneControlPlane::Send(int peer, Bytes) {
  return Status::Error(HVD_INTERNAL, "a message to rank " + std::to_string(peer) + " of a world of one");
}

Status AloneControlPlane::Receive(bool* received, int*, Bytes*) {
  *received = false;
  return Status::Ok();
}

Status AloneControlPlane::Flush(bool* sent) {
  *sent = true;
  return Status::Ok();
}

std::unique_ptr<Operation> AloneTransport::Start(const Collective& collective) {
  return std::make_unique<AloneOperation>(collective);
}

Status AloneConsent::Vote(int64_t sequence, bool ready) {
  sequence_ = sequence;
  ready_ = ready;
  return Status::Ok();
}

Status AloneConsent::Ask(int64_t sequence, Answer* answer) {
  *answer = sequence != sequence_ ? Answer::kOpen : ready_ ? Answer::kAllReady : Answer::kRefused;
  return Status::Ok();
}

Status AloneProvider::Open(const Members& members, const Exchange&, std::unique_ptr<Transport>* out) {
  if (members.size() == 1) *out = std::make_unique<AloneTransport>();
  return Status::Ok();
}

std::unique_ptr<Consent> AloneProvider::OpenConsent(const Members& members) {
  return members.size() == 1 ? std::make_unique<AloneConsent>() : nullptr;
}

}  // namespace spark_hvd
