#include "transport/direct/tree_broadcast.h"

#include <algorithm>
#include <cstring>

namespace spark_hvd {

TreeBroadcast::TreeBroadcast(const Circle& circle, const Collective& collective, int64_t piece_bytes, int64_t window)
    : data_(static_cast<char*>(collective.spans[0].output)),
      bytes_(collective.spans[0].count * ElementSize(collective.dtype)),
      piece_bytes_(piece_bytes),
      window_(window),
      pieces_((bytes_ + piece_bytes - 1) / piece_bytes) {
  const Span& span = collective.spans[0];
  const int32_t size = circle.members.size();
  const int32_t place = (circle.members.position - collective.root + size) % size;
  if (place == 0 && span.output != span.input && bytes_ > 0)
    std::memcpy(data_, span.input, static_cast<size_t>(bytes_));
  // Parent and children in the tree whose root is the first place; the largest subtree comes first.
  int32_t bit = 1;
  for (; bit < size; bit <<= 1) {
    if (place & bit) {
      up_.emplace_back(circle, (place - bit + collective.root) % size, Use::kBlock);
      break;
    }
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit < size) down_.emplace_back(circle, (place + bit + collective.root) % size, Use::kBlock);
  }
}

TreeBroadcast::~TreeBroadcast() {
  if (ended_) return;
  for (Stream& stream : up_) stream.Cancel();
}

int64_t TreeBroadcast::Length(int64_t piece) const { return std::min(piece_bytes_, bytes_ - piece * piece_bytes_); }

Status TreeBroadcast::Advance(bool* moved, bool* done) {
  for (bool again = true; again;) {
    again = false;
    Status status = Post(&again);
    if (!status.ok()) return status;
    *done = true;
    for (std::vector<Stream>* streams : {&up_, &down_}) {
      for (Stream& stream : *streams) {
        status = stream.Advance(&again);
        if (!status.ok()) return status;
        *done = *done && stream.done() == pieces_;
      }
    }
    *moved = *moved || again;
  }
  ended_ = *done;
  return Status::Ok();
}

Status TreeBroadcast::Post(bool* moved) {
  Status status;
  for (Stream& up : up_) {
    while (status.ok() && up.posted() < pieces_ && up.under_way() < window_) {
      status = up.Receive(data_ + up.posted() * piece_bytes_, Length(up.posted()));
      *moved = true;
    }
  }
  const int64_t here = up_.empty() ? pieces_ : up_[0].done();
  for (Stream& down : down_) {
    while (status.ok() && down.posted() < here && down.under_way() < window_) {
      status = down.Send(data_ + down.posted() * piece_bytes_, Length(down.posted()));
      *moved = true;
    }
  }
  return status;
}

std::vector<int32_t> TreeBroadcast::Missing() const {
  std::vector<int32_t> members;
  for (const std::vector<Stream>* streams : {&up_, &down_}) {
    for (const Stream& stream : *streams) {
      if (stream.done() < pieces_) members.push_back(stream.peer());
    }
  }
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace spark_hvd
