#include "process_set.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace spark_hvd {
namespace {

// A pause of this length between collectives begins a learned group: what comes after it need not wait for what came
// before, nor the other way round.
constexpr Clock::duration kPause = std::chrono::milliseconds(1);
// Work outside the foretold group that nobody waits for may be put off this long.
constexpr Clock::duration kPatience = std::chrono::milliseconds(50);

double AgeOf(const Entry& entry, TimePoint now) { return Seconds(now - entry.submitted).count(); }

}  // namespace

ProcessSet::ProcessSet(Members members, const SetOptions& options, Means means)
    : members_(std::move(members)),
      options_(options),
      means_(std::move(means)),
      executor_(members_, &queue_, means_.handles, means_.timeline),
      cache_(options.cache_capacity) {
  if (members_.position == 0) coordinator_ = std::make_unique<Coordinator>(members_.ranks, options.coordinator);
}

void ProcessSet::Equip(std::vector<std::unique_ptr<Transport>> transports, std::unique_ptr<Consent> consent) {
  executor_.SetTransports(std::move(transports));
  consent_ = std::move(consent);
}

Status ProcessSet::Turn(TimePoint now, bool* moved) {
  if (queue_.has_new()) {
    Admit();
    *moved = true;
  }
  Status status;
  if (executor_.busy()) {
    status = executor_.Advance(now, moved);
    if (!status.ok()) {
      status.message = executor_.What() + ": " + status.message;
      return status;
    }
    busy_at_ = now;
  }
  if (!executor_.busy()) status = Begin(now, moved);
  if (status.ok() && !predicting_) status = Negotiate(now, moved);
  return status;
}

void ProcessSet::Admit() {
  for (Entry& entry : queue_.TakeNew()) {
    if (entry.request.kind == Kind::kJoin) joined_ = true;
    if (predicting_) {
      const ResponseCache::Item* item = cache_.Find(entry.request.name);
      const bool known = item != nullptr && item->request.SameAs(entry.request);
      if (known && InGroup(item)) --missing_;
      unforeseen_ = unforeseen_ || !known;
    } else {
      unsent_.push_back(entry.request.name);
    }
    std::string name = entry.request.name;
    pending_.emplace(std::move(name), std::move(entry));
  }
  next_look_ = {};
}

Status ProcessSet::Begin(TimePoint now, bool* moved) {
  if (!decided_.empty()) {
    Response response = std::move(decided_.front());
    decided_.pop_front();
    *moved = true;
    return Follow(std::move(response), now);
  }
  return predicting_ ? Confirm(now, moved) : Status::Ok();
}

Status ProcessSet::Negotiate(TimePoint now, bool* moved) {
  Status status;
  if (!unsent_.empty()) {
    status = SendUnsent(now);
    *moved = true;
  }
  if (status.ok() && leaving_ && !left_) {
    left_ = *moved = true;
    if (coordinator_) {
      coordinator_->Leave(0);
    } else {
      status = means_.send(members_.ranks[0], PackHeader(HeaderOf(MessageType::kLeave)));
    }
  }
  return status.ok() && coordinator_ ? Decide(now, moved) : status;
}

Status ProcessSet::SendUnsent(TimePoint now) {
  std::vector<Request> requests;
  for (const std::string& name : std::exchange(unsent_, {})) {
    const auto found = pending_.find(name);
    if (found == pending_.end()) continue;
    requests.push_back(found->second.request);
    requests.back().age = AgeOf(found->second, now);
  }
  const std::string boundary = std::exchange(boundary_, {});
  if (!coordinator_) {
    ++means_.counters->messages;
    return means_.send(members_.ranks[0], PackRequests(HeaderOf(MessageType::kRequests), requests, boundary));
  }
  if (!boundary.empty()) coordinator_->AddBoundary(boundary);
  for (Request& request : requests) coordinator_->Add(0, std::move(request), now);
  return Status::Ok();
}

