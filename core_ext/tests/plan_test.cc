// The pure parts: fusion plan, arithmetic, coordinator.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "check.h"
#include "coordinator.h"
#include "fusion.h"
#include "half.h"
#include "liveness.h"
#include "neutral.h"
#include "reduction.h"
#include "response_cache.h"

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
  for (const Request& request : response.requests) text += request.name;
  return text;
}

// Nothing is fused; ten seconds until ranks are given up.
const CoordinatorOptions kOptions{0, 10, 4};

const TimePoint kStart{};
// What is decided, without the offer to predict, which is turned down.
std::vector<Response> Decided(Coordinator* coordinator, TimePoint now) {
  std::vector<Response> responses = coordinator->Decide(now);
  if (!responses.empty() && responses.back().verdict == Verdict::kPredict) {
    responses.pop_back();
    coordinator->Resume(false);
  }
  return responses;
}

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
  Coordinator coordinator({0, 1}, kOptions);
  coordinator.Add(0, Named("a"), After(0));
  coordinator.Add(0, Named("b"), After(0));
  CHECK(Decided(&coordinator, After(1)).empty());
  coordinator.Add(1, Named("b"), After(1));
  coordinator.Add(1, Named("a"), After(1));
  const auto responses = Decided(&coordinator, After(1));
  CHECK_EQUAL(responses.size(), 2u);
  CHECK_EQUAL(Names(responses[0]) + Names(responses[1]), "ba");
  CHECK(Decided(&coordinator, After(2)).empty());
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
    Coordinator coordinator({0, 1, 2}, kOptions);
    Request changed = Named("x", 3);
    c.change(&changed);
    coordinator.Add(1, changed, After(0));
    coordinator.Add(0, Named("x", 3), After(0));
    CHECK(Decided(&coordinator, After(0)).empty());
    coordinator.Add(2, Named("x", 3), After(0));
    const auto responses = Decided(&coordinator, After(0));
    CHECK_EQUAL(responses.size(), 1u);
    CHECK(responses[0].verdict == Verdict::kError && responses[0].members.empty());
    CHECK(responses[0].status.code == HVD_MISMATCH);
    for (const char* part : {"'x'", c.property, c.first, c.second}) CHECK_CONTAINS(responses[0].status.message, part);
  }
}

TEST(coordinator_names_the_roots_of_a_broadcast) {
  Coordinator coordinator({0, 1}, kOptions);
  Request zero = Named("w", 3), one = Named("w", 3);
  zero.kind = one.kind = Kind::kBroadcast;
  one.root = 1;
  coordinator.Add(0, zero, After(0));
  coordinator.Add(1, one, After(0));
  const auto responses = Decided(&coordinator, After(0));
  CHECK_CONTAINS(responses[0].status.message, "root: 0 on rank 0; 1 on rank 1");
}

TEST(coordinator_gives_up_on_the_late_and_keeps_the_count) {
  Coordinator coordinator({0, 1, 2}, kOptions);
  coordinator.Add(0, Named("x"), After(0));
  coordinator.Add(2, Named("x"), After(5));
  CHECK(Decided(&coordinator, After(9)).empty());
  auto responses = Decided(&coordinator, After(10.5));
  CHECK_EQUAL(responses.size(), 1u);
  CHECK(responses[0].status.code == HVD_STALLED && responses[0].status.ranks == std::vector<int32_t>({1}));
  CHECK(responses[0].members == std::vector<int32_t>({0, 2}));
  CHECK_CONTAINS(responses[0].status.message, "ranks 0 and 2 waited for it, rank 1 did not join");
  // The late request gets the old answer, alone; the next round of the name pairs again.
  coordinator.Add(0, Named("x"), After(11));
  coordinator.Add(1, Named("x"), After(11));
  responses = Decided(&coordinator, After(11));
  CHECK_EQUAL(responses.size(), 1u);
  CHECK(responses[0].verdict == Verdict::kError && responses[0].members == std::vector<int32_t>({1}));
  coordinator.Add(1, Named("x"), After(12));
  coordinator.Add(2, Named("x"), After(12));
  responses = Decided(&coordinator, After(12));
  CHECK(responses.size() == 1 && responses[0].verdict == Verdict::kExecute);
}

TEST(coordinator_ends_what_a_rank_that_left_cannot_join) {
  Coordinator coordinator({0, 1}, kOptions);
  coordinator.Add(0, Named("before"), After(0));
  coordinator.Leave(1);
  coordinator.Add(0, Named("after"), After(0));
  const auto responses = Decided(&coordinator, After(0));
  CHECK_EQUAL(responses.size(), 2u);
  for (const Response& response : responses) {
    CHECK(response.status.code == HVD_SHUT_DOWN && response.status.ranks == std::vector<int32_t>({1}));
    CHECK_CONTAINS(response.status.message, "rank 1 has shut down");
  }
  CHECK(coordinator.present() == std::vector<int32_t>({0}));
  coordinator.Leave(0);
  CHECK(Decided(&coordinator, After(0)).back().verdict == Verdict::kAllLeft);
  CHECK(Decided(&coordinator, After(0)).empty());
}

