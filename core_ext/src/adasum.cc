#include "adasum.h"

#include <cstring>
#include <utility>

#include "half.h"

namespace spark_hvd {
namespace {

struct Norms {
  double dot = 0, left = 0, right = 0;
};

template <typename T>
Norms PartialNorms(const T* a, const T* b, int64_t count) {
  Norms norms;
  for (int64_t i = 0; i < count; ++i) {
    const double x = a[i], y = b[i];
    norms.dot += x * y;
    norms.left += x * x;
    norms.right += y * y;
  }
  return norms;
}

// A tensor of zeros adds nothing and takes nothing away.
double Coefficient(double dot, double square) { return square > 0 ? 1.0 - dot / (2.0 * square) : 1.0; }

}  // namespace

template <typename T>
class Adasum::TypedWork : public Adasum::Work {
 public:
  TypedWork(const Members& members, Collective collective)
      : ranks_(members.size()), position_(members.position), collective_(std::move(collective)) {
    for (int32_t member = 0; member < ranks_; ++member) {
      int64_t length = 0;
      for (const Span& span : collective_.spans) length += SliceEnd(span, member) - SliceBegin(span, member);
      lengths_.push_back(length);
    }
    total_ = 0;
    for (int64_t length : lengths_) total_ += length;
  }

  Collective Scatter() override {
    sent_.reserve(static_cast<size_t>(total_));
    const double prescale = collective_.scaling.prescale;
    for (int32_t member = 0; member < ranks_; ++member) {
      for (const Span& span : collective_.spans) {
        for (int64_t i = SliceBegin(span, member); i < SliceEnd(span, member); ++i) {
          sent_.push_back(static_cast<T>(Read(span.input, i) * static_cast<T>(prescale)));
        }
      }
    }
    received_.resize(static_cast<size_t>(lengths_[position_] * ranks_));
    for (int32_t member = 0; member < ranks_; ++member) {
      vectors_.push_back(received_.data() + member * lengths_[position_]);
    }
    Collective inner = Inner(Kind::kAlltoall, kWorking);
    inner.send_counts = lengths_;
    inner.receive_counts.assign(ranks_, lengths_[position_]);
    inner.spans = {{sent_.data(), received_.data(), total_}};
    return inner;
  }

  bool NeedsLevel() const override { return vectors_.size() > 1; }

  Collective Level() override {
    mine_.clear();
    for (size_t pair = 0; pair + 1 < vectors_.size(); pair += 2) {
      int64_t at = 0;
      for (const Span& span : collective_.spans) {
        const int64_t count = SliceEnd(span, position_) - SliceBegin(span, position_);
        mine_.push_back(PartialNorms(vectors_[pair] + at, vectors_[pair + 1] + at, count));
        at += count;
      }
    }
    all_.resize(mine_.size() * static_cast<size_t>(ranks_));
    Collective inner = Inner(Kind::kAllgather, HVD_FLOAT64);
    const int64_t numbers = static_cast<int64_t>(mine_.size()) * 3;
    inner.receive_counts.assign(ranks_, numbers);
    inner.spans = {{mine_.data(), all_.data(), numbers * ranks_}};
    return inner;
  }

  void Combine() override {
    std::vector<T*> next;
    size_t place = 0;
    for (size_t pair = 0; pair + 1 < vectors_.size(); pair += 2) {
      int64_t at = 0;
      for (const Span& span : collective_.spans) {
        Norms sum;
        for (int32_t member = 0; member < ranks_; ++member) {
          const Norms& part = all_[member * mine_.size() + place];
          sum.dot += part.dot;
          sum.left += part.left;
          sum.right += part.right;
        }
        ++place;
        const double left = Coefficient(sum.dot, sum.left), right = Coefficient(sum.dot, sum.right);
        T* a = vectors_[pair] + at;
        const T* b = vectors_[pair + 1] + at;
        const int64_t count = SliceEnd(span, position_) - SliceBegin(span, position_);
        for (int64_t i = 0; i < count; ++i) a[i] = static_cast<T>(left * a[i] + right * b[i]);
        at += count;
      }
      next.push_back(vectors_[pair]);
    }
    if (vectors_.size() % 2 == 1) next.push_back(vectors_.back());
    vectors_ = std::move(next);
  }

