#include "executor.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "adasum.h"
#include "neutral.h"

namespace spark_hvd {

const Transport& Executor::Choose(const Collective& collective) const {
  for (const auto& transport : transports_) {
    if (transport->Serves(collective)) return *transport;
  }
  return *transports_.back();
}

Collective Executor::Describe(const Request& request) {
  Collective collective;
  collective.kind = request.kind;
  collective.dtype = request.dtype;
  collective.op = request.op;
  collective.scaling = request.scaling;
  collective.root = request.root;
  return collective;
}

void Executor::Start(Job job, int64_t* sequence, TimePoint now) {
  job_ = std::move(job);
  collective_ = Describe(job_.requests.front());
  collective_.sequence = *sequence;
  outputs_.clear();
  outputs_.resize(job_.requests.size());
  Prepare();
  const auto find = [this](const Collective& wanted) { return const_cast<Transport*>(&Choose(wanted)); };
  if (collective_.op == HVD_ADASUM && collective_.kind == Kind::kAllreduce) {
    operation_ = std::make_unique<Adasum>(members_, collective_, find);
    *sequence += Adasum::Steps(members_.size()) - 1;
  } else {
    operation_ = find(collective_)->Start(collective_);
  }
  begun_ = moved_at_ = now;
}

Status Executor::Advance(TimePoint now, bool* moved) {
  bool here = false, done = false;
  Status status = operation_->Advance(&here, &done);
  if (!status.ok()) return status;
  if (here || done) {
    moved_at_ = now;
    *moved = true;
  }
  if (done) FinishJob();
  return status;
}

void Executor::FinishJob() {
  operation_.reset();
  Job job = std::exchange(job_, {});
  timeline_->Add(job.entries, KindName(collective_.kind), begun_, moved_at_);
  for (size_t i = 0; i < job.entries.size(); ++i) {
    Entry& entry = job.entries[i];
    if (entry.handle == 0) continue;
    queue_->Remove(entry.request.name);
    handles_->Finish(entry.handle, entry.part, Status::Ok(), std::move(outputs_[i]));
  }
}

void Executor::Finish(std::vector<Entry> entries, const Status& status) {
  for (const Entry& entry : entries) {
    if (entry.handle == 0) continue;
    queue_->Remove(entry.request.name);
    Status named = status;
    const std::string who = std::string(KindName(entry.request.kind)) + " '" + entry.request.name + "'";
    // What the coordinator says begins so already.
    if (!named.ok() && named.message.compare(0, who.size(), who) != 0) named.message = who + ": " + named.message;
    handles_->Finish(entry.handle, entry.part, named, {});
  }
}

void Executor::Fail(const Status& status) {
  operation_.reset();
  Finish(std::exchange(job_, {}).entries, status);
}

std::vector<int32_t> Executor::Missing() const {
  std::vector<int32_t> ranks;
  if (operation_) {
    for (int32_t member : operation_->Missing()) ranks.push_back(members_.ranks[member]);
  }
  return ranks;
}

std::string Executor::What() const {
  const Request& first = job_.requests.front();
  std::string what = std::string(KindName(first.kind)) + " '" + first.name + "'";
  if (job_.requests.size() > 1) what += " and " + std::to_string(job_.requests.size() - 1) + " more";
  return what;
}

void Executor::Prepare() {
  switch (collective_.kind) {
    case Kind::kAllreduce:
      return PrepareReduction();
    case Kind::kBroadcast:
      return PrepareBroadcast();
    case Kind::kAllgather:
      return PrepareAllgather();
    case Kind::kAlltoall:
      return PrepareAlltoall();
    case Kind::kReducescatter:
      return PrepareReducescatter();
    default:
      return;
  }
}

void Executor::PrepareReduction() {
  int64_t absent = 0;
  for (size_t i = 0; i < job_.entries.size(); ++i) {
    if (job_.entries[i].handle == 0) absent += job_.requests[i].count();
  }
  char* neutral = nullptr;
  if (absent > 0) {
    neutral = neutral_.Reserve(absent * ElementSize(collective_.dtype));
    FillNeutral(neutral, absent, collective_.dtype, collective_.op);
  }
  for (size_t i = 0; i < job_.entries.size(); ++i) {
    const Entry& entry = job_.entries[i];
    const int64_t count = job_.requests[i].count();
    if (entry.handle != 0) {
      collective_.spans.push_back({entry.input, entry.output, count});
    } else {
      collective_.spans.push_back({neutral, neutral, count});
      neutral += count * ElementSize(collective_.dtype);
    }
  }
}

void Executor::PrepareBroadcast() {
  const Entry& entry = job_.entries.front();
  const int64_t count = job_.requests.front().count();
  char* nowhere = entry.handle == 0 ? neutral_.Reserve(count * ElementSize(collective_.dtype)) : nullptr;
  collective_.spans.push_back(
      {entry.handle == 0 ? nowhere : entry.input, entry.handle == 0 ? nowhere : entry.output, count});
}

void Executor::PrepareAllgather() {
  const Request& request = job_.requests.front();
  const int64_t row = request.row_count();
  Output& output = outputs_.front();
  for (int64_t rows : job_.sizes) {
    collective_.receive_counts.push_back(rows * row);
    output.rows += rows;
  }
  output.Reserve(output.rows * row * ElementSize(request.dtype));
  collective_.spans.push_back({job_.entries.front().input, output.memory.get(), output.rows * row});
}

void Executor::PrepareAlltoall() {
  const Request& request = job_.requests.front();
  const int64_t row = request.row_count();
  const size_t size = static_cast<size_t>(members_.size()), me = static_cast<size_t>(members_.position);
  Output& output = outputs_.front();
  for (size_t peer = 0; peer < size; ++peer) {
    const int64_t received = job_.sizes[peer * size + me];
    collective_.send_counts.push_back(job_.sizes[me * size + peer] * row);
    collective_.receive_counts.push_back(received * row);
    output.splits.push_back(received);
    output.rows += received;
  }
  output.Reserve(output.rows * row * ElementSize(request.dtype));
  const int64_t sent = std::accumulate(collective_.send_counts.begin(), collective_.send_counts.end(), int64_t{0});
  collective_.spans.push_back({job_.entries.front().input, output.memory.get(), sent});
}

void Executor::PrepareReducescatter() {
  const Request& request = job_.requests.front();
  const Entry& entry = job_.entries.front();
  const int64_t row = request.row_count(), size = members_.size(), count = request.count();
  // The first ranks get one row more when the rows cannot be dealt evenly.
  for (int64_t member = 0; member < size; ++member) {
    collective_.receive_counts.push_back((request.rows() / size + (member < request.rows() % size ? 1 : 0)) * row);
  }
  Output& output = outputs_.front();
  output.rows = collective_.receive_counts[members_.position] / std::max<int64_t>(row, 1);
  output.Reserve(collective_.receive_counts[members_.position] * ElementSize(request.dtype));
  const void* input = entry.input;
  if (entry.handle == 0 && count > 0) {
    char* neutral = neutral_.Reserve(count * ElementSize(request.dtype));
    FillNeutral(neutral, count, request.dtype, request.op);
    input = neutral;
  }
  collective_.spans.push_back({input, output.memory.get(), count});
}

}  // namespace spark_hvd
