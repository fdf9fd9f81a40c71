#include "request_reader.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace spark_hvd {
namespace {

Status Invalid(const std::string& message) { return Status::Error(HVD_INVALID_ARGUMENT, message); }

bool MakesOutput(Kind kind) {
  return kind == Kind::kAllgather || kind == Kind::kAlltoall || kind == Kind::kReducescatter;
}

bool Reduces(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kReducescatter; }

Status ReadTensor(const std::string& who, const hvd_tensor& tensor, Entry* entry) {
  const int64_t element = ElementSize(tensor.dtype);
  if (element == 0) return Invalid(who + "dtype " + std::to_string(tensor.dtype) + " is unknown");
  if (tensor.device != -1) return Invalid(who + "only host memory (device -1) is served by this build");
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) return Invalid(who + "no shape given");
  int64_t bytes = element;
  bool empty = false;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    const int64_t extent = tensor.shape[i];
    if (extent < 0) return Invalid(who + "extent " + std::to_string(extent) + " is negative");
    if (extent == 0) empty = true;
    if (extent > 0 && bytes > std::numeric_limits<int64_t>::max() / extent) return Invalid(who + "too large");
    if (extent > 0) bytes *= extent;
    entry->request.shape.push_back(extent);
  }
  const bool needs_output = !MakesOutput(entry->request.kind);
  if (!empty && (tensor.input == nullptr || (needs_output && tensor.output == nullptr))) {
    return Invalid(who + "null pointer");
  }
  entry->request.dtype = tensor.dtype;
  entry->input = tensor.input;
  entry->output = needs_output ? tensor.output : nullptr;
  return Status::Ok();
}

Status CheckOp(const std::string& who, const Request& request) {
  if (!Reduces(request.kind)) return Status::Ok();
  const int32_t op = request.op, dtype = request.dtype;
  const std::string name = OpName(op);
  if (op < HVD_SUM || op > HVD_ADASUM) return Invalid(who + "op " + std::to_string(op) + " is unknown");
  const bool scaled = request.scaling.prescale != 1.0 || request.scaling.postscale != 1.0;
  if (dtype == HVD_BOOL && (op == HVD_AVERAGE || scaled)) {
    return Invalid(who + "bool has no " + (scaled ? "scale" : "average") + "; convert it to a number first");
  }
  if (op == HVD_ADASUM && !IsFloat(dtype)) {
    return Invalid(who + "adasum is for floats, found " + DtypeName(dtype) + "; use sum or average");
  }
  if (op == HVD_ADASUM && request.kind == Kind::kReducescatter) {
    return Invalid(who + "reducescatter has no adasum; use sum or average");
  }
  return Status::Ok();
}

Status ReadSplits(const std::string& who, const hvd_collective& collective, int32_t size, Request* request) {
  if (request->kind != Kind::kAlltoall) return Status::Ok();
  if (request->shape.empty()) return Invalid(who + "alltoall needs at least one dimension");
  const int64_t rows = request->rows();
  if (collective.splits == nullptr) {
    if (rows % size != 0) {
      return Invalid(who + std::to_string(rows) + " rows cannot be dealt evenly to " + std::to_string(size) +
                     " ranks; give splits");
    }
    request->splits.assign(size, rows / size);
    return Status::Ok();
  }
  if (collective.splits_count != size) {
    return Invalid(who + "expected one split for each of the " + std::to_string(size) + " ranks, found " +
                   std::to_string(collective.splits_count));
  }
  request->splits.assign(collective.splits, collective.splits + size);
  if (std::any_of(request->splits.begin(), request->splits.end(), [](int64_t split) { return split < 0; })) {
    return Invalid(who + "a split is negative");
  }
  const int64_t sum = std::accumulate(request->splits.begin(), request->splits.end(), int64_t{0});
  if (sum != rows) {
    return Invalid(who + "the splits make " + std::to_string(sum) + " rows, the tensor has " + std::to_string(rows));
  }
  return Status::Ok();
}

}  // namespace

Status ReadCollective(const hvd_collective* collective, const Members& members, std::vector<Entry>* entries) {
  if (collective == nullptr || collective->struct_size != sizeof(hvd_collective)) {
    return Invalid("hvd_collective of another version of the core");
  }
  if (collective->kind < 0 || collective->kind > HVD_JOIN) {
    return Invalid("collective " + std::to_string(collective->kind) + " is unknown");
  }
  const Kind kind = static_cast<Kind>(collective->kind);
  const bool has_data = kind != Kind::kBarrier && kind != Kind::kJoin;
  if (collective->count < 1 || collective->names == nullptr || (has_data && collective->tensors == nullptr) ||
      (!has_data && collective->count != 1)) {
    return Invalid(std::string(KindName(kind)) + ": no tensor or no name given");
  }
  const bool grouped = collective->count > 1;
  if (grouped && (collective->group == nullptr || *collective->group == '\0')) {
    return Invalid(std::string(KindName(kind)) + ": a group needs a name");
  }
  for (int32_t i = 0; i < collective->count; ++i) {
    const char* name = collective->names[i];
    if (name == nullptr || *name == '\0') return Invalid("a collective needs a name");
    const std::string who = std::string(KindName(kind)) + " '" + name + "': ";
    Entry entry;
    Request& request = entry.request;
    request.kind = kind;
    request.name = name;
    if (grouped) {
      request.group = collective->group;
      request.group_size = collective->count;
    }
    Status status;
    if (has_data) status = ReadTensor(who, collective->tensors[i], &entry);
    if (status.ok() && Reduces(kind)) {
      request.op = collective->op;
      request.scaling = {collective->prescale, collective->postscale, collective->op == HVD_AVERAGE};
      status = CheckOp(who, request);
    }
    if (status.ok() && kind == Kind::kBroadcast) {
      const auto place = std::find(members.ranks.begin(), members.ranks.end(), collective->root);
      if (place == members.ranks.end()) {
        return Invalid(who + "root " + std::to_string(collective->root) +
                       " is not a rank of the process set, which has " + RankList(members.ranks));
      }
      request.root = static_cast<int32_t>(place - members.ranks.begin());
    }
    if (status.ok()) status = ReadSplits(who, *collective, members.size(), &request);
    if (!status.ok()) return status;
    entries->push_back(std::move(entry));
  }
  return Status::Ok();
}

}  // namespace spark_hvd