Status ProcessSet::Decide(TimePoint now, bool* moved) {
  std::vector<Response> responses = coordinator_->Decide(now);
  for (const std::string& report : coordinator_->TakeReports()) (*means_.log)(LogLevel::kWarning, report);
  if (responses.empty()) return Status::Ok();
  *moved = true;
  if (decided_.empty() && !executor_.busy() && now - busy_at_ > kPause) {
    const auto first = std::find_if(responses.begin(), responses.end(),
                                    [](const Response& response) { return response.verdict == Verdict::kExecute; });
    if (first != responses.end()) {
      // Applied after it was learned, that is, from its next time on.
      Response boundary;
      boundary.verdict = Verdict::kBoundary;
      boundary.names = {first->requests.front().name};
      responses.insert(first + 1, std::move(boundary));
    }
  }
  busy_at_ = now;
  if (members_.size() > 1) {
    const Bytes packed = PackResponses(HeaderOf(MessageType::kResponses), responses);
    for (int32_t member = 1; member < members_.size(); ++member) {
      ++means_.counters->messages;
      Status status = means_.send(members_.ranks[member], packed);
      if (!status.ok()) return status;
    }
  }
  for (Response& response : responses) decided_.push_back(std::move(response));
  return Status::Ok();
}

Status ProcessSet::Receive(int32_t rank, const Header& header, Bytes bytes) {
  if (header.type == MessageType::kLeave) {
    const auto place = std::find(members_.ranks.begin(), members_.ranks.end(), rank);
    if (coordinator_ && place != members_.ranks.end()) {
      coordinator_->Leave(static_cast<int32_t>(place - members_.ranks.begin()));
      return Status::Ok();
    }
  }
  const int32_t ahead = header.round - round_;
  if (ahead > 0) early_.emplace_back(rank, std::move(bytes));
  return ahead == 0 ? Open(rank, header, bytes) : Status::Ok();
}

Status ProcessSet::Open(int32_t rank, const Header& header, const Bytes& bytes) {
  const auto place = std::find(members_.ranks.begin(), members_.ranks.end(), rank);
  const int32_t member = static_cast<int32_t>(place - members_.ranks.begin());
  const bool is_member = place != members_.ranks.end();
  if (header.type == MessageType::kAsk && is_member) return UnpackAsk(bytes, &asked_);
  if (header.type == MessageType::kResponses && is_member && member == 0 && !coordinator_) {
    std::vector<Response> responses;
    Status status = UnpackResponses(bytes, &responses);
    if (!status.ok()) return status;
    for (Response& response : responses) decided_.push_back(std::move(response));
    return status;
  }
  if (header.type == MessageType::kRequests && is_member && coordinator_) {
    std::vector<Request> requests;
    std::string boundary;
    Status status = UnpackRequests(bytes, &requests, &boundary);
    if (!status.ok()) return status;
    if (!boundary.empty()) coordinator_->AddBoundary(boundary);
    const TimePoint now = Clock::now();
    for (Request& request : requests) coordinator_->Add(member, std::move(request), now);
    return status;
  }
  return Status::Error(HVD_INTERNAL, RankList({rank}) + " sent a message that is not its to send", {rank});
}

Status ProcessSet::Follow(Response response, TimePoint now) {
  switch (response.verdict) {
    case Verdict::kExecute:
      return Execute(std::move(response), now);
    case Verdict::kError:
    case Verdict::kJoined:
    case Verdict::kExchanged:
      End(response);
      break;
    case Verdict::kAllLeft:
      all_left_ = true;
      break;
    case Verdict::kBoundary:
      for (const std::string& name : response.names) cache_.AddBoundary(name);
      break;
    case Verdict::kPredict:
      if (consent_) Foretell();
      if (predicting_) {
        ++round_;
        unsent_.clear();
      }
      if (coordinator_) coordinator_->Resume(predicting_);
      break;
  }
  return Status::Ok();
}

Status ProcessSet::Execute(Response response, TimePoint now) {
  Job job;
  for (const Request& request : response.requests) {
    Entry entry;
    if (!Take(request.name, &entry)) {
      if (!joined_) {
        return Status::Error(HVD_INTERNAL, RankList({members_.ranks[0]}) + " ordered '" + request.name +
                                               "', which is not in flight here");
      }
      entry.request.name = request.name;
    }
    job.entries.push_back(std::move(entry));
  }
  job.requests = std::move(response.requests);
  job.sizes = std::move(response.sizes);
  ++means_.counters->negotiated;
  Run(std::move(job), now);
  return Status::Ok();
}

