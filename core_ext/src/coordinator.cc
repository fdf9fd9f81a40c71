#include "coordinator.h"

#include <algorithm>
#include <sstream>

#include "fusion.h"

namespace spark_hvd {
namespace {

using Ranks = std::vector<int32_t>;

std::string ScalingText(const Request& request, const Ranks&) {
  std::ostringstream text;
  text.precision(17);
  text << "prescale " << request.scaling.prescale << ", postscale " << request.scaling.postscale;
  return text.str();
}

bool HasData(const Request& r) {
  return r.kind != Kind::kBarrier && r.kind != Kind::kJoin && r.kind != Kind::kExchange;
}

bool Reduces(const Request& r) { return r.kind == Kind::kAllreduce || r.kind == Kind::kReducescatter; }

// The extents that ranks must share: not the rows of an allgather or alltoall.
std::string SharedShapeText(const Request& r, const Ranks&) {
  if (r.kind != Kind::kAllgather && r.kind != Kind::kAlltoall) return ShapeText(r.shape);
  if (r.shape.empty()) return "()";
  std::string text = "(any";
  for (size_t i = 1; i < r.shape.size(); ++i) text += ", " + std::to_string(r.shape[i]);
  return text + (r.shape.size() == 1 ? ",)" : ")");
}

// What ranks must agree on, in the order in which a difference is reported.
struct Property {
  const char* name;
  std::string (*text)(const Request&, const Ranks& of_the_members);
  bool (*matters)(const Request&);
};

bool Always(const Request&) { return true; }

const Property kProperties[] = {
    {"collective", [](const Request& r, const Ranks&) { return std::string(KindName(r.kind)); }, Always},
    {"dtype", [](const Request& r, const Ranks&) { return std::string(DtypeName(r.dtype)); }, HasData},
    {"shape", SharedShapeText, HasData},
    {"op", [](const Request& r, const Ranks&) { return std::string(OpName(r.op)); }, Reduces},
    {"scaling", ScalingText, Reduces},
    {"root",
     [](const Request& r, const Ranks& ranks) {
       return std::to_string(r.root >= 0 && r.root < static_cast<int32_t>(ranks.size()) ? ranks[r.root] : -1);
     },
     [](const Request& r) { return r.kind == Kind::kBroadcast; }},
    {"group",
     [](const Request& r, const Ranks&) {
       return r.group.empty() ? std::string("none") : "'" + r.group + "' of " + std::to_string(r.group_size);
     },
     Always},
};

}  // namespace

Coordinator::Coordinator(std::vector<int32_t> ranks, const CoordinatorOptions& options)
    : ranks_(std::move(ranks)),
      size_(static_cast<int32_t>(ranks_.size())),
      options_(options),
      left_(ranks_.size(), 0),
      joined_(ranks_.size(), 0) {}

void Coordinator::Add(int32_t member, Request request, TimePoint now) {
  const auto missed = missed_.find({member, request.name});
  if (missed != missed_.end()) {
    errors_.push_back(MakeError({request.name}, missed->second.front(), {member}));
    missed->second.pop_front();
    if (missed->second.empty()) missed_.erase(missed);
    return;
  }
  const bool joins = request.kind == Kind::kJoin;
  if (joins) {
    joined_[member] = 1;
    last_joined_ = member;
  }
  const std::string name = request.name;
  Note(member, std::move(request), now);
  // A rank that joins may be the last that something waits for.
  std::vector<std::string> complete;
  if (joins) {
    for (const auto& [other, waiting] : pending_) {
      if (IsComplete(waiting)) complete.push_back(other);
    }
    std::sort(complete.begin(), complete.end());
  } else if (IsComplete(pending_.find(name)->second)) {
    complete.push_back(name);
  }
  for (const std::string& other : complete) {
    auto found = pending_.find(other);
    Pending done = std::move(found->second);
    pending_.erase(found);
    Complete(std::move(done));
  }
  if (!frozen_) GiveUpGone(name);
}

void Coordinator::Note(int32_t member, Request request, TimePoint now) {
  auto [found, is_new] = pending_.try_emplace(request.name);
  Pending& pending = found->second;
  const TimePoint since = now - ToDuration(request.age);
  if (is_new) {
    pending.first = request;
    pending.asked.assign(size_, 0);
    if (request.kind == Kind::kAllgather) pending.sizes.assign(size_, 0);
    if (request.kind == Kind::kAlltoall) pending.sizes.assign(static_cast<size_t>(size_) * size_, 0);
    if (request.kind == Kind::kExchange) pending.payloads.resize(size_);
    pending.since = since;
  }
  pending.since = std::min(pending.since, since);
  pending.asked[member] = 1;
  ++pending.count;
  if (!pending.first.SameAs(request)) {
    pending.different.emplace_back(member, std::move(request));
  } else if (request.kind == Kind::kAllgather) {
    pending.sizes[member] = request.rows();
  } else if (request.kind == Kind::kAlltoall) {
    const size_t given = std::min(request.splits.size(), static_cast<size_t>(size_));
    std::copy_n(request.splits.begin(), given, pending.sizes.begin() + static_cast<ptrdiff_t>(member) * size_);
  } else if (request.kind == Kind::kExchange) {
    pending.payloads[member] = std::move(request.payload);
  }
}

bool Coordinator::IsComplete(const Pending& pending) const {
  if (pending.count == size_) return true;
  if (pending.first.kind == Kind::kJoin || pending.first.kind == Kind::kExchange) return false;
  for (int32_t member = 0; member < size_; ++member) {
    if (!pending.asked[member] && !joined_[member]) return false;
  }
  return true;
}

void Coordinator::Complete(Pending pending) {
  if (pending.first.kind == Kind::kJoin && pending.different.empty()) {
    Response response;
    response.verdict = Verdict::kJoined;
    response.names = {pending.first.name};
    response.value = ranks_[last_joined_];
    joins_.push_back(std::move(response));
    joined_.assign(size_, 0);
    return;
  }
  const Status status = Check(pending);
  Ready ready{std::move(pending.first), std::move(pending.sizes), std::move(pending.payloads)};
  const std::string group = ready.request.group;
  if (group.empty()) return Settle(std::move(ready), status);
  auto& held = held_[group];
  held.emplace_back(std::move(ready), status);
  if (static_cast<int32_t>(held.size()) < held.front().first.request.group_size) return;
  auto members = std::move(held);
  held_.erase(group);
  // One mistake ends all of them.
  Status worst;
  for (const auto& member : members) {
    if (worst.ok()) worst = member.second;
  }
  for (auto& member : members) Settle(std::move(member.first), worst);
}

void Coordinator::Settle(Ready ready, Status status) {
  if (status.ok()) {
    ready_.push_back(std::move(ready));
  } else {
    errors_.push_back(MakeError({ready.request.name}, std::move(status)));
  }
}

void Coordinator::Leave(int32_t member) {
  left_[member] = 1;
  if (!frozen_) GiveUpAllGone();
}

void Coordinator::GiveUpAllGone() {
  std::vector<std::string> names;
  for (const auto& item : pending_) names.push_back(item.first);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) GiveUpGone(name);
}

