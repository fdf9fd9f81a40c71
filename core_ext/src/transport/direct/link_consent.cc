#include "transport/direct/link_consent.h"

#include <algorithm>
#include <utility>

namespace spark_hvd {

LinkConsent::LinkConsent(std::shared_ptr<Link> link, Members members)
    : link_(std::move(link)), circle_{link_.get(), std::move(members)} {
  const int32_t size = circle_.members.size(), position = circle_.members.position;
  for (int32_t step = 1; step < size; step <<= 1) {
    rounds_.push_back({Stream(circle_, (position - step + size) % size, Use::kConsent),
                       Stream(circle_, (position + step) % size, Use::kConsent),
                       {},
                       {},
                       false,
                       false});
  }
}

LinkConsent::~LinkConsent() {
  for (Round& round : rounds_) round.in.Cancel();
}

Status LinkConsent::Listen(Round* round) {
  if (round->has) return Status::Ok();
  bool moved = false;
  Status status;
  if (round->in.under_way() == 0) status = round->in.Receive(&round->heard, sizeof(Word));
  if (status.ok()) status = round->in.Advance(&moved);
  if (status.ok() && round->in.under_way() == 0) {
    round->has = true;
    if (round->heard.sequence != sequence_) {
      const int32_t rank = circle_.members.ranks[round->in.peer()];
      return Status::Error(HVD_INTERNAL, RankList({rank}) + " votes on number " +
                                             std::to_string(round->heard.sequence) + ", this rank on " +
                                             std::to_string(sequence_));
    }
    refused_ = refused_ || round->heard.refused != 0;
  }
  return status;
}

Status LinkConsent::Vote(int64_t sequence, bool ready) {
  Answer answer;
  Status status = Ask(sequence, &answer);
  voted_ = true;
  refused_ = refused_ || !ready;
  return status.ok() ? Ask(sequence, &answer) : status;
}

Status LinkConsent::Ask(int64_t sequence, Answer* answer) {
  if (sequence != sequence_) {
    sequence_ = sequence;
    voted_ = refused_ = answered_ = false;
    for (Round& round : rounds_) round.has = round.sent = false;
  }
  *answer = Answer::kOpen;
  if (!voted_) {
    for (Round& round : rounds_) {
      Status status = Listen(&round);
      if (!status.ok()) return status;
    }
    if (refused_) *answer = Answer::kRefused;
    return Status::Ok();
  }
  for (Round& round : rounds_) {
    Status status;
    bool moved = false;
    if (!round.sent) {
      round.told.push_back({sequence_, refused_ ? 1 : 0});
      status = round.out.Send(&round.told.back(), sizeof(Word));
      round.sent = true;
    }
    if (status.ok()) status = round.out.Advance(&moved);
    while (static_cast<int64_t>(round.told.size()) > round.out.under_way()) round.told.pop_front();
    if (status.ok()) status = Listen(&round);
    if (!status.ok()) return status;
    if (!round.has) return Status::Ok();
  }
  *answer = refused_ ? Answer::kRefused : Answer::kAllReady;
  return Status::Ok();
}

std::vector<int32_t> LinkConsent::Missing() const {
  std::vector<int32_t> members;
  for (const Round& round : rounds_) {
    if (!round.has) members.push_back(round.in.peer());
  }
  std::sort(members.begin(), members.end());
  return members;
}

}  // namespace spark_hvd
