// Allreduce over several hosts: shared memory inside each, messages between. Hosts are made of threads here: a rank is
// not told where the memory of another "host" is.
#include <cstring>
#include <random>

#include "check.h"
#include "reduction.h"
#include "shm_world.h"
#include "thread_link.h"
#include "transport/direct/direct_transport.h"
#include "transport/layered/layered_transport.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

Members All(int size, int rank) {
  Members members;
  for (int32_t i = 0; i < size; ++i) members.ranks.push_back(i);
  members.position = rank;
  return members;
}

// Forgets what ranks of other hosts say in the first round, which is where their memory is.
Exchange OnHosts(Exchange exchange, std::vector<int> host_of, int rank) {
  auto first = std::make_shared<bool>(true);
  return [=](const std::string& mine, std::vector<std::string>* all) {
    Status status = exchange(mine, all);
    for (size_t i = 0; i < all->size() && *first; ++i) {
      if (host_of[i] != host_of[static_cast<size_t>(rank)]) (*all)[i].clear();
    }
    *first = false;
    return status;
  };
}

std::vector<float> Values(int rank, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 31 + 5));
  std::normal_distribution<float> normal(0.f, 1e3f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Sum inside each host, then over the hosts, in order.
std::vector<float> Expected(const Hosts& hosts, int size, int64_t count, const Scaling& scaling) {
  std::vector<std::vector<float>> sums;
  std::vector<const void*> pointers;
  for (const auto& host : hosts) {
    std::vector<std::vector<float>> inputs;
    for (int32_t rank : host) inputs.push_back(Values(rank, count));
    pointers.clear();
    for (const auto& input : inputs) pointers.push_back(input.data());
    sums.emplace_back(static_cast<size_t>(count));
    void* out = sums.back().data();
    Arithmetic inside;
    inside.prescale = scaling.prescale;
    Reduce(pointers.data(), static_cast<int>(pointers.size()), &out, 1, count, inside);
  }
  pointers.clear();
  for (const auto& sum : sums) pointers.push_back(sum.data());
  std::vector<float> result(static_cast<size_t>(count));
  void* out = result.data();
  Arithmetic across;
  across.divisor = scaling.average ? size : 1;
  across.postscale = scaling.postscale;
  Reduce(pointers.data(), static_cast<int>(pointers.size()), &out, 1, count, across);
  return result;
}

void CheckLayered(const std::vector<int>& host_of, int carriers) {
  const int size = static_cast<int>(host_of.size());
  const auto links = MakeLinks(size);
  RunThreads(size, [&](ShmRank& me) {
    const Exchange exchange = OnHosts(me.exchange, host_of, me.rank);
    std::string note;
    const auto take = [&](const std::string& text) { note = text; };
    ShmProvider shm(std::make_shared<Segments>(), 60, take);
    const Members all = All(size, me.rank);
    CHECK_OK(shm.Open(all, exchange, &me.transport));
    CHECK(!me.transport);
    me.host = shm.host();
    LayeredProvider provider([&] { return shm.host(); },
                             [&](Members members) {
                               return std::make_unique<DirectTransport>(links[static_cast<size_t>(me.rank)],
                                                                        std::move(members));
                             },
                             take);
    CHECK_OK(provider.Open(all, exchange, &me.transport));
    if (carriers == 0) {
      CHECK(!me.transport);
      return;
    }
    CHECK(me.transport != nullptr);
    CHECK_EQUAL(LayerPlan::Of(all, me.host->hosts()).carriers, carriers);
    for (const Scaling& scaling : {Scaling{}, Scaling{1.0, 1.0, true}, Scaling{0.5, 3.0, false}}) {
      for (int64_t count : {0, 1, 5, 1000, 70001}) {
        std::vector<float> data = Values(me.rank, count), small = Values(me.rank, 3);
        Collective c;
        c.kind = Kind::kAllreduce;
        c.op = scaling.average ? HVD_AVERAGE : HVD_SUM;
        c.scaling = scaling;
        c.spans = {{data.data(), data.data(), count}, {small.data(), small.data(), 3}};
        me.Run(c);
        const auto want = Expected(me.host->hosts(), size, count, scaling);
        CHECK(count == 0 || std::memcmp(data.data(), want.data(), want.size() * sizeof(float)) == 0);
        CHECK(small == Expected(me.host->hosts(), size, 3, scaling));
      }
    }
  });
}

}  // namespace

TEST(layered_allreduce_over_two_hosts_of_two) { CheckLayered({0, 0, 1, 1}, 2); }
TEST(layered_allreduce_with_ranks_dealt_in_turn) { CheckLayered({0, 1, 0, 1}, 2); }
TEST(layered_allreduce_over_uneven_hosts) { CheckLayered({0, 0, 0, 1, 1}, 2); }
TEST(layered_allreduce_beside_a_lone_rank) { CheckLayered({0, 1, 1}, 1); }
TEST(layered_has_nothing_to_do_for_lone_ranks) { CheckLayered({0, 1}, 0); }

TEST(layer_plan_of_a_process_set) {
  Members members;
  members.ranks = {1, 2, 4, 5};
  members.position = 3;
  const LayerPlan plan = LayerPlan::Of(members, {{0, 1, 2}, {3, 4, 5}});
  CHECK_EQUAL(plan.carriers, 2);
  CHECK(plan.carries);
  CHECK((plan.local == std::vector<int32_t>{2, 3}));
  CHECK((plan.crossing == std::vector<int32_t>{1, 3}));
  CHECK_EQUAL(LayerPlan::Of(members, {{0, 1, 2, 3, 4, 5}}).carriers, 0);
}