void ProcessSet::Run(Job job, TimePoint now) {
  for (const Request& request : job.requests) cache_.Learn(request);
  means_.counters->tensors += static_cast<int64_t>(job.requests.size());
  ++sequence_;
  if (job.requests.front().kind == Kind::kBarrier) {
    executor_.Finish(std::move(job.entries), Status::Ok());  // that all have come is all that a barrier asks
  } else {
    executor_.Start(std::move(job), &sequence_, now);
  }
}

void ProcessSet::End(const Response& response) {
  if (response.verdict == Verdict::kError && !response.Concerns(members_.position)) return;
  std::vector<std::string> names = response.names;
  for (const Request& request : response.requests) names.push_back(request.name);
  for (const std::string& name : names) {
    Entry entry;
    if (!Take(name, &entry)) continue;
    if (entry.request.kind == Kind::kJoin) joined_ = false;
    if (response.verdict == Verdict::kError) {
      executor_.Finish({std::move(entry)}, response.status);
      continue;
    }
    Output output;
    output.value = response.value;
    if (response.verdict == Verdict::kExchanged) {
      int64_t bytes = 0;
      for (const std::string& payload : response.payloads) bytes += static_cast<int64_t>(payload.size());
      output.Reserve(bytes);
      char* to = output.memory.get();
      for (const std::string& payload : response.payloads) {
        std::memcpy(to, payload.data(), payload.size());
        to += payload.size();
        output.splits.push_back(static_cast<int64_t>(payload.size()));
      }
    }
    queue_.Remove(name);
    means_.handles->Finish(entry.handle, entry.part, Status::Ok(), std::move(output));
  }
}

Status ProcessSet::StartNegotiating() {
  predicting_ = voted_ = unforeseen_ = false;
  ++round_;
  group_.clear();
  ++generation_;
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, entry] : pending_) order.emplace_back(entry.number, name);
  std::sort(order.begin(), order.end());
  unsent_.clear();
  for (auto& item : order) unsent_.push_back(std::move(item.second));
  // What others said in this round already.
  std::deque<std::pair<int32_t, Bytes>> early = std::exchange(early_, {});
  Status status;
  for (auto& [rank, bytes] : early) {
    Header header;
    if (status.ok()) status = ReadHeader(bytes, &header);
    if (status.ok()) status = Receive(rank, header, std::move(bytes));
  }
  return status;
}

void ProcessSet::Foretell() {
  group_ = cache_.Predict(options_.coordinator.fusion_threshold);
  ++generation_;
  missing_ = 0;
  for (ResponseCache::Item* item : group_) {
    item->mark = generation_;
    const auto found = pending_.find(item->request.name);
    if (found == pending_.end() || !found->second.request.SameAs(item->request)) ++missing_;
  }
  if (!predicting_) {
    unforeseen_ = false;
    for (const auto& [name, entry] : pending_) {
      const ResponseCache::Item* item = cache_.Find(name);
      unforeseen_ = unforeseen_ || item == nullptr || !item->request.SameAs(entry.request);
    }
  }
  predicting_ = !group_.empty();
  next_look_ = {};
}

Status ProcessSet::Confirm(TimePoint now, bool* moved) {
  const int64_t number = sequence_ + 1;
  Answer answer = Answer::kOpen;
  Status status;
  if (!voted_) {
    const bool ready = missing_ == 0;
    if (!ready) status = consent_->Ask(number, &answer);
    if (!status.ok()) return status;
    if (!ready && answer != Answer::kRefused && !ShouldRefuse(now)) return status;
    status = consent_->Vote(number, ready);
    if (!status.ok()) return status;
    voted_ = *moved = true;
    voted_at_ = now;
    next_ask_ = {};
  }
  status = consent_->Ask(number, &answer);
  if (!status.ok()) return status;
  switch (answer) {
    case Answer::kOpen:
      return now - voted_at_ > std::chrono::milliseconds(100) ? Ask(now) : status;
    case Answer::kAllReady:
      *moved = true;
      voted_ = false;
      return ExecuteForetold(now);
    case Answer::kRefused:
      *moved = true;
      sequence_ = number;
      ++means_.counters->refused;
      means_.timeline->Mark("refused", now);
      return StartNegotiating();
  }
  return status;
}

