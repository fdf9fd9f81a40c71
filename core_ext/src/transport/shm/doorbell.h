// How a rank sleeps until something happened, and how others on its host wake it: one futex word per rank.
//
// Whoever publishes a flag rings; ringing costs a fence and a load while nobody sleeps. Whoever waits looks for work,
// announces that it will sleep (Listen), looks once more, and sleeps; a ring in between is not lost.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_DOORBELL_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_DOORBELL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "types.h"

namespace spark_hvd {

// Lies in memory that ranks share; zero is its first state.
struct alignas(128) BellWord {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> listeners;
};

class Doorbell {
 public:
  // A bell of this process alone.
  Doorbell() : own_(std::make_unique<BellWord>()), word_(own_.get()) {}
  // A bell in shared memory, which must stay mapped.
  explicit Doorbell(BellWord* word) : word_(word) {}

  // Wakes who listens.
  void Ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (word_->listeners.load(std::memory_order_relaxed) != 0) Wake();
  }
  // From here on no ring is missed. Ends with Sleep() or Ignore().
  uint32_t Listen();
  // Sleeps until a ring since Listen(), at most `limit`.
  void Sleep(uint32_t heard, Clock::duration limit);
  void Ignore();

 private:
  void Wake();

  std::unique_ptr<BellWord> own_;
  BellWord* word_;
};

// One wait of whoever drives: looks again at once for a while, then gives the processor away, then sleeps.
class Vigil {
 public:
  struct Habit {
    Clock::duration spin = std::chrono::microseconds(50);  // plain looks; zero when ranks outnumber processors
    Clock::duration yield{};                               // then looks with the processor offered to others
  };

  Vigil(Doorbell* bell, Habit habit) : bell_(bell), habit_(habit) {}
  ~Vigil() { Moved(); }
  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  // Something moved: the wait is over.
  void Moved();
  // A look found nothing. Returns when it is time to look again: at once, or after a ring, or after `limit`.
  void Rest(Clock::duration limit);

 private:
  enum class State { kFresh, kWaiting, kListening };

  Doorbell* bell_;
  const Habit habit_;
  State state_ = State::kFresh;
  TimePoint since_{};
  uint32_t heard_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_DOORBELL_H_
