#include "fusion.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <tuple>

namespace spark_hvd {

std::vector<std::vector<size_t>> PlanFusion(const std::vector<Request>& ready, int64_t threshold) {
  using Key = std::tuple<int32_t, int32_t, double, double>;
  struct Open {
    size_t group;
    int64_t bytes;
  };
  std::vector<std::vector<size_t>> groups;
  std::map<Key, Open> open;
  for (size_t i = 0; i < ready.size(); ++i) {
    const Request& request = ready[i];
    const int64_t bytes = request.bytes();
    if (request.kind != Kind::kAllreduce || bytes > threshold) {
      groups.push_back({i});
      continue;
    }
    const Key key{request.dtype, request.op, request.scaling.prescale, request.scaling.postscale};
    auto found = open.find(key);
    if (found != open.end() && found->second.bytes + bytes <= threshold) {
      groups[found->second.group].push_back(i);
      found->second.bytes += bytes;
    } else {
      open[key] = {groups.size(), bytes};
      groups.push_back({i});
    }
  }
  return groups;
}

void FusionBuffer::Free::operator()(char* memory) const { std::free(memory); }

char* FusionBuffer::Reserve(int64_t bytes) {
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

void PackInputs(const std::vector<Entry>& entries, char* buffer) {
  for (const Entry& entry : entries) {
    const size_t bytes = static_cast<size_t>(entry.request.bytes());
    if (bytes > 0) std::memcpy(buffer, entry.input, bytes);
    buffer += bytes;
  }
}

void UnpackOutputs(const std::vector<Entry>& entries, const char* buffer) {
  for (const Entry& entry : entries) {
    const size_t bytes = static_cast<size_t>(entry.request.bytes());
    if (bytes > 0) std::memcpy(entry.output, buffer, bytes);
    buffer += bytes;
  }
}

}  // namespace spark_hvd
