// The pure parts: fusion plan, arithmetic, coordinator.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "check.h"
#include "coordinator.h"
#include "fusion.h"
#include "reduction.h"

using namespace spark_hvd;

namespace {

Request Named(const std::string& name, int64_t count = 1, int32_t dtype = HVD_FLOAT32) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = name;
  request.dtype = dtype;
  request.shape = {count};
  return request;
}

std::string Names(const Response& response) {
  std::string text;
  for (const std::string& name : response.names) text += name;
  return text;
}

const TimePoint kStart{};
TimePoint After(double seconds) { return kStart + ToDuration(seconds); }

}  // namespace

TEST(fusion_groups_by_kind_and_threshold) {
  Request barrier = Named("b");
  barrier.kind = Kind::kBarrier;
  Request other = Named("c", 1);
  other.op = HVD_AVERAGE;
  const std::vector<Request> ready = {Named("0", 10), barrier,          Named("2", 5), other,
                                      Named("4", 3),  Named("5", 1000), Named("6", 1), Named("7", 1, HVD_FLOAT64)};
  using Plan = std::vector<std::vector<size_t>>;
  CHECK(PlanFusion(ready, 64) == Plan({{0, 2}, {1}, {3}, {4, 6}, {5}, {7}}));
  CHECK(PlanFusion(ready, 1 << 20) == Plan({{0, 2, 4, 5, 6}, {1}, {3}, {7}}));
  CHECK_EQUAL(PlanFusion(ready, 0).size(), ready.size());
  CHECK(PlanFusion({}, 64).empty());
}

TEST(sum_is_taken_from_left_to_right) {
  // In float32 (1e8 + 1) - 1e8 is 0 and 1e8 - 1e8 + 1 is 1.
  const std::vector<float> a(3000, 1e8f), b(3000, 1.f), c(3000, -1e8f);
  std::vector<float> out(3000);
  SumInOrder({a.data(), b.data(), c.data()}, out.data(), 3000, HVD_FLOAT32, {});
  CHECK_EQUAL(out[2999], (1e8f + 1.f) - 1e8f);
  SumInOrder({a.data(), c.data(), b.data()}, out.data(), 3000, HVD_FLOAT32, {});
  CHECK_EQUAL(out[0], 1.f);
}

TEST(sum_divides_then_scales_and_may_be_in_place) {
  std::vector<double> a = {1, 2, 4}, b = {2, 2, 2};
  SumInOrder({a.data(), b.data()}, b.data(), 3, HVD_FLOAT64, {1.0, 3.0, true});
  CHECK(b == std::vector<double>({4.5, 6, 9}));
  std::vector<int32_t> i = {-3, 5}, j = {0, 0};
  SumInOrder({i.data(), j.data()}, j.data(), 2, HVD_INT32, {1.0, 1.0, true});
  CHECK(j == std::vector<int32_t>({-1, 2}));
  std::vector<uint8_t> bytes = {9, 250};
  SumInOrder({bytes.data()}, bytes.data(), 2, HVD_UINT8, {});
  CHECK(bytes == std::vector<uint8_t>({9, 250}));
  Scale(a.data(), a.data(), 3, HVD_FLOAT64, 0.5);
  CHECK(a == std::vector<double>({0.5, 1, 2}));
}

TEST(coordinator_runs_what_all_have_joined_in_that_order) {
  Coordinator coordinator(2, 0, 10);
  coordinator.Add(0, Named("a"), After(0));
  coordinator.Add(0, Named("b"), After(0));
  CHECK(coordinator.Decide(After(1)).empty());
  coordinator.Add(1, Named("b"), After(1));
  coordinator.Add(1, Named("a"), After(1));
  const auto responses = coordinator.Decide(After(1));
  CHECK_EQUAL(responses.size(), 2u);
  CHECK_EQUAL(Names(responses[0]) + Names(responses[1]), "ba");
  CHECK(coordinator.Decide(After(2)).empty());
}

