#include "response_cache.h"

#include <algorithm>

#include "fusion.h"

namespace spark_hvd {
namespace {

// Collectives whose every parameter repeats. The sizes of the others may change from step to step.
bool Repeats(const Request& request) {
  return request.kind == Kind::kAllreduce || request.kind == Kind::kBroadcast || request.kind == Kind::kBarrier;
}

}  // namespace

void ResponseCache::Learn(const Request& request) {
  if (capacity_ == 0) return;
  auto found = items_.find(request.name);
  if (found == items_.end()) {
    if (static_cast<int64_t>(items_.size()) >= capacity_) {
      items_.clear();
      last_ = nullptr;
    }
    found = items_.try_emplace(request.name).first;
    found->second.request = request;
  } else if (!found->second.request.SameAs(request)) {
    found->second.request = request;
  }
  Item* item = &found->second;
  if (last_ != nullptr) last_->next = item;
  last_ = item;
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
  Item* item = last_ == nullptr ? nullptr : last_->next;
  if (item == nullptr || !Repeats(item->request)) return group;
  const Request& first = item->request;
  const auto runs_on = [&](const Item* next) {
    return next != nullptr && CanFuse(first, next->request) &&
           std::find(group.begin(), group.end(), next) == group.end();
  };
  // The items from `item` on that must stay together: one, or what follows of its explicit group.
  const auto unit = [&](Item* from) {
    std::vector<Item*> members{from};
    if (from->request.group.empty()) return members;
    for (Item* next = from->next; runs_on(next) && next->request.group == from->request.group &&
                                  std::find(members.begin(), members.end(), next) == members.end();
         next = next->next) {
      members.push_back(next);
    }
    return members;
  };
  int64_t bytes = 0;
  while (true) {
    const std::vector<Item*> members = unit(item);
    for (const Item* member : members) bytes += member->request.bytes();
    if (!group.empty() && bytes > threshold) break;
    group.insert(group.end(), members.begin(), members.end());
    item = group.back()->next;
    if (!runs_on(item) || item->boundary) break;
  }
  return group;
}

}  // namespace spark_hvd
