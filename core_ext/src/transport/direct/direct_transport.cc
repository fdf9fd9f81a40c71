#include "transport/direct/direct_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reduction.h"
#include "transport/direct/lane.h"
#include "transport/direct/sliced_allreduce.h"

namespace spark_hvd {
namespace {

// Turns `lanes` until all of them are through.
Status Complete(std::vector<Lane>* lanes, Patience* patience) {
  const auto waiting = [lanes] {
    std::vector<int32_t> ranks;
    for (const Lane& lane : *lanes) {
      if (lane.under_way() > 0) ranks.push_back(lane.peer());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  for (;;) {
    bool moved = false, open = false;
    for (Lane& lane : *lanes) {
      Status status = lane.Advance(&moved);
      if (!status.ok()) return status;
      open = open || lane.under_way() > 0;
    }
    if (!open) return Status::Ok();
    if (moved) {
      patience->Moved();
      continue;
    }
    Status status = patience->Rest(waiting);
    if (!status.ok()) return status;
  }
}

// Parent (or -1) and children of `rank` in the binomial tree whose root is `root`; the largest subtree comes first.
std::pair<int, std::vector<int>> TreeNeighbours(int rank, int size, int root) {
  const int place = (rank - root + size) % size;
  std::pair<int, std::vector<int>> result{-1, {}};
  int bit = 1;
  for (; bit < size; bit <<= 1) {
    if (place & bit) {
      result.first = (place - bit + root) % size;
      break;
    }
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit < size) result.second.push_back((place + bit + root) % size);
  }
  return result;
}

}  // namespace

DirectTransport::DirectTransport(std::shared_ptr<Link> link, DirectOptions options)
    : link_(std::move(link)), options_(options) {
  options_.piece_bytes = std::max<int64_t>(options_.piece_bytes / 8 * 8, 8);
}

Status DirectTransport::Allreduce(const Reduction& reduction, Patience* patience) {
  if (reduction.count == 0) return Status::Ok();
  const void* source = reduction.input;
  if (reduction.scaling.prescale != 1.0) {
    Scale(source, reduction.output, reduction.count, reduction.dtype, reduction.scaling.prescale);
    source = reduction.output;
  }
  const int64_t bytes = reduction.count * ElementSize(reduction.dtype);
  if (bytes * (link_->size() - 1) <= options_.small_bytes) return AllreduceSmall(reduction, source, patience);
  // Pieces of a small slice are smaller, so that a middling tensor still overlaps; the same cut on every rank.
  const int64_t slice = (bytes + link_->size() - 1) / link_->size();
  const int64_t piece = std::min(options_.piece_bytes, (slice + 63) / 64 * 64);
  char* scratch = scratch_.Reserve(SlicedAllreduce::ScratchBytes(link_->size(), piece, options_.window));
  return SlicedAllreduce(link_.get(), reduction, source, scratch, piece, options_.window).Run(patience);
}

Status DirectTransport::AllreduceSmall(const Reduction& reduction, const void* source, Patience* patience) {
  const int rank = link_->rank(), ranks = link_->size();
  const int64_t bytes = reduction.count * ElementSize(reduction.dtype);
  const int64_t stride = (bytes + 63) / 64 * 64;
  char* scratch = scratch_.Reserve(stride * ranks);
  std::vector<const void*> inputs(ranks);
  std::vector<Lane> in, out;
  Status status;
  for (int step = 1; step < ranks && status.ok(); ++step) {
    const int peer = (rank + step) % ranks;
    inputs[peer] = scratch + peer * stride;
    in.emplace_back(link_.get(), peer, kContributionTag);
    status = in.back().Receive(scratch + peer * stride, bytes);
    if (!status.ok()) break;
    out.emplace_back(link_.get(), peer, kContributionTag);
    status = out.back().Send(source, bytes);
  }
  inputs[rank] = source;
  if (status.ok()) status = Complete(&in, patience);
  // The output may be what is still being sent.
  if (status.ok()) status = Complete(&out, patience);
  if (!status.ok()) {
    for (Lane& lane : in) lane.Cancel();
    return status;
  }
  SumInOrder(inputs, reduction.output, reduction.count, reduction.dtype, reduction.scaling);
  return Status::Ok();
}

Status DirectTransport::Broadcast(void* data, int64_t bytes, int root, Patience* patience) {
  if (bytes == 0) return Status::Ok();
  const auto [parent, children] = TreeNeighbours(link_->rank(), link_->size(), root);
  const int64_t pieces = (bytes + options_.piece_bytes - 1) / options_.piece_bytes;
  const auto at = [&](int64_t piece) { return static_cast<char*>(data) + piece * options_.piece_bytes; };
  const auto length = [&](int64_t piece) {
    return std::min(options_.piece_bytes, bytes - piece * options_.piece_bytes);
  };
  std::vector<Lane> lanes;  // the children's, then the parent's
  for (int child : children) lanes.emplace_back(link_.get(), child, kBroadcastTag);
  if (parent >= 0) lanes.emplace_back(link_.get(), parent, kBroadcastTag);

  Status status;
  for (;;) {
    bool moved = false, open = false;
    if (parent >= 0) {
      Lane& up = lanes.back();
      while (status.ok() && up.posted() < pieces && up.under_way() < options_.window) {
        status = up.Receive(at(up.posted()), length(up.posted()));
      }
    }
    const int64_t here = parent >= 0 ? lanes.back().done() : pieces;
    for (size_t i = 0; i < children.size(); ++i) {
      Lane& down = lanes[i];
      while (status.ok() && down.posted() < here && down.under_way() < options_.window) {
        status = down.Send(at(down.posted()), length(down.posted()));
        moved = true;
      }
    }
    for (Lane& lane : lanes) {
      if (status.ok()) status = lane.Advance(&moved);
      open = open || lane.done() < pieces;
    }
    if (status.ok() && !open) return Status::Ok();
    if (status.ok() && moved) patience->Moved();
    if (status.ok() && !moved) {
      status = patience->Rest([&lanes, pieces] {
        std::vector<int32_t> ranks;
        for (const Lane& lane : lanes) {
          if (lane.done() < pieces) ranks.push_back(lane.peer());
        }
        return ranks;
      });
    }
    if (!status.ok()) break;
  }
  if (parent >= 0) lanes.back().Cancel();
  return status;
}

}  // namespace spark_hvd