TEST(coordinator_names_ranks_and_values_of_a_disagreement) {
  struct Case {
    const char* property;
    const char* first;
    const char* second;
    void (*change)(Request*);
  };
  const Case cases[] = {
      {"shape", "(3,) on ranks 0 and 2", "(4,) on rank 1", [](Request* r) { r->shape = {4}; }},
      {"dtype", "float32 on ranks 0 and 2", "int64 on rank 1", [](Request* r) { r->dtype = HVD_INT64; }},
      {"op", "sum on ranks 0 and 2", "average on rank 1", [](Request* r) { r->op = HVD_AVERAGE; }},
      {"scaling", "postscale 1 on ranks 0 and 2", "postscale 2 on rank 1",
       [](Request* r) { r->scaling.postscale = 2; }},
      {"collective", "allreduce on ranks 0 and 2", "barrier on rank 1", [](Request* r) { r->kind = Kind::kBarrier; }},
  };
  for (const Case& c : cases) {
    Coordinator coordinator(3, 0, 10);
    Request changed = Named("x", 3);
    c.change(&changed);
    coordinator.Add(1, changed, After(0));
    coordinator.Add(0, Named("x", 3), After(0));
    CHECK(coordinator.Decide(After(0)).empty());
    coordinator.Add(2, Named("x", 3), After(0));
    const auto responses = coordinator.Decide(After(0));
    CHECK_EQUAL(responses.size(), 1u);
    CHECK(responses[0].verdict == Verdict::kError && responses[0].ranks.empty());
    CHECK(responses[0].status.code == HVD_MISMATCH);
    for (const char* part : {"'x'", c.property, c.first, c.second}) CHECK_CONTAINS(responses[0].status.message, part);
  }
}

TEST(coordinator_names_the_roots_of_a_broadcast) {
  Coordinator coordinator(2, 0, 10);
  Request zero = Named("w", 3), one = Named("w", 3);
  zero.kind = one.kind = Kind::kBroadcast;
  one.root = 1;
  coordinator.Add(0, zero, After(0));
  coordinator.Add(1, one, After(0));
  const auto responses = coordinator.Decide(After(0));
  CHECK_CONTAINS(responses[0].status.message, "root: 0 on rank 0; 1 on rank 1");
}

TEST(coordinator_gives_up_on_the_late_and_keeps_the_count) {
  Coordinator coordinator(3, 0, 10);
  coordinator.Add(0, Named("x"), After(0));
  coordinator.Add(2, Named("x"), After(5));
  CHECK(coordinator.Decide(After(9)).empty());
  auto responses = coordinator.Decide(After(10.5));
  CHECK_EQUAL(responses.size(), 1u);
  CHECK(responses[0].status.code == HVD_STALLED && responses[0].status.ranks == std::vector<int32_t>({1}));
  CHECK(responses[0].ranks == std::vector<int32_t>({0, 2}));
  CHECK_CONTAINS(responses[0].status.message, "ranks 0 and 2 waited for it, rank 1 did not join");
  // The late request gets the old answer, alone; the next round of the name pairs again.
  coordinator.Add(0, Named("x"), After(11));
  coordinator.Add(1, Named("x"), After(11));
  responses = coordinator.Decide(After(11));
  CHECK_EQUAL(responses.size(), 1u);
  CHECK(responses[0].verdict == Verdict::kError && responses[0].ranks == std::vector<int32_t>({1}));
  coordinator.Add(1, Named("x"), After(12));
  coordinator.Add(2, Named("x"), After(12));
  responses = coordinator.Decide(After(12));
  CHECK(responses.size() == 1 && responses[0].verdict == Verdict::kExecute);
}

TEST(coordinator_ends_what_a_rank_that_left_cannot_join) {
  Coordinator coordinator(2, 0, 10);
  coordinator.Add(0, Named("before"), After(0));
  coordinator.Leave(1);
  coordinator.Add(0, Named("after"), After(0));
  const auto responses = coordinator.Decide(After(0));
  CHECK_EQUAL(responses.size(), 2u);
  for (const Response& response : responses) {
    CHECK(response.status.code == HVD_SHUT_DOWN && response.status.ranks == std::vector<int32_t>({1}));
    CHECK_CONTAINS(response.status.message, "rank 1 has shut down");
  }
  CHECK(coordinator.present() == std::vector<int32_t>({0}));
  coordinator.Leave(0);
  CHECK(coordinator.Decide(After(0)).back().verdict == Verdict::kAllLeft);
  CHECK(coordinator.Decide(After(0)).empty());
}
