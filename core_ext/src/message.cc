#include "message.h"

#include <algorithm>
#include <cstring>

namespace spark_hvd {
namespace {

constexpr uint8_t kProtocol = 1;
constexpr size_t kHeader = 2;

class Writer {
 public:
  explicit Writer(MessageType type) {
    Put(kProtocol);
    Put(static_cast<uint8_t>(type));
  }

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic<T>::value, "plain numbers only");
    const char* begin = reinterpret_cast<const char*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
  }

  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }

  template <typename T>
  void PutNumbers(const std::vector<T>& values) {
    Put(static_cast<uint32_t>(values.size()));
    for (T value : values) Put(value);
  }

  void Put(const Status& status) {
    Put(static_cast<int32_t>(status.code));
    Put(status.message);
    PutNumbers(status.ranks);
  }

  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// After a read beyond the end every later read gives zeros, and Finish() fails.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes), at_(kHeader) {}

  template <typename T>
  T Get() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string GetText() {
    const uint32_t size = Get<uint32_t>();
    if (!Has(size)) return {};
    std::string text(bytes_.data() + at_, size);
    at_ += size;
    return text;
  }

  template <typename T>
  std::vector<T> GetNumbers() {
    const uint32_t count = GetCount(sizeof(T));
    std::vector<T> values(count);
    for (T& value : values) value = Get<T>();
    return values;
  }

  // A count of items that take at least `least` bytes each: never more than the message can hold.
  uint32_t GetCount(size_t least) {
    const uint32_t count = Get<uint32_t>();
    return Has(static_cast<size_t>(count) * least) ? count : 0;
  }

  Status GetStatus() {
    Status status;
    const int32_t code = Get<int32_t>();
    if (code < HVD_OK || code > HVD_STALLED) bad_ = true;
    status.code = bad_ ? HVD_INTERNAL : static_cast<hvd_status>(code);
    status.message = GetText();
    status.ranks = GetNumbers<int32_t>();
    return status;
  }

  uint8_t GetEnum(uint8_t largest) {
    const uint8_t value = Get<uint8_t>();
    if (value > largest) bad_ = true;
    return bad_ ? 0 : value;
  }

  Status Finish() const {
    if (!bad_ && at_ == bytes_.size()) return Status::Ok();
    return Status::Error(HVD_INTERNAL, "a message of " + std::to_string(bytes_.size()) +
                                           " bytes between ranks is damaged; do all ranks run the same spark_hvd?");
  }

 private:
  bool Has(size_t size) {
    if (bad_ || size > bytes_.size() - at_) bad_ = true;
    return !bad_;
  }

  const Bytes& bytes_;
  size_t at_;
  bool bad_ = false;
};

void Put(Writer* out, const Request& request) {
  out->Put(static_cast<uint8_t>(request.kind));
  out->Put(request.name);
  out->Put(request.dtype);
  out->Put(request.op);
  out->Put(request.root);
  out->Put(request.scaling.prescale);
  out->Put(request.scaling.postscale);
  out->PutNumbers(request.shape);
}

Request GetRequest(Reader* in) {
  Request request;
  request.kind = static_cast<Kind>(in->GetEnum(kKinds - 1));
  request.name = in->GetText();
  request.dtype = in->Get<int32_t>();
  request.op = in->Get<int32_t>();
  request.root = in->Get<int32_t>();
  request.scaling.prescale = in->Get<double>();
  request.scaling.postscale = in->Get<double>();
  request.scaling.average = request.op == HVD_AVERAGE;
  request.shape = in->GetNumbers<int64_t>();
  return request;
}

}  // namespace

bool Response::Concerns(int rank) const {
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Bytes PackRequests(const std::vector<Request>& requests) {
  Writer out(MessageType::kRequests);
  out.Put(static_cast<uint32_t>(requests.size()));
  for (const Request& request : requests) Put(&out, request);
  return out.Take();
}

Bytes PackLeave() { return Writer(MessageType::kLeave).Take(); }

Bytes PackResponses(const std::vector<Response>& responses) {
  Writer out(MessageType::kResponses);
  out.Put(static_cast<uint32_t>(responses.size()));
  for (const Response& response : responses) {
    out.Put(static_cast<uint8_t>(response.verdict));
    out.Put(static_cast<uint32_t>(response.names.size()));
    for (const std::string& name : response.names) out.Put(name);
    out.Put(response.status);
    out.PutNumbers(response.ranks);
  }
  return out.Take();
}

Bytes PackFailure(const Status& status) {
  Writer out(MessageType::kFailure);
  out.Put(status);
  return out.Take();
}

Status ReadType(const Bytes& bytes, MessageType* type) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() < kHeader || at(0) != kProtocol || at(1) < 1 || at(1) > 4) {
    return Status::Error(HVD_INTERNAL, "a message between ranks has an unknown form; do all run the same spark_hvd?");
  }
  *type = static_cast<MessageType>(at(1));
  return Status::Ok();
}

Status UnpackRequests(const Bytes& bytes, std::vector<Request>* requests) {
  Reader in(bytes);
  constexpr size_t kLeast = 1 + 4 + 3 * 4 + 2 * 8 + 4;
  const uint32_t count = in.GetCount(kLeast);
  for (uint32_t i = 0; i < count; ++i) requests->push_back(GetRequest(&in));
  return in.Finish();
}

Status UnpackResponses(const Bytes& bytes, std::vector<Response>* responses) {
  Reader in(bytes);
  const uint32_t count = in.GetCount(1 + 4 + 3 * 4 + 4);
  for (uint32_t i = 0; i < count; ++i) {
    Response response;
    response.verdict = static_cast<Verdict>(in.GetEnum(2));
    const uint32_t names = in.GetCount(4);
    for (uint32_t k = 0; k < names; ++k) response.names.push_back(in.GetText());
    response.status = in.GetStatus();
    response.ranks = in.GetNumbers<int32_t>();
    responses->push_back(std::move(response));
  }
  return in.Finish();
}

Status UnpackFailure(const Bytes& bytes, Status* failure) {
  Reader in(bytes);
  *failure = in.GetStatus();
  return in.Finish();
}

}  // namespace spark_hvd
