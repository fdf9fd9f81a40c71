#include "transport/direct/sliced_reduction.h"

#include <algorithm>

namespace spark_hvd {

SlicedReduction::SlicedReduction(const Circle& circle, const Collective& collective, ScratchBuffer* scratch,
                                 ScratchBuffer* packing, int64_t piece_bytes, int64_t window)
    : circle_(circle),
      position_(circle.members.position),
      ranks_(circle.members.size()),
      element_size_(ElementSize(collective.dtype)),
      window_(window),
      arithmetic_(Arithmetic::Of(collective.dtype, collective.op, collective.scaling, ranks_)),
      shares_results_(collective.kind == Kind::kAllreduce),
      packed_(collective.spans, element_size_, packing),
      source_(packed_.input()),
      target_(packed_.output()) {
  int64_t longest = 0;
  for (int32_t member = 0; member <= ranks_; ++member) {
    const int64_t even = packed_.count() * member / ranks_;
    begins_.push_back(shares_results_ || member == 0 ? even : begins_.back() + collective.receive_counts[member - 1]);
    if (member > 0) longest = std::max(longest, begins_[member] - begins_[member - 1]);
  }
  // The output of a reducescatter is this rank's slice alone.
  if (!shares_results_) target_ -= SliceBegin(position_) * element_size_;
  // Pieces of a small slice are smaller, so that a middling tensor still overlaps; the same cut on every rank.
  const int64_t rounded = std::max<int64_t>((longest * element_size_ + 63) / 64 * 64, 64);
  piece_count_ = std::max<int64_t>(1, std::min(piece_bytes, rounded) / element_size_);
  inbox_ = scratch->Reserve((ranks_ - 1) * window_ * piece_count_ * element_size_);
  // Each rank starts with the one after it, so that not all send to the first one first.
  for (int32_t step = 1; step < ranks_; ++step) {
    const int32_t peer = (position_ + step) % ranks_;
    peers_.push_back({Stream(circle_, peer, Use::kContribution), Stream(circle_, peer, Use::kContribution),
                      Stream(circle_, peer, Use::kResult), Stream(circle_, peer, Use::kResult)});
  }
}

SlicedReduction::~SlicedReduction() {
  if (ended_) return;
  for (Peer& peer : peers_) {
    peer.contributions_in.Cancel();
    peer.results_in.Cancel();
  }
}

Status SlicedReduction::Advance(bool* moved, bool* done) {
  for (bool again = true; again && !IsDone();) {
    again = false;
    Status status = Take(&again);
    while (status.ok() && ReduceNext()) again = true;
    for (size_t i = 0; status.ok() && i < peers_.size(); ++i) status = Post(i, &again);
    if (!status.ok()) return status;
    *moved = *moved || again;
  }
  *done = IsDone();
  if (*done && !ended_) {
    ended_ = true;
    if (shares_results_) packed_.Unpack();
  }
  return Status::Ok();
}

int64_t SlicedReduction::Pieces(int32_t member) const {
  const int64_t count = SliceBegin(member + 1) - SliceBegin(member);
  return (count + piece_count_ - 1) / piece_count_;
}

int64_t SlicedReduction::PieceCount(int32_t member, int64_t piece) const {
  return std::min(piece_count_, SliceBegin(member + 1) - PieceBegin(member, piece));
}

char* SlicedReduction::Inbox(size_t peer_index, int64_t piece) const {
  const int64_t slot = static_cast<int64_t>(peer_index) * window_ + piece % window_;
  return inbox_ + slot * piece_count_ * element_size_;
}

Status SlicedReduction::Post(size_t peer_index, bool* moved) {
  Peer& peer = peers_[peer_index];
  const int32_t other = peer.results_in.peer();
  const int64_t mine = Pieces(position_), theirs = Pieces(other);
  Status status;
  while (status.ok() && peer.contributions_in.posted() < std::min(mine, reduced_ + window_)) {
    const int64_t piece = peer.contributions_in.posted();
    status = peer.contributions_in.Receive(Inbox(peer_index, piece), PieceCount(position_, piece) * element_size_);
    *moved = true;
  }
  while (status.ok() && peer.contributions_out.posted() < theirs && peer.contributions_out.under_way() < window_) {
    const int64_t piece = peer.contributions_out.posted();
    status = peer.contributions_out.Send(Source(PieceBegin(other, piece)), PieceCount(other, piece) * element_size_);
    *moved = true;
  }
  if (!shares_results_) return status;
  // In place, a result lands where a contribution was: not before that one has left.
  while (status.ok() && peer.results_in.posted() < std::min(peer.contributions_out.done(), theirs)) {
    const int64_t piece = peer.results_in.posted();
    status = peer.results_in.Receive(Target(PieceBegin(other, piece)), PieceCount(other, piece) * element_size_);
    *moved = true;
  }
  while (status.ok() && peer.results_out.posted() < reduced_) {
    const int64_t piece = peer.results_out.posted();
    status = peer.results_out.Send(Target(PieceBegin(position_, piece)), PieceCount(position_, piece) * element_size_);
    *moved = true;
  }
  return status;
}

Status SlicedReduction::Take(bool* moved) {
  for (Peer& peer : peers_) {
    for (Stream* stream : {&peer.contributions_in, &peer.contributions_out, &peer.results_in, &peer.results_out}) {
      Status status = stream->Advance(moved);
      if (!status.ok()) return status;
    }
  }
  return Status::Ok();
}

bool SlicedReduction::ReduceNext() {
  if (reduced_ == Pieces(position_)) return false;
  for (const Peer& peer : peers_) {
    if (peer.contributions_in.done() <= reduced_) return false;
  }
  const int64_t begin = PieceBegin(position_, reduced_);
  std::vector<const void*> inputs(ranks_);
  inputs[position_] = Source(begin);
  for (size_t i = 0; i < peers_.size(); ++i) inputs[peers_[i].results_in.peer()] = Inbox(i, reduced_);
  void* output = Target(begin);
  Reduce(inputs.data(), ranks_, &output, 1, PieceCount(position_, reduced_), arithmetic_);
  ++reduced_;
  return true;
}

bool SlicedReduction::IsDone() const {
  const int64_t mine = Pieces(position_);
  if (reduced_ < mine) return false;
  for (const Peer& peer : peers_) {
    const int64_t theirs = Pieces(peer.results_in.peer());
    if (peer.contributions_out.done() < theirs) return false;
    if (shares_results_ && (peer.results_out.done() < mine || peer.results_in.done() < theirs)) return false;
  }
  return true;
}

std::vector<int32_t> SlicedReduction::Missing() const {
  const int64_t mine = Pieces(position_);
  std::vector<int32_t> members;
  for (const Peer& peer : peers_) {
    const int64_t theirs = Pieces(peer.results_in.peer());
    const bool results = shares_results_ && peer.results_in.done() < theirs;
    if (peer.contributions_in.done() < mine || results) members.push_back(peer.results_in.peer());
  }
  if (members.empty()) {
    for (const Peer& peer : peers_) {
      const bool taken = peer.contributions_out.under_way() == 0 && peer.results_out.under_way() == 0;
      if (!taken) members.push_back(peer.results_in.peer());
    }
  }
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace spark_hvd
