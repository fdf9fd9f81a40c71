#include "transport/layered/layered_operation.h"

#include <algorithm>

#include "transport/shm/streams.h"

namespace spark_hvd {
namespace {

bool GoesWide(const Collective& c) {
  const bool narrow = c.dtype == HVD_FLOAT16 || c.dtype == HVD_BFLOAT16;
  return narrow && c.op != HVD_MIN && c.op != HVD_MAX;
}

// Beginning of each rank's block in a row of all.
std::vector<int64_t> Begins(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins{0};
  for (int64_t count : counts) begins.push_back(begins.back() + count);
  return begins;
}

}  // namespace

LayeredOperation::LayeredOperation(const Layers& layers, const Collective& c)
    : plan_(*layers.plan),
      lane_(layers.lane),
      cross_(layers.cross),
      collective_(c),
      wide_(GoesWide(c)),
      across_dtype_(wide_ ? static_cast<int32_t>(HVD_FLOAT32) : c.dtype) {}

Status LayeredOperation::Advance(bool* moved, bool* done) {
  *done = false;
  while (operation_) {
    bool through = false;
    Status status = operation_->Advance(moved, &through);
    if (!status.ok() || !through) return status;
    *moved = true;
    Next();
  }
  *done = true;
  return Status::Ok();
}

void LayeredOperation::Next() {
  if (stage_ == Stage::kReduce && plan_.carries) {
    stage_ = Stage::kAcross;
    operation_ = Across();
  } else if (stage_ != Stage::kDeal) {
    stage_ = Stage::kDeal;
    operation_ = Inside();
  } else {
    operation_.reset();
  }
}

std::vector<int32_t> LayeredOperation::Missing() const {
  std::vector<int32_t> missing;
  if (!operation_) return missing;
  const std::vector<int32_t>& names = stage_ == Stage::kAcross ? plan_.crossing : plan_.local;
  for (int32_t position : operation_->Missing()) missing.push_back(names[static_cast<size_t>(position)]);
  return missing;
}

Arithmetic LayeredOperation::InFirstStage() const {
  Arithmetic inside;
  inside.dtype = collective_.dtype;
  inside.op = collective_.op;
  inside.prescale = collective_.scaling.prescale;
  return inside;
}

Collective LayeredOperation::BetweenCarriers() const {
  Collective across;
  across.kind = collective_.kind;
  across.dtype = across_dtype_;
  across.op = collective_.op == HVD_AVERAGE ? static_cast<int32_t>(HVD_SUM) : collective_.op;
  across.sequence = collective_.sequence;
  return across;
}

void LayeredOperation::Finish(char* data, int64_t count) const {
  Arithmetic after = Arithmetic::Of(across_dtype_, HVD_SUM, collective_.scaling, plan_.size);
  after.prescale = 1.0;
  if (after.divisor != 1 || after.postscale != 1.0) {
    const void* input = data;
    void* output = data;
    Reduce(&input, 1, &output, 1, count, after);
  }
  if (wide_) Narrow(reinterpret_cast<const float*>(data), data, count, collective_.dtype);
}

LayeredAllreduce::LayeredAllreduce(const Layers& layers, const Collective& c)
    : LayeredOperation(layers, c), row_(c.spans, ElementSize(c.dtype)) {
  const int local = static_cast<int>(plan_.local.size());
  for (int i = 0; i < local; ++i) {
    const Share part =
        i < plan_.carriers ? EvenShare(0, row_.count(), i, plan_.carriers, row_.element_size()) : Share{0, 0};
    counts_.push_back(part.end - part.begin);
  }
  mine_ = counts_[static_cast<size_t>(lane_->arena->position())];
  part_ = layers.share->Reserve(mine_ * ElementSizeAcross());
  operation_ = std::make_unique<ShmReducescatter>(lane_, 2 * c.sequence, row_, part_, counts_, InFirstStage(), wide_);
}

std::unique_ptr<Operation> LayeredAllreduce::Across() {
  Collective across = BetweenCarriers();
  across.spans = {{part_, part_, mine_}};
  return cross_->Start(across);
}

std::unique_ptr<Operation> LayeredAllreduce::Inside() {
  if (plan_.carries) Finish(part_, mine_);
  return std::make_unique<ShmAllgather>(lane_, 2 * collective_.sequence + 1, part_, counts_, row_);
}

LayeredReducescatter::LayeredReducescatter(const Layers& layers, const Collective& c)
    : LayeredOperation(layers, c), place_(lane_->arena->position()) {
  const int64_t size = ElementSize(c.dtype);
  const char* input = static_cast<const char*>(c.spans.at(0).input);
  const std::vector<int64_t> begins = Begins(c.receive_counts);
  // The blocks in the order in which the carriers have them.
  std::vector<Span> spans;
  std::vector<int64_t> counts(plan_.local.size(), 0);
  for (int carrier = 0; carrier < plan_.carriers; ++carrier) {
    for (const std::vector<int32_t>& host : plan_.hosts) {
      for (size_t place = 0; place < host.size(); ++place) {
        if (!Serves(carrier, place)) continue;
        const auto member = static_cast<size_t>(host[place]);
        spans.push_back({input + begins[member] * size, nullptr, c.receive_counts[member]});
      }
      counts[static_cast<size_t>(carrier)] += CountFor(carrier, host);
    }
  }
  int64_t part = 0;
  if (plan_.carries) {
    part = (counts[static_cast<size_t>(place_)] * ElementSizeAcross() + 63) / 64 * 64;
    mine_ = CountFor(place_, plan_.local);
  }
  part_ = layers.share->Reserve(part + mine_ * ElementSizeAcross());
  blocks_ = part_ + part;
  operation_ = std::make_unique<ShmReducescatter>(lane_, 2 * c.sequence, TensorRow(spans, size), part_, counts,
                                                  InFirstStage(), wide_);
}

int64_t LayeredReducescatter::CountFor(int carrier, const std::vector<int32_t>& host) const {
  int64_t count = 0;
  for (size_t place = 0; place < host.size(); ++place) {
    if (Serves(carrier, place)) count += collective_.receive_counts[static_cast<size_t>(host[place])];
  }
  return count;
}

std::unique_ptr<Operation> LayeredReducescatter::Across() {
  Collective across = BetweenCarriers();
  int64_t all = 0;
  for (const std::vector<int32_t>& host : plan_.hosts) {
    across.receive_counts.push_back(CountFor(place_, host));
    all += across.receive_counts.back();
  }
  across.spans = {{part_, blocks_, all}};
  return cross_->Start(across);
}

std::unique_ptr<Operation> LayeredReducescatter::Inside() {
  if (plan_.carries) Finish(blocks_, mine_);
  Collective deal;
  deal.kind = Kind::kAlltoall;
  deal.dtype = collective_.dtype;
  deal.sequence = 2 * collective_.sequence + 1;
  const int64_t wanted = collective_.receive_counts[static_cast<size_t>(plan_.local[static_cast<size_t>(place_)])];
  for (size_t place = 0; place < plan_.local.size(); ++place) {
    const bool gives = plan_.carries && Serves(place_, place);
    deal.send_counts.push_back(gives ? collective_.receive_counts[static_cast<size_t>(plan_.local[place])] : 0);
    const bool takes =
        static_cast<int>(place) < plan_.carriers && Serves(static_cast<int>(place), static_cast<size_t>(place_));
    deal.receive_counts.push_back(takes ? wanted : 0);
  }
  deal.spans = {{blocks_, collective_.spans.at(0).output, mine_}};
  return std::make_unique<ShmAlltoall>(lane_, deal);
}

}  // namespace spark_hvd