bool ProcessSet::ShouldRefuse(TimePoint now) {
  if (leaving_ || asked_ == sequence_ + 1) return true;
  if (pending_.empty()) return false;
  if (unforeseen_) return true;
  if (now < next_look_) return false;
  next_look_ = now + std::chrono::microseconds(50);
  bool refuse = false;
  for (const auto& [name, entry] : pending_) {
    const bool in_group = InGroup(cache_.Find(name));
    if (means_.handles->IsWaited(entry.handle)) {
      refuse = true;
      if (!in_group) continue;
      // Whoever waits for a part of the group before it is complete will do so each time: the group is too long.
      const auto lacking = std::find_if(group_.begin(), group_.end(), [this](const ResponseCache::Item* item) {
        return pending_.find(item->request.name) == pending_.end();
      });
      if (lacking != group_.end()) boundary_ = (*lacking)->request.name;
    }
    refuse = refuse || (!in_group && now - entry.submitted > kPatience);
  }
  return refuse;
}

Status ProcessSet::Ask(TimePoint now) {
  const CoordinatorOptions& limits = options_.coordinator;
  double wait = std::min(limits.comm_timeout / 4, 10.0);
  if (limits.stall_check > 0) wait = std::min(wait, limits.stall_check / 4);
  if (next_ask_ == TimePoint{}) next_ask_ = voted_at_ + ToDuration(wait);
  if (now < next_ask_) return Status::Ok();
  next_ask_ = now + ToDuration(wait);
  const Bytes packed = PackAsk(HeaderOf(MessageType::kAsk), sequence_ + 1);
  for (int32_t member = 0; member < members_.size(); ++member) {
    if (member == members_.position) continue;
    ++means_.counters->messages;
    Status status = means_.send(members_.ranks[member], packed);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status ProcessSet::ExecuteForetold(TimePoint now) {
  Job job;
  for (const ResponseCache::Item* item : group_) {
    Entry entry;
    if (!Take(item->request.name, &entry)) return Status::Error(HVD_INTERNAL, "a foretold tensor is not in flight");
    job.requests.push_back(item->request);
    job.entries.push_back(std::move(entry));
  }
  ++means_.counters->predicted;
  Run(std::move(job), now);
  Foretell();
  return predicting_ ? Status::Ok() : StartNegotiating();
}

bool ProcessSet::Take(const std::string& name, Entry* entry) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return false;
  *entry = std::move(found->second);
  pending_.erase(found);
  return true;
}

Status ProcessSet::CheckDeadlines(TimePoint now) const {
  const double limit = options_.coordinator.comm_timeout;
  const auto failed = [](const std::string& what, double seconds, const std::vector<int32_t>& ranks) {
    std::ostringstream text;
    text << what << ": nothing came from " << RankList(ranks) << " for " << seconds << " s; dead or stopped?";
    return Status::Error(HVD_PEER_FAILED, text.str(), ranks);
  };
  if (executor_.busy() && Seconds(now - executor_.moved_at()).count() > limit) {
    return failed(executor_.What() + ", in the middle of it", limit, executor_.Missing());
  }
  // The coordinator ends what is late with an error. That nothing comes at all, well after that time, is about itself,
  // or about a rank that does not even refuse.
  const double patience = limit * 1.25 + std::min(5.0, limit);
  for (const auto& [name, entry] : pending_) {
    if (AgeOf(entry, now) < patience || entry.request.kind == Kind::kJoin || executor_.busy()) continue;
    const std::string what = std::string(KindName(entry.request.kind)) + " '" + name + "'";
    if (predicting_ && voted_) {
      std::vector<int32_t> ranks;
      for (int32_t member : consent_->Missing()) ranks.push_back(members_.ranks[member]);
      return failed(what, patience, ranks);
    }
    if (!predicting_ && !coordinator_)
      return failed(what + ", which its coordinator has not answered", patience, {members_.ranks[0]});
  }
  return Status::Ok();
}

std::vector<int32_t> ProcessSet::present() const {
  return coordinator_ ? coordinator_->present() : std::vector<int32_t>{members_.ranks[0]};
}

void ProcessSet::Fail(const Status& status) {
  queue_.Close(status);
  Admit();
  if (executor_.busy()) executor_.Fail(status);
  std::vector<Entry> entries;
  for (auto& item : pending_) entries.push_back(std::move(item.second));
  pending_.clear();
  executor_.Finish(std::move(entries), status);
}

}  // namespace spark_hvd
