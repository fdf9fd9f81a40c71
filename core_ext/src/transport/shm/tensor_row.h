// Tensors of one operation as one row of elements, without copying them together: element i of the row lies in some
// tensor at some place.
#ifndef SPARK_HVD_SRC_TRANSPORT_SHM_TENSOR_ROW_H_
#define SPARK_HVD_SRC_TRANSPORT_SHM_TENSOR_ROW_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "transport/operation.h"

namespace spark_hvd {

class TensorRow {
 public:
  TensorRow(const std::vector<Span>& spans, int64_t element_size) : spans_(spans), element_size_(element_size) {
    begins_.reserve(spans.size() + 1);
    begins_.push_back(0);
    for (const Span& span : spans_) begins_.push_back(begins_.back() + span.count);
  }

  int64_t count() const { return begins_.back(); }
  int64_t element_size() const { return element_size_; }
  const std::vector<Span>& spans() const { return spans_; }

  // Calls visit(tensor, first byte in it, elements) for each tensor's share of [begin, end).
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const {
    if (begin >= end) return;
    auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
    for (size_t i = static_cast<size_t>(after - begins_.begin()) - 1; begin < end; ++i) {
      const int64_t count = std::min(end, begins_[i + 1]) - begin;
      if (count > 0) visit(i, (begin - begins_[i]) * element_size_, count);
      begin += std::max<int64_t>(count, 0);
    }
  }

  void CopyInputs(int64_t begin, int64_t end, char* to) const {
    ForEach(begin, end, [&](size_t i, int64_t byte, int64_t count) {
      std::memcpy(to, Input(i) + byte, Bytes(count));
      to += Bytes(count);
    });
  }
  void CopyOutputs(int64_t begin, int64_t end, const char* from) const {
    ForEach(begin, end, [&](size_t i, int64_t byte, int64_t count) {
      std::memcpy(Output(i) + byte, from, Bytes(count));
      from += Bytes(count);
    });
  }

  const char* Input(size_t i) const { return static_cast<const char*>(spans_[i].input); }
  char* Output(size_t i) const { return static_cast<char*>(spans_[i].output); }
  size_t Bytes(int64_t count) const { return static_cast<size_t>(count * element_size_); }

 private:
  const std::vector<Span> spans_;
  const int64_t element_size_;
  std::vector<int64_t> begins_;  // of each tensor in the row, and the end
};

// [begin, end) of share `index` of `shares` even ones of [begin, end), cut at whole cache lines.
struct Share {
  int64_t begin, end;
};
inline Share EvenShare(int64_t begin, int64_t end, int64_t index, int64_t shares, int64_t element_size) {
  const int64_t line = 64 / element_size;
  const auto cut = [&](int64_t i) {
    return i == shares ? end : begin + std::min((end - begin) * i / shares / line * line, end - begin);
  };
  return {cut(index), cut(index + 1)};
}

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_SHM_TENSOR_ROW_H_
