// What a process set has learned of its steps: which collective follows which. Pure; the same on every rank.
//
// Every rank tells it of each collective that is carried out, in the order of carrying out, which is the same
// everywhere. It looks for the last time that the history was at this place, and foretells what came then, without
// asking anybody: the successors that can be fused, up to the threshold, not across a boundary (a place where the ranks
// are known to pause) and no explicit group cut in two.
//
// A place is told by its name, by how often that has just been repeated, and by what came before: a name may be used
// several times in a step. When more names are learned than `capacity`, everything is forgotten, on all ranks at the
// same place.
#ifndef SPARK_HVD_SRC_RESPONSE_CACHE_H_
#define SPARK_HVD_SRC_RESPONSE_CACHE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "types.h"

namespace spark_hvd {

class ResponseCache {
 public:
  struct Item {
    Request request;
    int64_t latest = -1;  // place of its last use
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
  // A place in the history.
  struct Place {
    Item* item;
    int64_t repeats;  // of the same item, directly before
    int64_t earlier;  // place of its use before; -1: none that is known
  };

  const Place* At(int64_t place) const;
  Item* ItemAt(int64_t place) const;
  int64_t Likeness(int64_t place, int64_t other) const;
  int64_t FindLike(int64_t place) const;

  const int64_t capacity_;
  std::unordered_map<std::string, Item> items_;
  std::deque<Place> history_;  // its end; places are counted from the beginning
  int64_t first_ = 0;          // place of its front
  int64_t like_ = -1;          // the place before that is most like the last one
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_RESPONSE_CACHE_H_
