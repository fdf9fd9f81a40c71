// Messages: what is written is what is read, and no damaged bytes are read beyond their end or believed.
#include "message.h"

#include <random>

#include "check.h"

using namespace spark_hvd;

namespace {

const Header kRequestsHeader{MessageType::kRequests, 3, 7};
const Header kResponsesHeader{MessageType::kResponses, 3, 7};

std::vector<Request> SomeRequests() {
  Request allreduce;
  allreduce.kind = Kind::kAllreduce;
  allreduce.name = "layer.0/weight";
  allreduce.dtype = HVD_FLOAT64;
  allreduce.op = HVD_AVERAGE;
  allreduce.scaling = {0.5, 2.0, true};
  allreduce.shape = {3, 0, 7};
  allreduce.group = "g";
  allreduce.group_size = 2;
  Request alltoall;
  alltoall.kind = Kind::kAlltoall;
  alltoall.name = "b";
  alltoall.splits = {1, 2};
  alltoall.payload = std::string("x\0y", 3);
  alltoall.age = 1.5;
  return {allreduce, alltoall};
}

std::vector<Response> SomeResponses() {
  Response execute, exchanged, left;
  execute.requests = SomeRequests();
  execute.sizes = {1, 2, 3};
  exchanged.verdict = Verdict::kExchanged;
  exchanged.payloads = {"", "abc"};
  exchanged.value = 9;
  left.verdict = Verdict::kAllLeft;
  return {execute, MakeError({"c"}, Status::Error(HVD_STALLED, "late", {1, 2}), {0, 3}), exchanged, left};
}

// Reads bytes as whatever they say they are; the answer does not matter, only that it comes.
void ReadAnything(const Bytes& bytes) {
  Header header;
  if (!ReadHeader(bytes, &header).ok()) return;
  std::vector<Request> requests;
  std::vector<Response> responses;
  std::string boundary;
  Status failure;
  int64_t sequence = 0;
  (void)UnpackRequests(bytes, &requests, &boundary);
  (void)UnpackResponses(bytes, &responses);
  (void)UnpackFailure(bytes, &failure);
  (void)UnpackAsk(bytes, &sequence);
}

}  // namespace

TEST(message_requests_come_back) {
  std::vector<Request> back;
  std::string boundary;
  const Bytes bytes = PackRequests(kRequestsHeader, SomeRequests(), "here");
  Header header;
  CHECK_OK(ReadHeader(bytes, &header));
  CHECK(header.type == MessageType::kRequests && header.set == 3 && header.round == 7);
  CHECK_OK(UnpackRequests(bytes, &back, &boundary));
  CHECK_EQUAL(boundary, "here");
  CHECK_EQUAL(back.size(), 2u);
  CHECK_EQUAL(back[0].name, "layer.0/weight");
  CHECK(back[0].SameAs(SomeRequests()[0]) && back[0].scaling.average);
  CHECK(back[1].splits == std::vector<int64_t>({1, 2}) && back[1].payload.size() == 3 && back[1].age == 1.5);
}

TEST(message_responses_and_failures_come_back) {
  std::vector<Response> back;
  CHECK_OK(UnpackResponses(PackResponses(kResponsesHeader, SomeResponses()), &back));
  CHECK_EQUAL(back.size(), 4u);
  CHECK(back[0].requests[1].name == "b" && back[0].sizes == std::vector<int64_t>({1, 2, 3}) && back[0].Concerns(5));
  CHECK(back[1].status.code == HVD_STALLED && back[1].status.ranks == std::vector<int32_t>({1, 2}));
  CHECK(back[1].names == std::vector<std::string>({"c"}) && back[1].Concerns(3) && !back[1].Concerns(1));
  CHECK(back[2].payloads == std::vector<std::string>({"", "abc"}) && back[2].value == 9);
  CHECK(back[3].verdict == Verdict::kAllLeft);
  Status failure;
  CHECK_OK(UnpackFailure(PackFailure(Status::Error(HVD_PEER_FAILED, "gone", {4})), &failure));
  CHECK(failure.code == HVD_PEER_FAILED && failure.message == "gone" && failure.ranks[0] == 4);
  int64_t sequence = 0;
  CHECK_OK(UnpackAsk(PackAsk({MessageType::kAsk, 0, 0}, 77), &sequence));
  CHECK_EQUAL(sequence, 77);
}

TEST(message_that_is_cut_or_longer_is_an_error) {
  const Bytes whole = PackResponses(kResponsesHeader, SomeResponses());
  for (size_t length = 0; length < whole.size(); ++length) {
    std::vector<Response> back;
    CHECK(!UnpackResponses(Bytes(whole.begin(), whole.begin() + static_cast<long>(length)), &back).ok());
  }
  Bytes longer = whole;
  longer.push_back(0);
  std::vector<Response> back;
  CHECK(!UnpackResponses(longer, &back).ok());
  Header header;
  CHECK(!ReadHeader({}, &header).ok());
  for (const size_t damaged : {size_t{0}, size_t{1}}) {
    Bytes bytes = whole;
    bytes[damaged] = 99;
    CHECK(!ReadHeader(bytes, &header).ok());
  }
}

TEST(message_with_random_damage_never_breaks_the_reader) {
  std::mt19937 random(7);
  const std::vector<Bytes> originals = {
      PackRequests(kRequestsHeader, SomeRequests(), "b"), PackResponses(kResponsesHeader, SomeResponses()),
      PackHeader({MessageType::kLeave, 0, 0}), PackFailure(Status::Error(HVD_INTERNAL, "x", {1}))};
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = originals[random() % originals.size()];
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i) bytes[1 + random() % (bytes.size() - 1)] = static_cast<char>(random());
    ReadAnything(bytes);
  }
}
