// What this rank has submitted and what has not ended yet. Written by the callers' threads, emptied by the engine's.
#ifndef SPARK_HVD_SRC_TENSOR_QUEUE_H_
#define SPARK_HVD_SRC_TENSOR_QUEUE_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "status.h"
#include "types.h"

namespace spark_hvd {

class TensorQueue {
 public:
  // Takes an entry and wakes the engine. Fails when its name is in flight, or with the reason given to Close().
  Status Add(Entry entry);
  // Requests that were added since the last call, in order.
  std::vector<Request> TakeNew();
  // Copies the entry of this name; it stays in flight. False when there is none.
  bool Find(const std::string& name, Entry* entry) const;
  // Ends the flight of these entries: their names are free again.
  void Remove(const std::vector<Entry>& entries);
  // Submitted before `limit` and not ended; false when there is none.
  bool FindOlder(TimePoint limit, Entry* entry) const;
  // No more entries: Add() fails with `reason` from now on (the first reason stays).
  void Close(const Status& reason);
  // Everything that has not ended; the queue is empty afterwards.
  std::vector<Entry> TakeAll();
  int64_t in_flight() const;

  // The engine's rest: returns at once when something was added or Wake() was called since the last rest.
  void Rest(Clock::duration longest);
  void Wake();

 private:
  mutable std::mutex mutex_;
  std::condition_variable awake_;
  std::unordered_map<std::string, Entry> entries_;
  std::vector<Request> fresh_;
  Status closed_;
  bool woken_ = false;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TENSOR_QUEUE_H_
