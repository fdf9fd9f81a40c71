// The C ABI: checks arguments, keeps the last error of each thread, lets no exception out.
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine.h"
#include "spark_hvd/core.h"
#include "transport/alone/alone.h"
#include "transport/direct/direct_transport.h"
#include "transport/link_control_plane.h"
#include "transport/mpi/mpi_link.h"

using spark_hvd::Engine;
using spark_hvd::Entry;
using spark_hvd::Kind;
using spark_hvd::Status;

struct hvd_context {
  std::shared_ptr<Engine> engine;
  int32_t local_rank, local_size, cross_rank, cross_size;
};

namespace {

thread_local Status last_error;

int32_t Return(Status status) {
  last_error = std::move(status);
  return last_error.code;
}

Status Invalid(const std::string& message) { return Status::Error(HVD_INVALID_ARGUMENT, message); }

template <typename F>
int32_t Guard(F f) {
  try {
    return Return(f());
  } catch (const std::bad_alloc&) {
    return Return(Status::Error(HVD_INTERNAL, "out of memory"));
  } catch (const std::exception& e) {
    return Return(Status::Error(HVD_INTERNAL, e.what()));
  }
}

Status Create(const hvd_config& config, hvd_context** out) {
  if (config.struct_size != sizeof(hvd_config)) return Invalid("hvd_config of another version of the core");
  if (!(config.comm_timeout > 0)) return Invalid("comm_timeout: expected seconds above 0");
  if (config.fusion_threshold < 0) return Invalid("fusion_threshold: expected bytes, 0 or more");
  std::unique_ptr<spark_hvd::ControlPlane> control;
  std::unique_ptr<spark_hvd::Transport> transport;
  if (config.transport_module == nullptr) {
    control = std::make_unique<spark_hvd::AloneControlPlane>();
    transport = std::make_unique<spark_hvd::AloneTransport>();
  } else {
    std::shared_ptr<spark_hvd::Link> link;
    Status status = spark_hvd::MpiLink::Open(config.transport_module, config.communicator, config.comm_timeout, &link);
    if (!status.ok()) return status;
    control = std::make_unique<spark_hvd::LinkControlPlane>(link);
    transport = std::make_unique<spark_hvd::DirectTransport>(link);
  }
  const auto differs = [](const char* what, int32_t expected, int found) {
    return Invalid(std::string("the launcher said ") + what + " " + std::to_string(expected) + ", MPI says " +
                   std::to_string(found) + "; was the program started by two launchers?");
  };
  if (config.expected_size > 0 && config.expected_size != control->size()) {
    return differs("size", config.expected_size, control->size());
  }
  if (config.expected_rank >= 0 && config.expected_rank != control->rank()) {
    return differs("rank", config.expected_rank, control->rank());
  }
  spark_hvd::EngineConfig engine;
  engine.fusion_threshold = config.fusion_threshold;
  engine.comm_timeout = config.comm_timeout;
  engine.log_level = config.log_level;
  auto context = std::make_unique<hvd_context>();
  context->local_rank = config.local_rank;
  context->local_size = config.local_size;
  context->cross_rank = config.cross_rank;
  context->cross_size = config.cross_size;
  context->engine = Engine::Start(engine, std::move(control), std::move(transport));
  *out = context.release();
  return Status::Ok();
}

Status ReadTensor(const char* name, const hvd_tensor* tensor, Entry* entry) {
  if (name == nullptr || *name == '\0') return Invalid("a collective needs a name");
  const std::string who = std::string("tensor '") + name + "': ";
  if (tensor == nullptr) return Invalid(who + "no tensor given");
  const int64_t element = spark_hvd::ElementSize(tensor->dtype);
  if (element == 0) return Invalid(who + "dtype " + std::to_string(tensor->dtype) + " is unknown");
  if (tensor->device != -1) return Invalid(who + "only host memory (device -1) is served by this build");
  if (tensor->ndim < 0 || (tensor->ndim > 0 && tensor->shape == nullptr)) return Invalid(who + "no shape given");
  int64_t bytes = element;
  bool empty = false;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    const int64_t extent = tensor->shape[i];
    if (extent < 0) return Invalid(who + "extent " + std::to_string(extent) + " is negative");
    if (extent == 0) empty = true;
    if (extent > 0 && bytes > std::numeric_limits<int64_t>::max() / extent) return Invalid(who + "too large");
    if (extent > 0) bytes *= extent;
    entry->request.shape.push_back(extent);
  }
  if (!empty && (tensor->input == nullptr || tensor->output == nullptr)) return Invalid(who + "null pointer");
  entry->request.name = name;
  entry->request.dtype = tensor->dtype;
  entry->input = tensor->input;
  entry->output = tensor->output;
  return Status::Ok();
}

}  // namespace

