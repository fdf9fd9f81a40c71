#include "executor.h"

#include <cstring>

namespace spark_hvd {

Status Executor::Execute(const Response& response, Patience* patience) {
  std::vector<Entry> entries;
  for (const std::string& name : response.names) {
    Entry entry;
    if (queue_->Find(name, &entry)) {
      entries.push_back(std::move(entry));
    } else if (response.verdict == Verdict::kExecute) {
      return Status::Error(HVD_INTERNAL, "rank 0 ordered '" + name + "', which is not in flight here");
    }
  }
  if (response.verdict == Verdict::kError) {
    if (response.Concerns(rank_)) Finish(entries, response.status);
    return Status::Ok();
  }
  Status status = Run(entries, patience);
  if (!status.ok()) {
    const Request& first = entries.front().request;
    std::string what = std::string(KindName(first.kind)) + " '" + first.name + "'";
    if (entries.size() > 1) what += " and " + std::to_string(entries.size() - 1) + " more";
    status.message = what + ": " + status.message;
    return status;
  }
  Finish(entries, status);
  return status;
}

void Executor::Finish(const std::vector<Entry>& entries, const Status& status) {
  std::vector<int64_t> handles;
  for (const Entry& entry : entries) handles.push_back(entry.handle);
  queue_->Remove(entries);
  handles_->Finish(handles, status);
}

Status Executor::Run(const std::vector<Entry>& entries, Patience* patience) {
  const Entry& first = entries.front();
  switch (first.request.kind) {
    case Kind::kAllreduce:
      return Allreduce(entries, patience);
    case Kind::kBroadcast: {
      const int64_t bytes = first.request.bytes();
      if (rank_ == first.request.root && first.output != first.input && bytes > 0) {
        std::memcpy(first.output, first.input, static_cast<size_t>(bytes));
      }
      return transport_->Broadcast(first.output, bytes, first.request.root, patience);
    }
    case Kind::kBarrier:
      return Status::Ok();  // that all have joined is all that a barrier asks
    default:
      break;
  }
  return Status::Error(HVD_INTERNAL, "unknown collective");
}

Status Executor::Allreduce(const std::vector<Entry>& entries, Patience* patience) {
  const Request& request = entries.front().request;
  Reduction reduction;
  reduction.dtype = request.dtype;
  reduction.scaling = request.scaling;
  if (entries.size() == 1) {
    reduction.input = entries.front().input;
    reduction.output = entries.front().output;
    reduction.count = request.count();
    return transport_->Allreduce(reduction, patience);
  }
  for (const Entry& entry : entries) reduction.count += entry.request.count();
  char* buffer = fused_.Reserve(reduction.count * ElementSize(request.dtype));
  PackInputs(entries, buffer);
  reduction.input = reduction.output = buffer;
  Status status = transport_->Allreduce(reduction, patience);
  if (status.ok()) UnpackOutputs(entries, buffer);
  return status;
}

}  // namespace spark_hvd
