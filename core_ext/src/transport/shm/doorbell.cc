#include "transport/shm/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace spark_hvd {

uint32_t Doorbell::Listen() {
  word_->listeners.fetch_add(1, std::memory_order_seq_cst);
  return word_->rings.load(std::memory_order_seq_cst);
}

void Doorbell::Sleep(uint32_t heard, Clock::duration limit) {
  const auto ns = std::max<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count(), 1);
  timespec timeout{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  // A wake-up for no reason costs one look.
  syscall(SYS_futex, &word_->rings, FUTEX_WAIT, heard, &timeout, nullptr, 0);
  Ignore();
}

void Doorbell::Ignore() { word_->listeners.fetch_sub(1, std::memory_order_relaxed); }

void Doorbell::Wake() {
  word_->rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word_->rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Vigil::Moved() {
  if (state_ == State::kListening) bell_->Ignore();
  state_ = State::kFresh;
}

void Vigil::Rest(Clock::duration limit) {
  if (state_ == State::kListening) {
    bell_->Sleep(heard_, limit);
    state_ = State::kFresh;
    return;
  }
  const TimePoint now = Clock::now();
  if (state_ == State::kFresh) {
    state_ = State::kWaiting;
    since_ = now;
  }
  const Clock::duration waited = now - since_;
  // Plain looks: the pause instruction makes a hypervisor take the processor away, at a hundred times the cost.
  if (waited < habit_.spin) return;
  if (waited < habit_.spin + habit_.yield) {
    sched_yield();
    return;
  }
  heard_ = bell_->Listen();
  state_ = State::kListening;
}

}  // namespace spark_hvd
