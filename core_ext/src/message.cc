#include "message.h"

#include <algorithm>
#include <cstring>

namespace spark_hvd {
namespace {

constexpr uint8_t kProtocol = 2;
constexpr size_t kHeader = 2 + 2 * sizeof(int32_t);

class Writer {
 public:
  explicit Writer(const Header& header) {
    Put(kProtocol);
    Put(static_cast<uint8_t>(header.type));
    Put(header.set);
    Put(header.round);
  }

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic<T>::value, "plain numbers only");
    Append(&value, sizeof(T));
  }

  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    Append(text.data(), text.size());
  }

  template <typename T>
  void PutNumbers(const std::vector<T>& values) {
    Put(static_cast<uint32_t>(values.size()));
    for (T value : values) Put(value);
  }

  void PutTexts(const std::vector<std::string>& texts) {
    Put(static_cast<uint32_t>(texts.size()));
    for (const std::string& text : texts) Put(text);
  }

  void Put(const Status& status) {
    Put(static_cast<int32_t>(status.code));
    Put(status.message);
    PutNumbers(status.ranks);
  }

  Bytes Take() { return std::move(bytes_); }

 private:
  void Append(const void* data, size_t size) {
    const size_t at = bytes_.size();
    bytes_.resize(at + size);
    if (size > 0) std::memcpy(bytes_.data() + at, data, size);
  }

  Bytes bytes_;
};

// After a read beyond the end every later read gives zeros, and Finish() fails.
class Reader {
 public:
  explicit Reader(const Bytes& bytes) : bytes_(bytes), at_(kHeader), bad_(bytes.size() < kHeader) {}

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

  std::vector<std::string> GetTexts() {
    const uint32_t count = GetCount(sizeof(uint32_t));
    std::vector<std::string> texts;
    for (uint32_t i = 0; i < count; ++i) texts.push_back(GetText());
    return texts;
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
  bool bad_;
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
  out->Put(request.group);
  out->Put(request.group_size);
  out->PutNumbers(request.splits);
  out->Put(request.payload);
  out->Put(request.age);
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
  request.group = in->GetText();
  request.group_size = in->Get<int32_t>();
  request.splits = in->GetNumbers<int64_t>();
  request.payload = in->GetText();
  request.age = in->Get<double>();
  return request;
}

void PutRequests(Writer* out, const std::vector<Request>& requests) {
  out->Put(static_cast<uint32_t>(requests.size()));
  for (const Request& request : requests) Put(out, request);
}

void GetRequests(Reader* in, std::vector<Request>* requests) {
  constexpr size_t kLeast = 1 + 4 + 3 * 4 + 2 * 8 + 4 + 4 + 4 + 4 + 4 + 8;
  const uint32_t count = in->GetCount(kLeast);
  for (uint32_t i = 0; i < count; ++i) requests->push_back(GetRequest(in));
}

}  // namespace

bool Response::Concerns(int32_t position) const {
  return members.empty() || std::find(members.begin(), members.end(), position) != members.end();
}

Response MakeError(std::vector<std::string> names, Status status, std::vector<int32_t> members) {
  Response response;
  response.verdict = Verdict::kError;
  response.names = std::move(names);
  response.status = std::move(status);
  response.members = std::move(members);
  return response;
}

Bytes PackRequests(const Header& header, const std::vector<Request>& requests, const std::string& boundary) {
  Writer out(header);
  out.Put(boundary);
  PutRequests(&out, requests);
  return out.Take();
}

Bytes PackResponses(const Header& header, const std::vector<Response>& responses) {
  Writer out(header);
  out.Put(static_cast<uint32_t>(responses.size()));
  for (const Response& response : responses) {
    out.Put(static_cast<uint8_t>(response.verdict));
    out.PutTexts(response.names);
    PutRequests(&out, response.requests);
    out.PutNumbers(response.sizes);
    out.PutTexts(response.payloads);
    out.Put(response.value);
    out.Put(response.status);
    out.PutNumbers(response.members);
  }
  return out.Take();
}

Bytes PackFailure(const Status& status) {
  Header header;
  header.type = MessageType::kFailure;
  Writer out(header);
  out.Put(status);
  return out.Take();
}

Bytes PackAsk(const Header& header, int64_t sequence) {
  Writer out(header);
  out.Put(sequence);
  return out.Take();
}

Bytes PackHeader(const Header& header) { return Writer(header).Take(); }

Status ReadHeader(const Bytes& bytes, Header* header) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() < kHeader || at(0) != kProtocol || at(1) < 1 || at(1) > static_cast<int>(MessageType::kAlive)) {
    return Status::Error(HVD_INTERNAL, "a message between ranks has an unknown form; do all run the same spark_hvd?");
  }
  header->type = static_cast<MessageType>(at(1));
  std::memcpy(&header->set, bytes.data() + 2, sizeof(header->set));
  std::memcpy(&header->round, bytes.data() + 6, sizeof(header->round));
  return Status::Ok();
}

Status UnpackRequests(const Bytes& bytes, std::vector<Request>* requests, std::string* boundary) {
  Reader in(bytes);
  *boundary = in.GetText();
  GetRequests(&in, requests);
  return in.Finish();
}

Status UnpackResponses(const Bytes& bytes, std::vector<Response>* responses) {
  Reader in(bytes);
  const uint32_t count = in.GetCount(1 + 4 * 4 + 8 + 3 * 4 + 4);
  for (uint32_t i = 0; i < count; ++i) {
    Response response;
    response.verdict = static_cast<Verdict>(in.GetEnum(static_cast<uint8_t>(Verdict::kExchanged)));
    response.names = in.GetTexts();
    GetRequests(&in, &response.requests);
    response.sizes = in.GetNumbers<int64_t>();
    response.payloads = in.GetTexts();
    response.value = in.Get<int64_t>();
    response.status = in.GetStatus();
    response.members = in.GetNumbers<int32_t>();
    responses->push_back(std::move(response));
  }
  return in.Finish();
}

Status UnpackFailure(const Bytes& bytes, Status* failure) {
  Reader in(bytes);
  *failure = in.GetStatus();
  return in.Finish();
}

Status UnpackAsk(const Bytes& bytes, int64_t* sequence) {
  Reader in(bytes);
  *sequence = in.Get<int64_t>();
  return in.Finish();
}

}  // namespace spark_hvd
