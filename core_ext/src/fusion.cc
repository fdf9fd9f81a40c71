#include "fusion.h"

#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <tuple>
#include <utility>

namespace spark_hvd {

bool CanFuse(const Request& a, const Request& b) {
  return a.kind == Kind::kAllreduce && b.kind == Kind::kAllreduce && a.dtype == b.dtype && a.op == b.op &&
         a.scaling.prescale == b.scaling.prescale && a.scaling.postscale == b.scaling.postscale;
}

std::vector<std::vector<size_t>> PlanFusion(const std::vector<Request>& ready, int64_t threshold) {
  using Key = std::tuple<int32_t, int32_t, double, double>;
  struct Open {
    size_t group;
    int64_t bytes;
    std::string explicit_group;  // of its last member
  };
  std::vector<std::vector<size_t>> groups;
  std::map<Key, Open> open;
  std::map<std::pair<Key, std::string>, int64_t> group_bytes;
  const auto key_of = [](const Request& r) { return Key{r.dtype, r.op, r.scaling.prescale, r.scaling.postscale}; };
  for (const Request& request : ready) {
    if (!request.group.empty() && request.kind == Kind::kAllreduce) {
      group_bytes[{key_of(request), request.group}] += request.bytes();
    }
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    const Request& request = ready[i];
    if (request.kind != Kind::kAllreduce) {
      groups.push_back({i});
      continue;
    }
    const Key key = key_of(request);
    auto found = open.find(key);
    const bool follows = found != open.end() && !request.group.empty() && found->second.explicit_group == request.group;
    const int64_t unit = request.group.empty() ? request.bytes() : group_bytes[{key, request.group}];
    if (follows || (found != open.end() && found->second.bytes + unit <= threshold)) {
      groups[found->second.group].push_back(i);
      if (!follows) found->second.bytes += unit;
      found->second.explicit_group = request.group;
    } else if (unit > threshold && request.group.empty()) {
      groups.push_back({i});
    } else {
      open[key] = {groups.size(), unit, request.group};
      groups.push_back({i});
    }
  }
  return groups;
}

void ScratchBuffer::Free::operator()(char* memory) const { std::free(memory); }

char* ScratchBuffer::Reserve(int64_t bytes) {
  constexpr int64_t kLine = 64;
  if (bytes > capacity_) {
    const int64_t rounded = (bytes + kLine - 1) / kLine * kLine;
    memory_.reset();
    capacity_ = 0;
    memory_.reset(static_cast<char*>(std::aligned_alloc(kLine, static_cast<size_t>(rounded))));
    if (!memory_) throw std::bad_alloc();
    capacity_ = rounded;
  }
  return memory_.get();
}

}  // namespace spark_hvd
