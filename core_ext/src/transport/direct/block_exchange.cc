#include "transport/direct/block_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace spark_hvd {

BlockExchange::BlockExchange(const Circle& circle, const Collective& collective, int64_t piece_bytes, int64_t window)
    : piece_bytes_(piece_bytes), window_(window) {
  if (collective.kind != Kind::kBarrier) {
    AddBlocks(circle, collective);
    return;
  }
  const int32_t size = circle.members.size();
  for (int32_t step = 1; step < size; ++step) {
    const int32_t peer = (circle.members.position + step) % size;
    out_.push_back({Stream(circle, peer, Use::kBlock), &word_[0], 1});
    in_.push_back({Stream(circle, peer, Use::kBlock), &word_[1], 1});
  }
}

void BlockExchange::AddBlocks(const Circle& circle, const Collective& collective) {
  const int32_t size = circle.members.size(), position = circle.members.position;
  const Span& span = collective.spans[0];
  const int64_t element = ElementSize(collective.dtype);
  const bool gathers = collective.kind == Kind::kAllgather;
  const auto begins = [&](const std::vector<int64_t>& counts) {
    std::vector<int64_t> result(counts.size() + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), result.begin() + 1);
    for (int64_t& begin : result) begin *= element;
    return result;
  };
  // Nothing is written to what is sent.
  char* from = const_cast<char*>(static_cast<const char*>(span.input));
  char* to = static_cast<char*>(span.output);
  const std::vector<int64_t> places = begins(collective.receive_counts);
  const std::vector<int64_t> sources = gathers ? std::vector<int64_t>(size + 1, 0) : begins(collective.send_counts);
  const auto sent = [&](int32_t peer) {
    return (gathers ? collective.receive_counts[position] : collective.send_counts[peer]) * element;
  };
  const size_t own = static_cast<size_t>(sent(position));
  if (own > 0) std::memmove(to + places[position], from + sources[position], own);
  for (int32_t step = 1; step < size; ++step) {
    const int32_t next = (position + step) % size, previous = (position - step + size) % size;
    out_.push_back({Stream(circle, next, Use::kBlock), from + sources[next], sent(next)});
    in_.push_back(
        {Stream(circle, previous, Use::kBlock), to + places[previous], collective.receive_counts[previous] * element});
  }
}

BlockExchange::~BlockExchange() {
  if (ended_) return;
  for (Block& block : in_) block.stream.Cancel();
}

Status BlockExchange::Advance(bool* moved, bool* done) {
  for (bool again = true; again;) {
    again = false;
    *done = true;
    for (size_t k = 0; k < in_.size() + out_.size(); ++k) {
      const bool receives = k < in_.size();
      Block& block = receives ? in_[k] : out_[k - in_.size()];
      Status status;
      while (status.ok() && block.stream.posted() < Pieces(block) && block.stream.under_way() < window_) {
        const int64_t at = block.stream.posted() * piece_bytes_;
        const int64_t length = std::min(piece_bytes_, block.bytes - at);
        status = receives ? block.stream.Receive(block.data + at, length) : block.stream.Send(block.data + at, length);
        again = true;
      }
      if (status.ok()) status = block.stream.Advance(&again);
      if (!status.ok()) return status;
      *done = *done && block.stream.done() == Pieces(block);
    }
    *moved = *moved || again;
  }
  ended_ = *done;
  return Status::Ok();
}

std::vector<int32_t> BlockExchange::Missing() const {
  std::vector<int32_t> members;
  for (const std::vector<Block>* blocks : {&in_, &out_}) {
    for (const Block& block : *blocks) {
      if (block.stream.done() < Pieces(block)) members.push_back(block.stream.peer());
    }
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

}  // namespace spark_hvd
