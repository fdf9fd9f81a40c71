// The direct transport against plain arithmetic, over links on which a buffer that is reused too early shows.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "check.h"
#include "reduction.h"
#include "thread_link.h"

using namespace spark_hvd;
using namespace spark_hvd::test;

namespace {

class YieldPatience : public Patience {
 public:
  void Moved() override { turns_ = 0; }
  Status Rest(const std::function<std::vector<int32_t>()>& waiting_for) override {
    std::this_thread::yield();
    if (++turns_ < 5000000) return Status::Ok();
    return Status::Error(HVD_PEER_FAILED, "stuck waiting for " + RankList(waiting_for()));
  }

 private:
  int64_t turns_ = 0;
};

std::vector<float> Values(int rank, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919u + 1u);
  std::normal_distribution<float> normal(0.f, 1e3f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void CheckAllreduce(int size, int64_t count, bool in_place, const DirectOptions& options, const Scaling& scaling) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(Values(rank, count));
  std::vector<std::vector<float>> scaled = inputs;
  for (auto& values : scaled) {
    if (scaling.prescale != 1.0) Scale(values.data(), values.data(), count, HVD_FLOAT32, scaling.prescale);
    pointers.push_back(values.data());
  }
  std::vector<float> expected(static_cast<size_t>(count));
  SumInOrder(pointers, expected.data(), count, HVD_FLOAT32, scaling);

  const auto links = MakeLinks(size);
  RunRanks(size, [&](int rank) {
    DirectTransport transport(links[static_cast<size_t>(rank)], options);
    YieldPatience patience;
    for (int round = 0; round < 2; ++round) {
      std::vector<float> input = inputs[static_cast<size_t>(rank)], output(input.size(), -1.f);
      Reduction reduction;
      reduction.input = input.data();
      reduction.output = in_place ? input.data() : output.data();
      reduction.count = count;
      reduction.scaling = scaling;
      CHECK_OK(transport.Allreduce(reduction, &patience));
      CHECK(count == 0 || std::memcmp(reduction.output, expected.data(), expected.size() * sizeof(float)) == 0);
      if (!in_place) CHECK(input == inputs[static_cast<size_t>(rank)]);
    }
  });
}

}  // namespace

TEST(transport_allreduce_is_the_sum_in_rank_order_bit_for_bit) {
  DirectOptions tiny;
  tiny.piece_bytes = 64;
  tiny.small_bytes = 128;
  tiny.window = 2;
  for (int size = 1; size <= 5; ++size) {
    for (int64_t count : {0, 1, 3, 16, 31, 32, 33, 1000, 1001}) {
      for (bool in_place : {false, true}) CheckAllreduce(size, count, in_place, tiny, {});
    }
  }
  for (int size : {2, 3}) {
    for (int64_t count : {4096 + 1, 1 << 18}) CheckAllreduce(size, count, true, {}, {});
  }
}

TEST(transport_allreduce_scales) {
  DirectOptions tiny;
  tiny.piece_bytes = 64;
  tiny.small_bytes = 128;
  for (int64_t count : {5, 1001}) {
    for (bool in_place : {false, true}) {
      CheckAllreduce(3, count, in_place, tiny, {0.25, 3.0, true});
      CheckAllreduce(2, count, in_place, tiny, {1.0, 0.5, false});
    }
  }
}

TEST(transport_broadcast_reaches_all_from_every_root) {
  DirectOptions tiny;
  tiny.piece_bytes = 64;
  tiny.window = 2;
  for (int size = 1; size <= 6; ++size) {
    for (int root = 0; root < size; ++root) {
      for (int64_t count : {0, 1, 16, 17, 500}) {
        const auto links = MakeLinks(size);
        RunRanks(size, [&](int rank) {
          DirectTransport transport(links[static_cast<size_t>(rank)], tiny);
          YieldPatience patience;
          std::vector<float> data = Values(rank, count);
          CHECK_OK(transport.Broadcast(data.data(), count * 4, root, &patience));
          CHECK(data == Values(root, count));
        });
      }
    }
  }
}
