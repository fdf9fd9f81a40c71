#include "transport/shm/shm_transport.h"

#include <algorithm>

#include "transport/shm/allreduce.h"
#include "transport/shm/streams.h"

namespace spark_hvd {
namespace {

int64_t TotalBytes(const Collective& c) {
  int64_t count = 0;
  for (const Span& span : c.spans) count += span.count;
  return count * ElementSize(c.dtype);
}

// What a vote was about, and what it was.
uint64_t Ballot(int64_t sequence, bool ready) { return static_cast<uint64_t>(sequence) << 1 | (ready ? 1 : 0); }

}  // namespace

bool ShmTransport::Serves(const Collective& c) const {
  switch (c.kind) {
    case Kind::kAllreduce:
    case Kind::kReducescatter:
      return c.op != HVD_ADASUM;
    case Kind::kBroadcast:
    case Kind::kAllgather:
    case Kind::kAlltoall:
    case Kind::kBarrier:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<Operation> ShmTransport::Start(const Collective& c) {
  switch (c.kind) {
    case Kind::kAllreduce:
      if (TotalBytes(c) <= lane_.arena->options().small_bytes) return std::make_unique<SmallAllreduce>(&lane_, c);
      return std::make_unique<LargeAllreduce>(&lane_, c);
    case Kind::kReducescatter:
      return std::make_unique<ShmReducescatter>(&lane_, c);
    case Kind::kBroadcast:
      return std::make_unique<ShmBroadcast>(&lane_, c);
    case Kind::kAllgather:
      return std::make_unique<ShmAllgather>(&lane_, c);
    case Kind::kAlltoall:
      return std::make_unique<ShmAlltoall>(&lane_, c);
    default:
      return std::make_unique<ShmBarrier>(&lane_, c);
  }
}

Status ShmConsent::Vote(int64_t sequence, bool ready) {
  sequence_ = sequence;
  arena_->SetBallot(++votes_, Ballot(sequence, ready));
  arena_->RingPeers();
  return Status::Ok();
}

Status ShmConsent::Ask(int64_t sequence, Answer* answer) {
  const bool voted = sequence == sequence_;
  const int64_t vote = voted ? votes_ : votes_ + 1;
  bool all = voted, refused = false;
  for (int position = 0; position < arena_->size(); ++position) {
    const uint64_t ballot = arena_->ballot(position, vote);
    if (ballot == Ballot(sequence, false)) {
      refused = true;
    } else if (ballot != Ballot(sequence, true)) {
      all = false;
    }
  }
  // After the own vote the answer waits for everybody's: nobody may vote on before all know this one.
  const bool known = all || (!voted && refused);
  *answer = !known ? Answer::kOpen : refused ? Answer::kRefused : Answer::kAllReady;
  return Status::Ok();
}

std::vector<int32_t> ShmConsent::Missing() const {
  std::vector<int32_t> missing;
  for (int position = 0; position < arena_->size(); ++position) {
    if (arena_->ballot(position, votes_) >> 1 != static_cast<uint64_t>(sequence_)) missing.push_back(position);
  }
  return missing;
}

Status ShmProvider::Open(const Members& members, const Exchange& exchange, std::unique_ptr<Transport>* out) {
  if (!host_) {
    Status status = ShmHost::Open(members.position, members.size(), exchange, &host_);
    if (!status.ok()) return status;
    if (!host_->trouble().empty()) note_("this rank shares no memory: " + host_->trouble());
  }
  for (int32_t rank : members.ranks) {
    if (host_->LocalRank(rank) < 0) return Status::Ok();  // the same on all members: hosts are known to all
  }
  std::shared_ptr<Arena> arena;
  std::string why;
  Status status = Arena::Open(host_, members.ranks, exchange, options_, &arena, &why);
  if (!status.ok()) return status;
  if (!arena) {
    note_("process set " + std::to_string(members.set) + " goes through messages instead of shared memory: " + why);
    return status;
  }
  arenas_[members.set] = arena;
  *out = std::make_unique<ShmTransport>(std::move(arena), segments_);
  return status;
}

std::unique_ptr<Consent> ShmProvider::OpenConsent(const Members& members) {
  const auto found = arenas_.find(members.set);
  std::shared_ptr<Arena> arena = found == arenas_.end() ? nullptr : found->second.lock();
  return arena ? std::make_unique<ShmConsent>(std::move(arena)) : nullptr;
}

Status ShmProvider::Check(TimePoint now) {
  if (!host_) return Status::Ok();
  if (now >= next_beat_) {
    next_beat_ = now + ToDuration(std::min(1.0, heartbeat_timeout_ / 10));
    host_->Beat();
  }
  return host_->CheckPeers(now, heartbeat_timeout_);
}

void ShmProvider::Farewell(const Status& how) {
  if (host_) host_->SayFarewell(how.ok() ? spark_hvd::Farewell::kLeft : spark_hvd::Farewell::kFailed, how.message);
}

}  // namespace spark_hvd