TEST(coordinator_offers_to_predict_when_nothing_is_open_and_waits_for_the_answer) {
  Coordinator coordinator({0, 1}, kOptions);
  coordinator.Add(0, Named("a"), After(0));
  coordinator.Add(1, Named("a"), After(0));
  coordinator.Add(0, Named("b"), After(0));
  auto responses = coordinator.Decide(After(0));
  CHECK_EQUAL(responses.size(), 1u);  // "b" is open
  coordinator.Add(1, Named("b"), After(0));
  responses = coordinator.Decide(After(0));
  CHECK(responses.size() == 2 && responses[1].verdict == Verdict::kPredict);
  for (int rank : {0, 1}) coordinator.Add(rank, Named("c"), After(0));
  CHECK(coordinator.Decide(After(1)).empty());
  coordinator.Resume(false);
  responses = coordinator.Decide(After(1));
  CHECK_EQUAL(Names(responses[0]), "c");
  // Taken up: what came too late for the last round will be asked again.
  for (int rank : {0, 1}) coordinator.Add(rank, Named("d"), After(1));
  coordinator.Resume(true);
  CHECK(coordinator.Decide(After(2)).empty());
}

TEST(coordinator_speaks_of_ranks_not_of_places) {
  Coordinator coordinator({2, 5}, kOptions);
  coordinator.Add(0, Named("x", 3), After(0));
  coordinator.Add(1, Named("x", 4), After(0));
  CHECK_CONTAINS(Decided(&coordinator, After(0))[0].status.message, "(3,) on rank 2; (4,) on rank 5");
  CHECK(coordinator.present() == std::vector<int32_t>({2, 5}));
}

TEST(coordinator_collects_the_sizes_of_each_rank) {
  Coordinator coordinator({0, 1}, kOptions);
  Request gather = Named("g", 3), all_to_all = Named("a", 3);
  gather.kind = Kind::kAllgather;
  all_to_all.kind = Kind::kAlltoall;
  all_to_all.splits = {1, 2};
  coordinator.Add(0, gather, After(0));
  coordinator.Add(0, all_to_all, After(0));
  gather.shape = {8};
  all_to_all.shape = {4};
  all_to_all.splits = {4, 0};
  coordinator.Add(1, all_to_all, After(0));
  coordinator.Add(1, gather, After(0));
  const auto responses = Decided(&coordinator, After(0));
  CHECK(responses[0].sizes == std::vector<int64_t>({1, 2, 4, 0}));
  CHECK(responses[1].sizes == std::vector<int64_t>({3, 8}));
}

TEST(coordinator_counts_a_rank_that_joined_as_there) {
  Coordinator coordinator({0, 1, 2}, kOptions);
  Request join;
  join.kind = Kind::kJoin;
  join.name = "join";
  coordinator.Add(0, Named("x"), After(0));
  coordinator.Add(2, Named("x"), After(0));
  CHECK(Decided(&coordinator, After(0)).empty());
  coordinator.Add(1, join, After(0));
  auto responses = coordinator.Decide(After(0));
  CHECK(responses.size() == 1 && responses[0].verdict == Verdict::kExecute);
  // A broadcast from it has no meaning.
  Request broadcast = Named("w");
  broadcast.kind = Kind::kBroadcast;
  broadcast.root = 1;
  coordinator.Add(0, broadcast, After(1));
  coordinator.Add(2, broadcast, After(1));
  responses = coordinator.Decide(After(1));
  CHECK(responses[0].verdict == Verdict::kError && responses[0].members.empty());
  CHECK_CONTAINS(responses[0].status.message, "broadcast 'w': its root, rank 1, has called join()");
  // A rank that waits in join() is never given up for being late.
  CHECK(coordinator.Decide(After(1000)).empty());
  coordinator.Add(2, join, After(2));
  coordinator.Add(0, join, After(3));
  responses = coordinator.Decide(After(3));
  CHECK(responses[0].verdict == Verdict::kJoined && responses[0].value == 0);
  CHECK(responses[1].verdict == Verdict::kPredict);
}

