// A bell for the threads of this process alone: where no memory is shared with other ranks.
#ifndef SPARK_HVD_SRC_LOCAL_BELL_H_
#define SPARK_HVD_SRC_LOCAL_BELL_H_

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "bell.h"

namespace spark_hvd {

class LocalBell : public Bell {
 public:
  // `alone`: there is no other rank, so nobody else's ringing is missed.
  explicit LocalBell(bool alone) : alone_(alone) {}

  uint32_t Look() const override { return rings_.load(std::memory_order_acquire); }

  void Sleep(uint32_t seen, Clock::duration longest) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    changed_.wait_for(lock, longest, [&] { return rings_.load(std::memory_order_relaxed) != seen; });
    --sleepers_;
  }

  void Ring() override {
    rings_.fetch_add(1, std::memory_order_acq_rel);
    std::lock_guard<std::mutex> lock(mutex_);
    if (sleepers_ > 0) changed_.notify_all();
  }

  void RingPeer(int32_t) override {}
  bool reaches_all() const override { return alone_; }
  Clock::duration spin() const override { return alone_ ? Clock::duration::zero() : std::chrono::microseconds(50); }

 private:
  const bool alone_;
  std::atomic<uint32_t> rings_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  int sleepers_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_LOCAL_BELL_H_