extern "C" {

int32_t hvd_abi_version(void) { return HVD_ABI_VERSION; }
const char* hvd_version(void) { return SPARK_HVD_VERSION; }
const char* hvd_last_error(void) { return last_error.message.c_str(); }

int32_t hvd_last_failed_ranks(int32_t* ranks, int32_t capacity) {
  const int32_t count = static_cast<int32_t>(last_error.ranks.size());
  for (int32_t i = 0; i < count && i < capacity; ++i) ranks[i] = last_error.ranks[static_cast<size_t>(i)];
  return count;
}

int32_t hvd_create(const hvd_config* config, hvd_context** out) {
  return Guard([&] { return config == nullptr || out == nullptr ? Invalid("null pointer") : Create(*config, out); });
}

int32_t hvd_shutdown(hvd_context* context, double timeout, int32_t abort) {
  return Guard([&] { return context->engine->Shutdown(timeout, abort != 0); });
}

void hvd_destroy(hvd_context* context) { delete context; }

int32_t hvd_rank(const hvd_context* context) { return context->engine->rank(); }
int32_t hvd_size(const hvd_context* context) { return context->engine->size(); }
int32_t hvd_local_rank(const hvd_context* context) { return context->local_rank; }
int32_t hvd_local_size(const hvd_context* context) { return context->local_size; }
int32_t hvd_cross_rank(const hvd_context* context) { return context->cross_rank; }
int32_t hvd_cross_size(const hvd_context* context) { return context->cross_size; }

int32_t hvd_allreduce_async(hvd_context* context, const char* name, const hvd_tensor* tensor, int32_t op,
                            double prescale, double postscale, hvd_handle* out) {
  return Guard([&] {
    Entry entry;
    Status status = ReadTensor(name, tensor, &entry);
    if (!status.ok()) return status;
    if (op != HVD_SUM && op != HVD_AVERAGE) {
      return Invalid(std::string("allreduce '") + name + "': op " + std::to_string(op) + " is unknown");
    }
    entry.request.kind = Kind::kAllreduce;
    entry.request.op = op;
    entry.request.scaling = {prescale, postscale, op == HVD_AVERAGE};
    return context->engine->Submit(std::move(entry), out);
  });
}

int32_t hvd_broadcast_async(hvd_context* context, const char* name, const hvd_tensor* tensor, int32_t root,
                            hvd_handle* out) {
  return Guard([&] {
    Entry entry;
    Status status = ReadTensor(name, tensor, &entry);
    if (!status.ok()) return status;
    if (root < 0 || root >= context->engine->size()) {
      return Invalid(std::string("broadcast '") + name + "': root " + std::to_string(root) +
                     " is not a rank, size is " + std::to_string(context->engine->size()));
    }
    entry.request.kind = Kind::kBroadcast;
    entry.request.root = root;
    return context->engine->Submit(std::move(entry), out);
  });
}

int32_t hvd_barrier_async(hvd_context* context, const char* name, hvd_handle* out) {
  return Guard([&] {
    if (name == nullptr || *name == '\0') return Invalid("a collective needs a name");
    Entry entry;
    entry.request.kind = Kind::kBarrier;
    entry.request.name = name;
    return context->engine->Submit(std::move(entry), out);
  });
}

int32_t hvd_poll(hvd_context* context, hvd_handle handle, int32_t* done) {
  return Guard([&] {
    bool ended = false;
    if (!context->engine->handles().Poll(handle, &ended)) return Invalid("unknown handle");
    *done = ended ? 1 : 0;
    return Status::Ok();
  });
}

int32_t hvd_wait(hvd_context* context, hvd_handle handle, double timeout) {
  return Guard([&] { return context->engine->handles().Wait(handle, timeout); });
}

int32_t hvd_release(hvd_context* context, hvd_handle handle) {
  return Guard([&] { return context->engine->handles().Release(handle) ? Status::Ok() : Invalid("unknown handle"); });
}

}  // extern "C"