  Collective Gather() override {
    Collective inner = Inner(Kind::kAllgather, kWorking);
    inner.receive_counts = lengths_;
    // What was sent is not needed any more.
    inner.spans = {{vectors_[0], sent_.data(), total_}};
    return inner;
  }

  void Finish() override {
    const T postscale = static_cast<T>(collective_.scaling.postscale);
    const T* from = sent_.data();
    for (int32_t member = 0; member < ranks_; ++member) {
      for (const Span& span : collective_.spans) {
        for (int64_t i = SliceBegin(span, member); i < SliceEnd(span, member); ++i)
          Write(span.output, i, *from++ * postscale);
      }
    }
  }

 private:
  static constexpr int32_t kWorking = sizeof(T) == 8 ? HVD_FLOAT64 : HVD_FLOAT32;

  int64_t SliceBegin(const Span& span, int32_t member) const { return span.count * member / ranks_; }
  int64_t SliceEnd(const Span& span, int32_t member) const { return SliceBegin(span, member + 1); }

  Collective Inner(Kind kind, int32_t dtype) const {
    Collective inner;
    inner.kind = kind;
    inner.dtype = dtype;
    return inner;
  }

  T Read(const void* data, int64_t i) const {
    if (collective_.dtype == HVD_FLOAT16) return static_cast<T>(FromFloat16(static_cast<const uint16_t*>(data)[i]));
    if (collective_.dtype == HVD_BFLOAT16) return static_cast<T>(FromBfloat16(static_cast<const uint16_t*>(data)[i]));
    return static_cast<const T*>(data)[i];
  }

  void Write(void* data, int64_t i, T value) const {
    if (collective_.dtype == HVD_FLOAT16) {
      static_cast<uint16_t*>(data)[i] = ToFloat16(static_cast<float>(value));
    } else if (collective_.dtype == HVD_BFLOAT16) {
      static_cast<uint16_t*>(data)[i] = ToBfloat16(static_cast<float>(value));
    } else {
      static_cast<T*>(data)[i] = value;
    }
  }

  const int32_t ranks_, position_;
  const Collective collective_;
  std::vector<int64_t> lengths_;  // of the members' slices
  int64_t total_ = 0;
  std::vector<T> sent_, received_;
  std::vector<T*> vectors_;  // this rank's slice of what is still to be combined
  std::vector<Norms> mine_, all_;
};

Adasum::Adasum(const Members& members, Collective collective, Find find)
    : find_(std::move(find)), sequence_(collective.sequence) {
  if (collective.dtype == HVD_FLOAT64) {
    work_ = std::make_unique<TypedWork<double>>(members, std::move(collective));
  } else {
    work_ = std::make_unique<TypedWork<float>>(members, std::move(collective));
  }
}

int64_t Adasum::Steps(int32_t ranks) {
  int64_t steps = 2;
  for (int32_t left = ranks; left > 1; left = (left + 1) / 2) ++steps;
  return steps;
}

void Adasum::Begin(Step step, Collective collective) {
  step_ = step;
  collective.sequence = sequence_++;
  inner_ = find_(collective)->Start(collective);
}

void Adasum::Next() {
  inner_.reset();
  switch (step_) {
    case Step::kStart:
      return Begin(Step::kScatter, work_->Scatter());
    case Step::kLevel:
      work_->Combine();
      [[fallthrough]];
    case Step::kScatter:
      if (work_->NeedsLevel()) return Begin(Step::kLevel, work_->Level());
      return Begin(Step::kGather, work_->Gather());
    case Step::kGather:
      work_->Finish();
      step_ = Step::kEnd;
      return;
    case Step::kEnd:
      return;
  }
}

Status Adasum::Advance(bool* moved, bool* done) {
  while (step_ != Step::kEnd) {
    bool over = true;
    if (inner_) {
      Status status = inner_->Advance(moved, &over);
      if (!status.ok()) return status;
    }
    if (!over) break;
    *moved = true;
    Next();
  }
  *done = step_ == Step::kEnd;
  return Status::Ok();
}

std::vector<int32_t> Adasum::Missing() const { return inner_ ? inner_->Missing() : std::vector<int32_t>{}; }

}  // namespace spark_hvd