void Coordinator::GiveUpGone(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return;
  std::vector<int32_t> gone;
  for (int32_t member : Members(found->second, false)) {
    if (left_[member]) gone.push_back(ranks_[member]);
  }
  if (gone.empty()) return;
  GiveUp(name, found->second, Status::Error(HVD_SHUT_DOWN, RankList(gone) + " has shut down", gone));
  pending_.erase(found);
}

std::vector<Response> Coordinator::Decide(TimePoint now) {
  if (frozen_) return {};
  if (now >= next_check_) {
    next_check_ = now + ToDuration(std::min(0.25, options_.comm_timeout / 8));
    GiveUpStalled(now);
    Report(now);
  }
  const bool all_left = !told_all_left_ && present().empty();
  if (errors_.empty() && boundaries_.empty() && ready_.empty() && joins_.empty() && !all_left) return {};
  std::vector<Response> responses = std::exchange(errors_, {});
  if (!boundaries_.empty()) {
    Response response;
    response.verdict = Verdict::kBoundary;
    response.names = std::exchange(boundaries_, {});
    responses.push_back(std::move(response));
  }
  std::vector<Ready> ready = std::exchange(ready_, {});
  std::vector<Request> requests;
  for (const Ready& item : ready) requests.push_back(item.request);
  for (const std::vector<size_t>& group : PlanFusion(requests, options_.fusion_threshold)) {
    Response response;
    Ready& first = ready[group.front()];
    if (first.request.kind == Kind::kExchange) {
      response.verdict = Verdict::kExchanged;
      response.payloads = std::move(first.payloads);
    }
    if (first.request.kind == Kind::kAllgather || first.request.kind == Kind::kAlltoall) {
      response.sizes = std::move(first.sizes);
    }
    for (size_t index : group) response.requests.push_back(std::move(ready[index].request));
    responses.push_back(std::move(response));
  }
  // After what the ranks that joined still took part in.
  for (Response& join : joins_) responses.push_back(std::move(join));
  joins_.clear();
  const bool all_here = static_cast<int32_t>(present().size()) == size_;
  const bool nobody_joined = std::find(joined_.begin(), joined_.end(), 1) == joined_.end();
  if (!responses.empty() && pending_.empty() && held_.empty() && missed_.empty() && all_here && nobody_joined) {
    Response response;
    response.verdict = Verdict::kPredict;
    responses.push_back(std::move(response));
    frozen_ = true;
  }
  if (all_left) {
    told_all_left_ = true;
    Response response;
    response.verdict = Verdict::kAllLeft;
    responses.push_back(std::move(response));
  }
  return responses;
}

void Coordinator::Resume(bool predicting) {
  frozen_ = false;
  if (!predicting) return GiveUpAllGone();
  // Requests that came after the last decision: their ranks know that it was the last of this round.
  pending_.clear();
  held_.clear();
  ready_.clear();
  joins_.clear();
  joined_.assign(size_, 0);
}