TEST(coordinator_keeps_a_group_until_all_of_it_is_there) {
  Coordinator coordinator({0, 1}, kOptions);
  const auto member = [](const char* name, int64_t count) {
    Request request = Named(name, count);
    request.group = "g";
    request.group_size = 2;
    return request;
  };
  for (int rank : {0, 1}) coordinator.Add(rank, member("a", 2), After(0));
  for (int rank : {0, 1}) coordinator.Add(rank, Named("single"), After(0));
  auto responses = Decided(&coordinator, After(0));
  CHECK(responses.size() == 1 && Names(responses[0]) == "single");
  for (int rank : {0, 1}) coordinator.Add(rank, member("b", 3), After(0));
  responses = Decided(&coordinator, After(0));
  CHECK(responses.size() == 1 && Names(responses[0]) == "ab");
  // A mistake in one ends both.
  for (int rank : {0, 1}) coordinator.Add(rank, member("a", 2), After(1));
  for (int rank : {0, 1}) coordinator.Add(rank, member("b", 3 + rank), After(1));
  responses = Decided(&coordinator, After(1));
  CHECK_EQUAL(responses.size(), 2u);
  for (const Response& response : responses) CHECK_CONTAINS(response.status.message, "allreduce 'b': ranks disagree");
}

TEST(coordinator_reports_a_stall_once) {
  Coordinator coordinator({0, 1, 2}, kOptions);
  coordinator.Add(0, Named("x"), After(0));
  coordinator.Add(0, Named("y"), After(0));
  (void)coordinator.Decide(After(3));
  CHECK(coordinator.TakeReports().empty());
  (void)coordinator.Decide(After(5));
  const auto reports = coordinator.TakeReports();
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_CONTAINS(reports[0],
                 "ranks 1 and 2 did not join 'x', 'y', which the other ranks have waited for more than 4 s");
  (void)coordinator.Decide(After(7));
  CHECK(coordinator.TakeReports().empty());
}

TEST(fusion_never_splits_an_explicit_group) {
  const auto member = [](const char* name, int64_t count) {
    Request request = Named(name, count);
    request.group = "g";
    request.group_size = 2;
    return request;
  };
  using Plan = std::vector<std::vector<size_t>>;
  CHECK(PlanFusion({Named("0", 4), member("1", 10), member("2", 10)}, 64) == Plan({{0}, {1, 2}}));
  CHECK(PlanFusion({Named("0", 4), member("1", 5), member("2", 5)}, 64) == Plan({{0, 1, 2}}));
  CHECK(PlanFusion({member("0", 100), member("1", 100)}, 64) == Plan({{0, 1}}));
}

namespace {

std::string Foretold(const ResponseCache& cache, int64_t threshold) {
  std::string names;
  for (const auto* item : cache.Predict(threshold)) names += item->request.name;
  return names;
}

}  // namespace

TEST(cache_foretells_what_followed_last_time) {
  ResponseCache cache(100);
  CHECK_EQUAL(Foretold(cache, 1000), "");
  for (const char* name : {"a", "b", "c"}) cache.Learn(Named(name, 10));
  CHECK_EQUAL(Foretold(cache, 1000), "");
  cache.Learn(Named("a", 10));
  CHECK_EQUAL(Foretold(cache, 1000), "bca");
  CHECK_EQUAL(Foretold(cache, 80), "bc");
  CHECK_EQUAL(Foretold(cache, 1), "b");  // one at least
  cache.AddBoundary("c");
  CHECK_EQUAL(Foretold(cache, 1000), "b");
  cache.Learn(Named("b", 10));
  CHECK_EQUAL(Foretold(cache, 1000), "cab");
  // Another way from here on.
  cache.Learn(Named("d", 10));
  CHECK_EQUAL(Foretold(cache, 1000), "");
  cache.Learn(Named("a", 10));
  CHECK_EQUAL(Foretold(cache, 1000), "bda");
}

// A name that is used several times in a step is followed by something else each time.
TEST(cache_tells_the_uses_of_a_name_apart) {
  for (const std::string step : {"abac", "aaab", "aabaaac", "xaybxazc", "aaaaaaaaab"}) {
    ResponseCache cache(100);
    const auto learn = [&](char name) { cache.Learn(Named(std::string(1, name).c_str(), 10)); };
    for (int round = 0; round < 2; ++round) {
      for (char name : step) learn(name);
    }
    for (int round = 0; round < 3; ++round) {
      for (char name : step) {
        CHECK_EQUAL(Foretold(cache, 1), std::string(1, name));
        learn(name);
      }
    }
  }
}

// Something that comes now and then misleads once.
TEST(cache_forgets_an_exception_soon) {
  ResponseCache cache(100);
  const auto learn = [&](const std::string& names) {
    int wrong = 0;
    for (char name : names) {
      wrong += Foretold(cache, 1) != std::string(1, name) ? 1 : 0;
      cache.Learn(Named(std::string(1, name).c_str(), 10));
    }
    return wrong;
  };
  learn("abcabc");
  CHECK_EQUAL(learn("abc"), 0);
  CHECK_EQUAL(learn("abxc"), 2);
  CHECK_EQUAL(learn("abcabcabc"), 1);
}

