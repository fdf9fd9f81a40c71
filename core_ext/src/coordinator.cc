#include "coordinator.h"

#include <algorithm>
#include <sstream>

#include "fusion.h"

namespace spark_hvd {
namespace {

std::string ScalingText(const Request& request) {
  std::ostringstream text;
  text.precision(17);
  text << "prescale " << request.scaling.prescale << ", postscale " << request.scaling.postscale;
  return text.str();
}

// What ranks must agree on, in the order in which a difference is reported.
struct Property {
  const char* name;
  std::string (*text)(const Request&);
  bool (*matters)(const Request&);
};

const Property kProperties[] = {
    {"collective", [](const Request& r) { return std::string(KindName(r.kind)); }, [](const Request&) { return true; }},
    {"dtype", [](const Request& r) { return std::string(DtypeName(r.dtype)); },
     [](const Request& r) { return r.kind != Kind::kBarrier; }},
    {"shape", [](const Request& r) { return ShapeText(r.shape); },
     [](const Request& r) { return r.kind != Kind::kBarrier; }},
    {"op", [](const Request& r) { return std::string(OpName(r.op)); },
     [](const Request& r) { return r.kind == Kind::kAllreduce; }},
    {"scaling", ScalingText, [](const Request& r) { return r.kind == Kind::kAllreduce; }},
    {"root", [](const Request& r) { return std::to_string(r.root); },
     [](const Request& r) { return r.kind == Kind::kBroadcast; }},
};

bool SameMeaning(const Request& a, const Request& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.shape == b.shape && a.op == b.op && a.root == b.root &&
         a.scaling.prescale == b.scaling.prescale && a.scaling.postscale == b.scaling.postscale;
}

}  // namespace

Coordinator::Coordinator(int size, int64_t fusion_threshold, double comm_timeout)
    : size_(size), fusion_threshold_(fusion_threshold), comm_timeout_(comm_timeout), left_(size, 0) {}

void Coordinator::Add(int rank, Request request, TimePoint now) {
  const auto missed = missed_.find({rank, request.name});
  if (missed != missed_.end()) {
    errors_.push_back({Verdict::kError, {request.name}, missed->second.front(), {rank}});
    missed->second.pop_front();
    if (missed->second.empty()) missed_.erase(missed);
    return;
  }
  auto [found, is_new] = pending_.try_emplace(request.name);
  Pending& pending = found->second;
  if (is_new) {
    pending.first = request;
    pending.first_rank = rank;
    pending.joined.assign(size_, 0);
    pending.since = now;
  } else if (!SameMeaning(pending.first, request)) {
    pending.different.emplace_back(rank, request);
  }
  pending.joined[rank] = 1;
  if (++pending.count == size_) {
    const std::string disagreement = Disagreement(pending);
    if (disagreement.empty()) {
      ready_.push_back(std::move(pending.first));
    } else {
      errors_.push_back({Verdict::kError, {request.name}, Status::Error(HVD_MISMATCH, disagreement), {}});
    }
    pending_.erase(found);
    return;
  }
  std::vector<int32_t> gone;
  for (int32_t other : Ranks(pending, false)) {
    if (left_[other]) gone.push_back(other);
  }
  if (!gone.empty()) {
    GiveUp(request.name, pending, Status::Error(HVD_SHUT_DOWN, RankList(gone) + " has shut down", gone));
    pending_.erase(found);
  }
}

void Coordinator::Leave(int rank) {
  left_[rank] = 1;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (it->second.joined[rank]) {
      ++it;
    } else {
      GiveUp(it->first, it->second, Status::Error(HVD_SHUT_DOWN, RankList({rank}) + " has shut down", {rank}));
      it = pending_.erase(it);
    }
  }
}

std::vector<Response> Coordinator::Decide(TimePoint now) {
  if (now >= next_check_) GiveUpStalled(now);
  std::vector<Response> responses = std::exchange(errors_, {});
  const std::vector<Request> ready = std::exchange(ready_, {});
  for (const std::vector<size_t>& group : PlanFusion(ready, fusion_threshold_)) {
    Response response;
    for (size_t index : group) response.names.push_back(ready[index].name);
    responses.push_back(std::move(response));
  }
  if (!told_all_left_ && present().empty()) {
    told_all_left_ = true;
    responses.push_back({Verdict::kAllLeft, {}, Status::Ok(), {}});
  }
  return responses;
}

std::vector<int32_t> Coordinator::present() const {
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int32_t> Coordinator::Ranks(const Pending& pending, bool joined) const {
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if ((pending.joined[rank] != 0) == joined) ranks.push_back(rank);
  }
  return ranks;
}

void Coordinator::GiveUp(const std::string& name, const Pending& pending, const Status& why) {
  const std::vector<int32_t> waiting = Ranks(pending, true), missing = Ranks(pending, false);
  Status status = why;
  status.message = std::string(KindName(pending.first.kind)) + " '" + name + "': " + why.message + "; " +
                   RankList(waiting) + " waited for it, " + RankList(missing) + " did not join";
  errors_.push_back({Verdict::kError, {name}, status, waiting});
  for (int32_t rank : missing) {
    if (!left_[rank]) missed_[{rank, name}].push_back(status);
  }
}

void Coordinator::GiveUpStalled(TimePoint now) {
  next_check_ = now + ToDuration(std::min(0.25, comm_timeout_ / 8));
  for (auto it = pending_.begin(); it != pending_.end();) {
    const double waited = Seconds(now - it->second.since).count();
    if (waited < comm_timeout_) {
      ++it;
      continue;
    }
    std::ostringstream text;
    text << "not all ranks joined within " << comm_timeout_
         << " s (comm_timeout). Do all ranks run the same steps? If the others are only slow, raise it";
    GiveUp(it->first, it->second, Status::Error(HVD_STALLED, text.str(), Ranks(it->second, false)));
    it = pending_.erase(it);
  }
}

std::string Coordinator::Disagreement(const Pending& pending) const {
  for (const Property& property : kProperties) {
    if (!property.matters(pending.first)) continue;
    std::map<std::string, std::vector<int32_t>> values;
    std::vector<char> other(size_, 0);
    for (const auto& [rank, request] : pending.different) {
      values[property.text(request)].push_back(rank);
      other[rank] = 1;
    }
    for (int rank = 0; rank < size_; ++rank) {
      if (!other[rank]) values[property.text(pending.first)].push_back(rank);
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
