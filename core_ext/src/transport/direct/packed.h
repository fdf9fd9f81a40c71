// Several tensors as one: their inputs lie one after the other in a buffer, and so do the results until they go back.
// A single tensor stays where it is.
#ifndef SPARK_HVD_SRC_TRANSPORT_DIRECT_PACKED_H_
#define SPARK_HVD_SRC_TRANSPORT_DIRECT_PACKED_H_

#include <cstring>
#include <vector>

#include "fusion.h"
#include "transport/operation.h"

namespace spark_hvd {

class Packed {
 public:
  Packed(const std::vector<Span>& spans, int64_t element_size, ScratchBuffer* buffer)
      : spans_(spans), element_size_(element_size) {
    for (const Span& span : spans_) count_ += span.count;
    if (spans_.size() == 1) {
      input_ = static_cast<const char*>(spans_[0].input);
      output_ = static_cast<char*>(spans_[0].output);
      return;
    }
    output_ = buffer->Reserve(count_ * element_size_);
    input_ = output_;
    char* to = output_;
    for (const Span& span : spans_) {
      const size_t bytes = static_cast<size_t>(span.count * element_size_);
      if (bytes > 0) std::memcpy(to, span.input, bytes);
      to += bytes;
    }
  }

  const char* input() const { return input_; }
  char* output() const { return output_; }
  int64_t count() const { return count_; }

  // Brings the results to their tensors.
  void Unpack() const {
    if (spans_.size() == 1) return;
    const char* from = output_;
    for (const Span& span : spans_) {
      const size_t bytes = static_cast<size_t>(span.count * element_size_);
      if (bytes > 0) std::memcpy(span.output, from, bytes);
      from += bytes;
    }
  }

 private:
  const std::vector<Span> spans_;
  const int64_t element_size_;
  int64_t count_ = 0;
  const char* input_ = nullptr;
  char* output_ = nullptr;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_DIRECT_PACKED_H_
