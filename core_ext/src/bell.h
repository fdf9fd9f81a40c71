// How this rank's threads sleep until something may have moved, and who can wake them.
//
// A thread that drives the engine takes Look(), tries to move everything, and sleeps only if nothing was rung since.
#ifndef SPARK_HVD_SRC_BELL_H_
#define SPARK_HVD_SRC_BELL_H_

#include <chrono>
#include <cstdint>
#include <thread>

#include "types.h"

namespace spark_hvd {

class Bell {
 public:
  virtual ~Bell() = default;
  virtual uint32_t Look() const = 0;
  // Returns when the bell was rung since `seen` was looked at, or after `longest`, or for no reason.
  virtual void Sleep(uint32_t seen, Clock::duration longest) = 0;
  // Wakes this rank's sleepers. Cheap when nobody sleeps.
  virtual void Ring() = 0;
  // Wakes the sleepers of another rank of the world, if it can be reached so.
  virtual void RingPeer(int32_t rank) = 0;
  // Whether every rank of the world rings here after it did something that this rank may wait for. If not, sleeps must
  // be short.
  virtual bool reaches_all() const = 0;
  // How long it pays to look again and again before sleeping, with Linger() between the looks.
  virtual Clock::duration spin() const = 0;
  // Returns at once if the wait is young; else offers the processor to others first. It may be the awaited rank that
  // needs it: where ranks outnumber processors, but also when the system put two ranks on one processor.
  virtual void Linger(Clock::duration waited) {
    if (waited >= std::chrono::microseconds(2)) std::this_thread::yield();
  }
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_BELL_H_