std::vector<int32_t> Coordinator::present() const {
  std::vector<int32_t> ranks;
  for (int32_t member = 0; member < size_; ++member) {
    if (!left_[member]) ranks.push_back(ranks_[member]);
  }
  return ranks;
}

std::vector<int32_t> Coordinator::Members(const Pending& pending, bool asked) const {
  std::vector<int32_t> members;
  for (int32_t member = 0; member < size_; ++member) {
    const bool there = pending.asked[member] || (joined_[member] && pending.first.kind != Kind::kJoin);
    if (asked ? pending.asked[member] != 0 : !there) members.push_back(member);
  }
  return members;
}

std::vector<int32_t> Coordinator::RanksOf(const std::vector<int32_t>& members) const {
  std::vector<int32_t> ranks;
  for (int32_t member : members) ranks.push_back(ranks_[member]);
  return ranks;
}

void Coordinator::GiveUp(const std::string& name, const Pending& pending, const Status& why) {
  const std::vector<int32_t> waiting = Members(pending, true), missing = Members(pending, false);
  Status status = why;
  status.message = std::string(KindName(pending.first.kind)) + " '" + name + "': " + why.message + "; " +
                   RankList(RanksOf(waiting)) + " waited for it, " + RankList(RanksOf(missing)) + " did not join";
  errors_.push_back(MakeError({name}, status, waiting));
  for (int32_t member : missing) {
    if (!left_[member]) missed_[{member, name}].push_back(status);
  }
  if (pending.first.kind == Kind::kJoin) joined_.assign(size_, 0);
  // Its group cannot be carried out any more.
  const auto held = held_.find(pending.first.group);
  if (held == held_.end()) return;
  for (auto& item : held->second) errors_.push_back(MakeError({item.first.request.name}, status));
  held_.erase(held);
}

void Coordinator::Report(TimePoint now) {
  if (!(options_.stall_check > 0)) return;
  std::map<std::vector<int32_t>, std::vector<std::string>> late;  // missing ranks -> names
  for (auto& [name, pending] : pending_) {
    if (pending.reported || Seconds(now - pending.since).count() < options_.stall_check) continue;
    if (pending.first.kind == Kind::kJoin) continue;  // the others still have work
    pending.reported = true;
    late[RanksOf(Members(pending, false))].push_back(name);
  }
  for (auto& [missing, names] : late) {
    constexpr size_t kMost = 20;
    std::sort(names.begin(), names.end());
    std::string text = RankList(missing) + " did not join ";
    for (size_t i = 0; i < names.size() && i < kMost; ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
    if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
    std::ostringstream seconds;
    seconds << options_.stall_check;
    reports_.push_back(text + ", which the other ranks have waited for more than " + seconds.str() + " s");
  }
}

void Coordinator::GiveUpStalled(TimePoint now) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const double waited = Seconds(now - it->second.since).count();
    if (waited < options_.comm_timeout || it->second.first.kind == Kind::kJoin) {
      ++it;
      continue;
    }
    std::ostringstream text;
    text << "not all ranks joined within " << options_.comm_timeout
         << " s (comm_timeout). Do all ranks run the same steps? If the others are only slow, raise it";
    const std::vector<int32_t> missing = RanksOf(Members(it->second, false));
    GiveUp(it->first, it->second, Status::Error(HVD_STALLED, text.str(), missing));
    it = pending_.erase(it);
  }
}

Status Coordinator::Check(const Pending& pending) const {
  const std::string disagreement = Disagreement(pending);
  if (!disagreement.empty()) return Status::Error(HVD_MISMATCH, disagreement);
  const Request& request = pending.first;
  if (request.kind == Kind::kBroadcast && !pending.asked[request.root]) {
    const int32_t root = ranks_[request.root];
    return Status::Error(HVD_MISMATCH, "broadcast '" + request.name + "': its root, " + RankList({root}) +
                                           ", has called join() and has no data left to give; broadcast before "
                                           "that rank joins, or from another root");
  }
  return Status::Ok();
}

std::string Coordinator::Disagreement(const Pending& pending) const {
  for (const Property& property : kProperties) {
    if (!property.matters(pending.first)) continue;
    const auto text_of = [&](const Request& request) { return property.text(request, ranks_); };
    std::map<std::string, std::vector<int32_t>> values;
    std::vector<char> other(size_, 0);
    for (const auto& [member, request] : pending.different) {
      values[text_of(request)].push_back(ranks_[member]);
      other[member] = 1;
    }
    for (int32_t member = 0; member < size_; ++member) {
      if (pending.asked[member] && !other[member]) values[text_of(pending.first)].push_back(ranks_[member]);
    }
    if (values.size() < 2) continue;
    std::string text = std::string(KindName(pending.first.kind)) + " '" + pending.first.name + "': ranks disagree on " +
                       property.name + ":";
    const char* separator = " ";
    for (auto& [value, ranks] : values) {
      std::sort(ranks.begin(), ranks.end());
      text += separator + value + " on " + RankList(ranks);
      separator = "; ";
    }
    return text + ". Give the same on every rank, or another name to what is not the same thing";
  }
  return "";
}

}  // namespace spark_hvd
