// What this rank has submitted to a process set: names in flight, and entries that nobody has looked at yet. Written by
// the callers' threads, emptied by whoever drives the engine.
#ifndef SPARK_HVD_SRC_TENSOR_QUEUE_H_
#define SPARK_HVD_SRC_TENSOR_QUEUE_H_

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

class TensorQueue {
 public:
  // Takes all entries or none. Fails when a name is in flight, or with the reason given to Close().
  Status Add(std::vector<Entry> entries);
  // Entries that were added since the last call, in order.
  std::vector<Entry> TakeNew();
  bool has_new() const { return has_new_.load(std::memory_order_acquire); }
  // Ends the flight of a name.
  void Remove(const std::string& name);
  // No more entries: Add() fails with `reason` from now on (the first reason stays).
  void Close(const Status& reason);
  int64_t in_flight() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> names_;
  std::vector<Entry> fresh_;
  std::atomic<bool> has_new_{false};
  Status closed_;
  int64_t next_number_ = 0;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TENSOR_QUEUE_H_
