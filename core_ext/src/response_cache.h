// What a process set has learned of its steps: which collective follows which. Pure; the same on every rank.
//
// Every rank tells it of each collective that is carried out, in the order of carrying out, which is the same
// everywhere. From the last one on, the next group can be foretold without asking anybody: the successors that can be
// fused, up to the threshold, not across a boundary (a place where the ranks are known to pause) and no explicit group
// cut in two. When more is learned than `capacity`, everything is forgotten, on all ranks at the same place.
#ifndef SPARK_HVD_SRC_RESPONSE_CACHE_H_
#define SPARK_HVD_SRC_RESPONSE_CACHE_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "types.h"

namespace spark_hvd {

class ResponseCache {
 public:
  struct Item {
    Request request;
    Item* next = nullptr;
    bool boundary = false;
    int64_t mark = 0;  // the owner's: which foretold group it is in
  };

  // `capacity` 0: nothing is learned.
  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // `request` is being carried out now.
  void Learn(const Request& request);
  void AddBoundary(const std::string& name);
  // Null when it is not known.
  Item* Find(const std::string& name);
  // The next group, in order; empty when what follows is unknown or must be agreed on each time.
  std::vector<Item*> Predict(int64_t threshold) const;

 private:
  const int64_t capacity_;
  std::unordered_map<std::string, Item> items_;
  Item* last_ = nullptr;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_RESPONSE_CACHE_H_
