#include "response_cache.h"

#include <algorithm>

#include "fusion.h"

namespace spark_hvd {
namespace {

// Collectives whose every parameter repeats. The sizes of the others may change from step to step.
bool Repeats(const Request& request) {
  return request.kind == Kind::kAllreduce || request.kind == Kind::kBroadcast || request.kind == Kind::kBarrier;
}

// How well two places fit at most: name and repeats, and the two before. More would be slower to follow a change.
constexpr int64_t kMostLike = 3;
// Uses of a name that are looked at.
constexpr int64_t kLooks = 64;
// The history is this many times as long as the number of names that are learned.
constexpr int64_t kUses = 4, kLeastHistory = 1024;

}  // namespace

void ResponseCache::Learn(const Request& request) {
  if (capacity_ == 0) return;
  auto found = items_.find(request.name);
  if (found == items_.end()) {
    if (static_cast<int64_t>(items_.size()) >= capacity_) {
      items_.clear();
      first_ += static_cast<int64_t>(history_.size());
      history_.clear();
    }
    found = items_.try_emplace(request.name).first;
    found->second.request = request;
  } else if (!found->second.request.SameAs(request)) {
    found->second.request = request;
  }
  Item* item = &found->second;
  const bool repeated = !history_.empty() && history_.back().item == item;
  history_.push_back({item, repeated ? history_.back().repeats + 1 : 0, item->latest});
  item->latest = first_ + static_cast<int64_t>(history_.size()) - 1;
  if (static_cast<int64_t>(history_.size()) > std::max(kUses * capacity_, kLeastHistory)) {
    history_.pop_front();
    ++first_;
  }
  like_ = FindLike(item->latest);
}

const ResponseCache::Place* ResponseCache::At(int64_t place) const {
  const bool known = place >= first_ && place < first_ + static_cast<int64_t>(history_.size());
  return known ? &history_[static_cast<size_t>(place - first_)] : nullptr;
}

ResponseCache::Item* ResponseCache::ItemAt(int64_t place) const {
  const Place* found = At(place);
  return found == nullptr ? nullptr : found->item;
}

int64_t ResponseCache::Likeness(int64_t place, int64_t other) const {
  const int64_t repeats = At(place)->repeats;
  if (At(other)->repeats != repeats) return 0;
  for (int64_t likeness = 1; likeness < kMostLike; ++likeness) {
    const Item* before = ItemAt(place - repeats - likeness);
    if (before == nullptr || before != ItemAt(other - repeats - likeness)) return likeness;
  }
  return kMostLike;
}

int64_t ResponseCache::FindLike(int64_t place) const {
  int64_t best = -1, most = -1, looks = 0;
  for (int64_t other = At(place)->earlier; At(other) != nullptr && looks < kLooks; other = At(other)->earlier) {
    const int64_t likeness = Likeness(place, other);
    if (likeness > most) {
      most = likeness;
      best = other;
    }
    if (most == kMostLike) break;
    ++looks;
  }
  return best;
}

void ResponseCache::AddBoundary(const std::string& name) {
  if (Item* item = Find(name)) item->boundary = true;
}

ResponseCache::Item* ResponseCache::Find(const std::string& name) {
  auto found = items_.find(name);
  return found == items_.end() ? nullptr : &found->second;
}

std::vector<ResponseCache::Item*> ResponseCache::Predict(int64_t threshold) const {
  std::vector<Item*> group;
  // What is foretold ends with the history: what comes after that will be known when it is its turn.
  int64_t place = like_ < 0 ? -1 : like_ + 1;
  if (ItemAt(place) == nullptr || !Repeats(ItemAt(place)->request)) return group;
  const Request& first = ItemAt(place)->request;
  const auto has = [](const std::vector<Item*>& items, const Item* item) {
    return std::find(items.begin(), items.end(), item) != items.end();
  };
  const auto runs_on = [&](const Item* next) {
    return next != nullptr && CanFuse(first, next->request) && !has(group, next);
  };
  // The items from a place on that must stay together: one, or what follows of its explicit group.
  const auto unit = [&](int64_t from) {
    std::vector<Item*> members{ItemAt(from)};
    const std::string& name = members.front()->request.group;
    if (name.empty()) return members;
    for (Item* next = ItemAt(++from); runs_on(next) && next->request.group == name && !has(members, next);
         next = ItemAt(++from)) {
      members.push_back(next);
    }
    return members;
  };
  int64_t bytes = 0;
  while (true) {
    const std::vector<Item*> members = unit(place);
    for (const Item* member : members) bytes += member->request.bytes();
    if (!group.empty() && bytes > threshold) break;
    group.insert(group.end(), members.begin(), members.end());
    place += static_cast<int64_t>(members.size());
    const Item* next = ItemAt(place);
    if (!runs_on(next) || next->boundary) break;
  }
  return group;
}

}  // namespace spark_hvd
