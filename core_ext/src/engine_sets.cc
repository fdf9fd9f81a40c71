// The process sets of an engine: made, equipped with transports, removed. Runs on callers' threads; all ranks of the
// world come here together, for each change.
#include <algorithm>
#include <utility>

#include "engine.h"

namespace spark_hvd {

std::shared_ptr<ProcessSet> Engine::MakeSet(Members members) {
  ProcessSet::Means means;
  means.send = [this](int32_t rank, Bytes bytes) {
    Status status = control_->Send(rank, std::move(bytes));
    bell().RingPeer(rank);
    return status;
  };
  means.handles = &handles_;
  means.timeline = &timeline_;
  means.counters = &counters_;
  means.log = &log_;
  const int32_t id = members.set;
  auto set = std::make_shared<ProcessSet>(std::move(members), config_.set, std::move(means));
  WithProgress([&] {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    sets_[id] = set;
    turning_.push_back(set);
    if (ended_) set->Fail(Status::Error(HVD_SHUT_DOWN, "spark_hvd was shut down on this rank"));
    std::vector<std::pair<int, Bytes>> orphans = std::exchange(orphans_, {});
    for (auto& [rank, bytes] : orphans) {
      Header header;
      if (ReadHeader(bytes, &header).ok() && header.set == id) {
        (void)set->Receive(rank, header, std::move(bytes));
      } else {
        orphans_.emplace_back(rank, std::move(bytes));
      }
    }
  });
  return set;
}

Status Engine::Equip(ProcessSet* set) {
  const Members& members = set->members();
  int round = 0;
  const Exchange exchange = [&](const std::string& mine, std::vector<std::string>* all) {
    return ExchangeIn(members.set, "hvd.equip." + std::to_string(round++), mine, all);
  };
  std::vector<std::unique_ptr<Transport>> transports;
  std::unique_ptr<Consent> consent;
  for (const auto& provider : providers_) {
    std::unique_ptr<Transport> transport;
    Status status = provider->Open(members, exchange, &transport);
    if (!status.ok()) return status;
    if (!transport) continue;
    transports.push_back(std::move(transport));
    if (!consent) consent = provider->OpenConsent(members);
  }
  if (transports.empty()) return Status::Error(HVD_UNAVAILABLE, "no transport serves this process set");
  WithProgress([&] { set->Equip(std::move(transports), std::move(consent)); });
  return Status::Ok();
}

Status Engine::ExchangeIn(int32_t set, const std::string& name, const std::string& mine,
                          std::vector<std::string>* all) {
  std::vector<Entry> entries(1);
  entries[0].request.kind = Kind::kExchange;
  entries[0].request.name = name;
  entries[0].request.payload = mine;
  int64_t handle = 0;
  Outcome outcome = Run(set, std::move(entries), -1, &handle);
  if (!outcome.status.ok()) return outcome.status;
  const Output& output = outcome.outputs.front();
  all->clear();
  int64_t at = 0;
  for (int64_t bytes : output.splits) {
    all->emplace_back(output.memory.get() + at, static_cast<size_t>(bytes));
    at += bytes;
  }
  return Status::Ok();
}

Status Engine::AddSet(std::vector<int32_t> ranks, int32_t* set) {
  std::lock_guard<std::mutex> one_at_a_time(set_up_);
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= size_ ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Status::Error(HVD_INVALID_ARGUMENT, "process set of " + RankList(ranks) +
                                                   ": expected different ranks, at least one, from 0 to " +
                                                   std::to_string(size_ - 1));
  }
  std::vector<std::string> all;
  const std::string mine = RankList(ranks);
  Status status = ExchangeIn(0, "hvd.process_set.add", mine, &all);
  if (!status.ok()) return status;
  for (int rank = 0; rank < size_; ++rank) {
    if (all[rank] == mine) continue;
    return Status::Error(HVD_MISMATCH, "add_process_set: rank " + std::to_string(rank_) + " gives " + mine + ", rank " +
                                           std::to_string(rank) + " gives " + all[rank] +
                                           "; all ranks must add the same sets in the same order");
  }
  Members members;
  members.set = next_set_++;
  *set = members.set;
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return status;
  members.position = static_cast<int32_t>(place - ranks.begin());
  members.ranks = std::move(ranks);
  return Equip(MakeSet(std::move(members)).get());
}

Status Engine::RemoveSet(int32_t set) {
  std::lock_guard<std::mutex> one_at_a_time(set_up_);
  if (set <= 0 || set >= next_set_) {
    return Status::Error(HVD_INVALID_ARGUMENT, set == 0 ? "the process set of all ranks cannot be removed"
                                                        : "process set " + std::to_string(set) + " does not exist");
  }
  const std::shared_ptr<ProcessSet> mine = FindSet(set);
  const std::string number = std::to_string(set) + ".";
  const bool busy = mine && mine->queue().in_flight() > 0;
  std::vector<std::string> all;
  Status status = ExchangeIn(0, "hvd.process_set.remove", number + (busy ? "busy" : "free"), &all);
  if (!status.ok()) return status;
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (all[rank].compare(0, number.size(), number) != 0) {
      return Status::Error(HVD_MISMATCH, "remove_process_set: rank " + std::to_string(rank_) + " gives " + number +
                                             ", rank " + std::to_string(rank) + " another one: " + all[rank]);
    }
    if (all[rank] == number + "busy") ranks.push_back(rank);
  }
  if (!ranks.empty()) {
    return Status::Error(HVD_INVALID_ARGUMENT, "process set " + std::to_string(set) +
                                                   " cannot be removed: collectives are in flight on " +
                                                   RankList(ranks) + "; wait for them first");
  }
  if (!mine) return status;
  mine->queue().Close(Status::Error(HVD_INVALID_ARGUMENT, "process set " + std::to_string(set) + " was removed"));
  WithProgress([&] {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    sets_.erase(set);
    turning_.erase(std::find(turning_.begin(), turning_.end(), mine));
  });
  return status;
}

std::shared_ptr<ProcessSet> Engine::FindSet(int32_t set) const {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : found->second;
}

Status Engine::TransportOf(int32_t set, const Request& request, const void* data, std::string* name) {
  const std::shared_ptr<ProcessSet> found = FindSet(set);
  if (!found) {
    return Status::Error(HVD_INVALID_ARGUMENT,
                         "process set " + std::to_string(set) + " does not exist, or this rank is not in it");
  }
  Collective collective = Executor::Describe(request);
  collective.spans = {{data, const_cast<void*>(data), request.count()}};
  WithProgress([&] { *name = found->executor().Choose(collective).name(); });
  return Status::Ok();
}

}  // namespace spark_hvd
