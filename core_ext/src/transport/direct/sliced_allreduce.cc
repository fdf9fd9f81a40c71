#include "transport/direct/sliced_allreduce.h"

#include <algorithm>

#include "reduction.h"

namespace spark_hvd {

SlicedAllreduce::SlicedAllreduce(Link* link, const Reduction& reduction, const void* source, char* scratch,
                                 int64_t piece_bytes, int64_t window)
    : reduction_(reduction),
      source_(static_cast<const char*>(source)),
      scratch_(scratch),
      rank_(link->rank()),
      ranks_(link->size()),
      element_size_(ElementSize(reduction.dtype)),
      piece_count_(std::max<int64_t>(1, piece_bytes / element_size_)),
      window_(window) {
  // Each rank starts with the one after it, so that not all send to rank 0 first.
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (rank_ + step) % ranks_;
    peers_.push_back({Lane(link, peer, kContributionTag), Lane(link, peer, kContributionTag),
                      Lane(link, peer, kResultTag), Lane(link, peer, kResultTag)});
  }
}

int64_t SlicedAllreduce::ScratchBytes(int ranks, int64_t piece_bytes, int64_t window) {
  return (ranks - 1) * window * std::max<int64_t>(piece_bytes, 8);
}

Status SlicedAllreduce::Run(Patience* patience) {
  Status status;
  while (!IsDone()) {
    bool moved = false;
    status = Advance(&moved);
    if (status.ok()) status = SumReady(&moved);
    for (size_t i = 0; status.ok() && i < peers_.size(); ++i) status = Post(i, &moved);
    if (!status.ok()) break;
    if (moved) {
      patience->Moved();
    } else {
      status = patience->Rest([this] { return WaitingFor(); });
      if (!status.ok()) break;
    }
  }
  if (!status.ok()) {
    for (Peer& peer : peers_) {
      peer.contributions_in.Cancel();
      peer.results_in.Cancel();
    }
  }
  return status;
}

int64_t SlicedAllreduce::Pieces(int rank) const {
  const int64_t count = SliceBegin(rank + 1) - SliceBegin(rank);
  return (count + piece_count_ - 1) / piece_count_;
}

int64_t SlicedAllreduce::PieceCount(int rank, int64_t piece) const {
  return std::min(piece_count_, SliceBegin(rank + 1) - PieceBegin(rank, piece));
}

char* SlicedAllreduce::Inbox(size_t peer_index, int64_t piece) const {
  const int64_t slot = static_cast<int64_t>(peer_index) * window_ + piece % window_;
  return scratch_ + slot * piece_count_ * element_size_;
}

Status SlicedAllreduce::Post(size_t peer_index, bool* moved) {
  Peer& peer = peers_[peer_index];
  const int other = peer.results_in.peer();
  const int64_t mine = Pieces(rank_), theirs = Pieces(other);
  Status status;
  while (status.ok() && peer.contributions_in.posted() < std::min(mine, summed_ + window_)) {
    const int64_t piece = peer.contributions_in.posted();
    status = peer.contributions_in.Receive(Inbox(peer_index, piece), PieceCount(rank_, piece) * element_size_);
    *moved = true;
  }
  while (status.ok() && peer.contributions_out.posted() < theirs && peer.contributions_out.under_way() < window_) {
    const int64_t piece = peer.contributions_out.posted();
    status = peer.contributions_out.Send(Source(PieceBegin(other, piece)), PieceCount(other, piece) * element_size_);
    *moved = true;
  }
  // In place, a result lands where a contribution was: not before that one has left.
  while (status.ok() && peer.results_in.posted() < std::min(peer.contributions_out.done(), theirs)) {
    const int64_t piece = peer.results_in.posted();
    status = peer.results_in.Receive(Output(PieceBegin(other, piece)), PieceCount(other, piece) * element_size_);
    *moved = true;
  }
  while (status.ok() && peer.results_out.posted() < summed_) {
    const int64_t piece = peer.results_out.posted();
    status = peer.results_out.Send(Output(PieceBegin(rank_, piece)), PieceCount(rank_, piece) * element_size_);
    *moved = true;
  }
  return status;
}

Status SlicedAllreduce::Advance(bool* moved) {
  for (Peer& peer : peers_) {
    for (Lane* lane : {&peer.contributions_in, &peer.contributions_out, &peer.results_in, &peer.results_out}) {
      Status status = lane->Advance(moved);
      if (!status.ok()) return status;
    }
  }
  return Status::Ok();
}

Status SlicedAllreduce::SumReady(bool* moved) {
  if (summed_ == Pieces(rank_)) return Status::Ok();
  for (const Peer& peer : peers_) {
    if (peer.contributions_in.done() <= summed_) return Status::Ok();
  }
  const int64_t begin = PieceBegin(rank_, summed_);
  std::vector<const void*> inputs(ranks_);
  inputs[rank_] = Source(begin);
  for (size_t i = 0; i < peers_.size(); ++i) inputs[peers_[i].results_in.peer()] = Inbox(i, summed_);
  SumInOrder(inputs, Output(begin), PieceCount(rank_, summed_), reduction_.dtype, reduction_.scaling);
  ++summed_;
  *moved = true;
  return Status::Ok();
}

bool SlicedAllreduce::Peer::IsDone(int64_t my_pieces, int64_t peer_pieces) const {
  return results_out.done() == my_pieces && results_in.done() == peer_pieces;
}

bool SlicedAllreduce::IsDone() const {
  const int64_t mine = Pieces(rank_);
  for (const Peer& peer : peers_) {
    if (!peer.IsDone(mine, Pieces(peer.results_in.peer()))) return false;
  }
  return true;
}

std::vector<int32_t> SlicedAllreduce::WaitingFor() const {
  const int64_t mine = Pieces(rank_);
  std::vector<int32_t> ranks;
  for (const Peer& peer : peers_) {
    const int other = peer.results_in.peer();
    if (peer.contributions_in.done() < mine || peer.results_in.done() < Pieces(other)) ranks.push_back(other);
  }
  if (ranks.empty()) {
    for (const Peer& peer : peers_) {
      if (peer.results_out.done() < mine) ranks.push_back(peer.results_in.peer());
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace spark_hvd
