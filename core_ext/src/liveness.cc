#include "liveness.h"

#include <algorithm>
#include <sstream>

namespace spark_hvd {

Liveness::Liveness(int rank, int size, double timeout, TimePoint now)
    : rank_(rank), size_(size), timeout_(timeout), heard_(size, now), checked_(now) {}

Status Liveness::Check(TimePoint now, const std::function<Status(int rank)>& send) {
  const Clock::duration interval = ToDuration(std::min(timeout_ / 5, 10.0));
  const int first = rank_ == 0 ? 1 : 0, last = rank_ == 0 ? size_ - 1 : 0;
  // This process itself may have been stopped: what the others said meanwhile has not been read yet.
  if (now - checked_ > interval) std::fill(heard_.begin(), heard_.end(), now);
  checked_ = now;
  if (now >= next_beat_) {
    next_beat_ = now + interval;
    for (int rank = first; rank <= last && rank < size_; ++rank) {
      if (rank == rank_) continue;
      Status status = send(rank);
      if (!status.ok()) return status;
    }
  }
  std::vector<int32_t> silent;
  for (int rank = first; rank <= last && rank < size_; ++rank) {
    if (rank != rank_ && Seconds(now - heard_[rank]).count() > timeout_) silent.push_back(rank);
  }
  if (silent.empty()) return Status::Ok();
  std::ostringstream text;
  text << RankList(silent) << " gave no sign of life for " << timeout_
       << " s (heartbeat_timeout): stopped, frozen, or cut off";
  return Status::Error(HVD_PEER_FAILED, text.str(), silent);
}

}  // namespace spark_hvd