// However long a run is, it takes no more memory than its end.
TEST(cache_learns_on_for_ever) {
  ResponseCache cache(3);
  for (int step = 0; step < 3000; ++step) {
    for (const char* name : {"a", "b", "c"}) cache.Learn(Named(name, 10));
  }
  CHECK_EQUAL(Foretold(cache, 1000), "abc");
}

TEST(cache_stops_before_what_cannot_be_fused_or_foretold) {
  ResponseCache cache(100);
  Request gather = Named("g");
  gather.kind = Kind::kAllgather;
  Request other = Named("o", 1, HVD_FLOAT64);
  for (int round = 0; round < 2; ++round) {
    for (const Request& request : {Named("a"), other, gather}) cache.Learn(request);
  }
  CHECK_EQUAL(Foretold(cache, 1000), "a");
  cache.Learn(Named("a"));
  CHECK_EQUAL(Foretold(cache, 1000), "o");
  cache.Learn(other);
  CHECK_EQUAL(Foretold(cache, 1000), "");
}

TEST(cache_keeps_groups_whole) {
  ResponseCache cache(100);
  const auto member = [](const char* name) {
    Request request = Named(name, 10);
    request.group = "g";
    request.group_size = 2;
    return request;
  };
  for (int round = 0; round < 2; ++round) {
    for (const Request& request : {Named("z", 1), Named("a", 10), member("1"), member("2")}) cache.Learn(request);
  }
  cache.Learn(Named("z", 1));
  CHECK_EQUAL(Foretold(cache, 90), "a");
  CHECK_EQUAL(Foretold(cache, 120), "a12");
  cache.Learn(Named("a", 10));
  CHECK_EQUAL(Foretold(cache, 4), "12");
}

TEST(cache_that_is_full_begins_anew) {
  ResponseCache cache(2), none(0);
  for (const char* name : {"a", "b", "a"}) {
    cache.Learn(Named(name));
    none.Learn(Named(name));
  }
  CHECK_EQUAL(Foretold(cache, 1000), "ba");
  CHECK_EQUAL(Foretold(none, 1000), "");
  cache.Learn(Named("c"));
  CHECK_EQUAL(Foretold(cache, 1000), "");
  CHECK(cache.Find("a") == nullptr && cache.Find("c") != nullptr);
}

TEST(liveness_names_who_is_silent) {
  Liveness first(0, 3, 10, After(0));
  std::vector<int> told;
  const auto send = [&](int rank) {
    told.push_back(rank);
    return Status::Ok();
  };
  CHECK_OK(first.Check(After(1), send));
  CHECK(told == std::vector<int>({1, 2}));
  for (double second = 2; second < 11; second += 1) {
    first.Heard(1, After(second));
    CHECK_OK(first.Check(After(second), send));
  }
  const Status status = first.Check(After(11), send);
  CHECK(status.code == HVD_PEER_FAILED && status.ranks == std::vector<int32_t>({2}));
  // Other ranks watch the first one; a process that was stopped itself does not blame it.
  Liveness second(1, 3, 10, After(0));
  CHECK_OK(second.Check(After(100), send));
  CHECK_EQUAL(told.back(), 0);
}

TEST(neutral_values_change_nothing) {
  for (int32_t op : {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT}) {
    for (int32_t dtype = HVD_FLOAT32; dtype <= HVD_BOOL; ++dtype) {
      unsigned char data[8] = {0, 0, 0, 0, 0, 0, 0, 0}, neutral[8], out[8];
      if (dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16) data[1] = 0xc0;  // -2
      if (dtype == HVD_BOOL) data[0] = op == HVD_PRODUCT ? 1 : 0;
      FillNeutral(neutral, 1, dtype, op);
      const void* inputs[] = {data, neutral};
      void* output = out;
      Reduce(inputs, 2, &output, 1, 1, Arithmetic::Of(dtype, op, {}, 2));
      CHECK(std::memcmp(out, data, static_cast<size_t>(ElementSize(dtype))) == 0);
    }
  }
}

TEST(half_floats_round_to_even) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if (!std::isnan(FromFloat16(half))) CHECK_EQUAL(ToFloat16(FromFloat16(half)), half);
    if (!std::isnan(FromBfloat16(half))) CHECK_EQUAL(ToBfloat16(FromBfloat16(half)), half);
  }
  CHECK_EQUAL(ToFloat16(2049.f), ToFloat16(2048.f));
  CHECK_EQUAL(ToFloat16(2051.f), ToFloat16(2052.f));
  CHECK_EQUAL(ToFloat16(65520.f), 0x7c00);
  CHECK_EQUAL(ToFloat16(65519.f), 0x7bff);
  CHECK(std::isnan(FromFloat16(ToFloat16(std::nanf("")))) && std::isnan(FromBfloat16(ToBfloat16(std::nanf("")))));
}
