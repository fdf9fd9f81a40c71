#include "transport/direct/whole_allreduce.h"

#include <algorithm>

namespace spark_hvd {

WholeAllreduce::WholeAllreduce(const Circle& circle, const Collective& collective, ScratchBuffer* scratch,
                               ScratchBuffer* packing)
    : circle_(circle),
      position_(circle.members.position),
      ranks_(circle.members.size()),
      arithmetic_(Arithmetic::Of(collective.dtype, collective.op, collective.scaling, ranks_)),
      packed_(collective.spans, ElementSize(collective.dtype), packing),
      bytes_(packed_.count() * ElementSize(collective.dtype)),
      inputs_(ranks_) {
  const int64_t stride = (bytes_ + 63) / 64 * 64;
  char* inbox = scratch->Reserve(stride * ranks_);
  inputs_[position_] = packed_.input();
  for (int32_t step = 1; step < ranks_; ++step) {
    const int32_t peer = (position_ + step) % ranks_;
    inboxes_.push_back(inbox + peer * stride);
    inputs_[peer] = inboxes_.back();
    in_.emplace_back(circle_, peer, Use::kContribution);
    out_.emplace_back(circle_, peer, Use::kContribution);
  }
}

WholeAllreduce::~WholeAllreduce() {
  if (ended_) return;
  for (Stream& stream : in_) stream.Cancel();
}

Status WholeAllreduce::Advance(bool* moved, bool* done) {
  *done = ended_;
  if (ended_) return Status::Ok();
  if (!posted_) {
    for (size_t i = 0; i < in_.size(); ++i) {
      Status status = in_[i].Receive(inboxes_[i], bytes_);
      if (status.ok()) status = out_[i].Send(packed_.input(), bytes_);
      if (!status.ok()) return status;
    }
    posted_ = *moved = true;
  }
  bool open = false;
  for (std::vector<Stream>* streams : {&in_, &out_}) {
    for (Stream& stream : *streams) {
      Status status = stream.Advance(moved);
      if (!status.ok()) return status;
      open = open || stream.under_way() > 0;
    }
  }
  // The output may be what was being sent: it is written now.
  if (open) return Status::Ok();
  void* output = packed_.output();
  Reduce(inputs_.data(), ranks_, &output, 1, packed_.count(), arithmetic_);
  packed_.Unpack();
  ended_ = *moved = *done = true;
  return Status::Ok();
}

std::vector<int32_t> WholeAllreduce::Missing() const {
  std::vector<int32_t> members;
  for (size_t i = 0; i < in_.size(); ++i) {
    if (in_[i].done() == 0 || out_[i].under_way() > 0) members.push_back(in_[i].peer());
  }
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace spark_hvd
