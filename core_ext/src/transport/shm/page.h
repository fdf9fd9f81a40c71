// What each rank shows to the other ranks of its host, whatever they do together: one page, written by its owner alone
// but for the bell.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_PAGE_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_PAGE_H_

#include <atomic>
#include <cstdint>

namespace spark_hvd {

// Rings are counted; who sleeps on the count is woken by the next one.
struct alignas(128) BellWord {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;
};

enum class Farewell : uint32_t { kNone = 0, kLeft = 1, kFailed = 2 };

// Zero is the first state of everything.
struct HostPage {
  uint64_t token[2];  // random: tells this page from any other
  BellWord bell;
  std::atomic<int32_t> processor;  // on which its driver was last seen, plus 1
  alignas(128) std::atomic<uint64_t> beats;
  std::atomic<uint32_t> farewell;  // Farewell; written after `cause`
  char cause[1024];
};

static_assert(sizeof(HostPage) <= 4096, "one page");

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_PAGE_H_
