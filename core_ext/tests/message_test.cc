// Messages: what is written is what is read, and no damaged bytes are read beyond their end or believed.
#include "message.h"

#include <random>

#include "check.h"

using namespace spark_hvd;

namespace {

std::vector<Request> SomeRequests() {
  Request allreduce;
  allreduce.kind = Kind::kAllreduce;
  allreduce.name = "layer.0/weight";
  allreduce.dtype = HVD_FLOAT64;
  allreduce.op = HVD_AVERAGE;
  allreduce.scaling = {0.5, 2.0, true};
  allreduce.shape = {3, 0, 7};
  Request barrier;
  barrier.name = "b";
  return {allreduce, barrier};
}

std::vector<Response> SomeResponses() {
  return {{Verdict::kExecute, {"a", "b"}, Status::Ok(), {}},
          {Verdict::kError, {"c"}, Status::Error(HVD_STALLED, "late", {1, 2}), {0, 3}},
          {Verdict::kAllLeft, {}, Status::Ok(), {}}};
}

// Reads bytes as whatever they say they are; the answer does not matter, only that it comes.
void ReadAnything(const Bytes& bytes) {
  MessageType type{};
  if (!ReadType(bytes, &type).ok()) return;
  std::vector<Request> requests;
  std::vector<Response> responses;
  Status failure;
  (void)UnpackRequests(bytes, &requests);
  (void)UnpackResponses(bytes, &responses);
  (void)UnpackFailure(bytes, &failure);
}

}  // namespace

TEST(message_requests_come_back) {
  std::vector<Request> back;
  CHECK_OK(UnpackRequests(PackRequests(SomeRequests()), &back));
  CHECK_EQUAL(back.size(), 2u);
  CHECK_EQUAL(back[0].name, "layer.0/weight");
  CHECK(back[0].kind == Kind::kAllreduce && back[0].dtype == HVD_FLOAT64 && back[0].op == HVD_AVERAGE);
  CHECK(back[0].shape == std::vector<int64_t>({3, 0, 7}));
  CHECK(back[0].scaling.prescale == 0.5 && back[0].scaling.postscale == 2.0 && back[0].scaling.average);
  CHECK(back[1].kind == Kind::kBarrier && back[1].shape.empty());
}

TEST(message_responses_and_failures_come_back) {
  std::vector<Response> back;
  CHECK_OK(UnpackResponses(PackResponses(SomeResponses()), &back));
  CHECK_EQUAL(back.size(), 3u);
  CHECK(back[0].names == std::vector<std::string>({"a", "b"}) && back[0].Concerns(5));
  CHECK(back[1].status.code == HVD_STALLED && back[1].status.ranks == std::vector<int32_t>({1, 2}));
  CHECK(back[1].Concerns(3) && !back[1].Concerns(1));
  CHECK(back[2].verdict == Verdict::kAllLeft);
  Status failure;
  CHECK_OK(UnpackFailure(PackFailure(Status::Error(HVD_PEER_FAILED, "gone", {4})), &failure));
  CHECK(failure.code == HVD_PEER_FAILED && failure.message == "gone" && failure.ranks[0] == 4);
}

TEST(message_that_is_cut_or_longer_is_an_error) {
  const Bytes whole = PackResponses(SomeResponses());
  for (size_t length = 2; length < whole.size(); ++length) {
    std::vector<Response> back;
    CHECK(!UnpackResponses(Bytes(whole.begin(), whole.begin() + static_cast<long>(length)), &back).ok());
  }
  Bytes longer = whole;
  longer.push_back(0);
  std::vector<Response> back;
  CHECK(!UnpackResponses(longer, &back).ok());
  MessageType type{};
  CHECK(!ReadType({}, &type).ok());
  CHECK(!ReadType({99, 1}, &type).ok());
  CHECK(!ReadType({1, 77}, &type).ok());
}

TEST(message_with_random_damage_never_breaks_the_reader) {
  std::mt19937 random(7);
  const std::vector<Bytes> originals = {PackRequests(SomeRequests()), PackResponses(SomeResponses()), PackLeave(),
                                        PackFailure(Status::Error(HVD_INTERNAL, "x", {1}))};
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = originals[random() % originals.size()];
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i) bytes[1 + random() % (bytes.size() - 1)] = static_cast<char>(random());
    ReadAnything(bytes);
  }
}
