// The C ABI: checks arguments, keeps the last error of each thread, lets no exception out.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "request_reader.h"
#include "spark_hvd/core.h"
#include "transport/alone/alone.h"
#include "transport/direct/direct_transport.h"
#include "transport/layered/layered_transport.h"
#include "transport/link_control_plane.h"
#include "transport/mpi/mpi_link.h"
#include "transport/shm/segments.h"
#include "transport/shm/shm_transport.h"

using spark_hvd::Engine;
using spark_hvd::Entry;
using spark_hvd::Outcome;
using spark_hvd::Status;

struct hvd_context {
  std::shared_ptr<spark_hvd::Segments> segments = std::make_shared<spark_hvd::Segments>();
  std::shared_ptr<Engine> engine;
  int32_t local_rank, local_size, cross_rank, cross_size;
  bool is_homogeneous = true;
};

// Holds what it lies in, so it may outlive the engine.
struct hvd_memory {
  std::shared_ptr<spark_hvd::Segments> segments;
  void* data;
};

struct hvd_outputs {
  std::vector<spark_hvd::Output> items;
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
  if (!(config.heartbeat_timeout > 0)) return Invalid("heartbeat_timeout: expected seconds above 0");
  if (config.fusion_threshold < 0) return Invalid("fusion_threshold: expected bytes, 0 or more");
  if (config.cache_capacity < 0) return Invalid("cache_capacity: expected a number, 0 or more");
  auto context = std::make_unique<hvd_context>();
  std::unique_ptr<spark_hvd::ControlPlane> control;
  const spark_hvd::ShmProvider* shm = nullptr;
  std::vector<std::unique_ptr<spark_hvd::Provider>> providers;
  providers.push_back(std::make_unique<spark_hvd::AloneProvider>());
  if (config.transport_module == nullptr) {
    control = std::make_unique<spark_hvd::AloneControlPlane>();
  } else {
    std::shared_ptr<spark_hvd::Link> link;
    Status status = spark_hvd::MpiLink::Open(config.transport_module, config.communicator, config.comm_timeout, &link);
    if (!status.ok()) return status;
    control = std::make_unique<spark_hvd::LinkControlPlane>(link);
    const spark_hvd::Log log(link->rank(), config.log_level);
    const auto note = [log](const std::string& line) { log(spark_hvd::LogLevel::kWarning, line); };
    auto provider = std::make_unique<spark_hvd::ShmProvider>(context->segments, config.heartbeat_timeout, note);
    shm = provider.get();
    providers.push_back(std::move(provider));
    providers.push_back(std::make_unique<spark_hvd::LayeredProvider>(
        [shm] { return shm->host(); },
        [link](spark_hvd::Members members) {
          return std::make_unique<spark_hvd::DirectTransport>(link, std::move(members));
        },
        note));
    providers.push_back(std::make_unique<spark_hvd::DirectProvider>(link));
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
  engine.set.coordinator.fusion_threshold = config.fusion_threshold;
  engine.set.coordinator.comm_timeout = config.comm_timeout;
  engine.set.coordinator.stall_check = config.stall_check;
  engine.set.cache_capacity = config.cache_capacity;
  engine.heartbeat_timeout = config.heartbeat_timeout;
  engine.log_level = config.log_level;
  context->local_rank = config.local_rank;
  context->local_size = config.local_size;
  context->cross_rank = config.cross_rank;
  context->cross_size = config.cross_size;
  Status status = Engine::Start(engine, std::move(control), std::move(providers), &context->engine);
  if (!status.ok()) return status;
  if (shm != nullptr && shm->host()) {
    const spark_hvd::ShmHost& host = *shm->host();
    context->is_homogeneous = host.is_homogeneous();
    // A rank that cannot share memory does not know who else is on its host; the launcher may.
    if (host.trouble().empty()) {
      context->local_rank = host.local_rank();
      context->local_size = static_cast<int32_t>(host.local().size());
      context->cross_rank = host.cross_rank();
      context->cross_size = host.cross_size();
    }
  }
  *out = context.release();
  return Status::Ok();
}

Status Read(hvd_context* context, const hvd_collective* collective, std::vector<Entry>* entries) {
  if (collective == nullptr) return Invalid("null pointer");
  const auto set = context->engine->FindSet(collective->process_set);
  if (!set) {
    return Invalid("process set " + std::to_string(collective->process_set) +
                   " does not exist, or this rank is not in it");
  }
  return spark_hvd::ReadCollective(collective, set->members(), entries);
}

// Hands an outcome to a caller who may or may not want the outputs.
Status Deliver(Outcome outcome, hvd_outputs** outputs) {
  if (outcome.status.ok() && outputs != nullptr) *outputs = new hvd_outputs{std::move(outcome.outputs)};
  return std::move(outcome.status);
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

int32_t hvd_is_homogeneous(const hvd_context* context) { return context->is_homogeneous ? 1 : 0; }

int32_t hvd_alloc(hvd_context* context, int64_t bytes, void** data, hvd_memory** memory) {
  return Guard([&] {
    if (bytes < 0) return Invalid("memory of a negative size");
    Status status = context->segments->Allocate(std::max<int64_t>(bytes, 1), data);
    if (status.ok()) *memory = new hvd_memory{context->segments, *data};
    return status;
  });
}

void hvd_free(hvd_memory* memory) {
  if (memory != nullptr) memory->segments->Free(memory->data);
  delete memory;
}

int32_t hvd_submit(hvd_context* context, const hvd_collective* collective, hvd_handle* out) {
  return Guard([&] {
    std::vector<Entry> entries;
    Status status = Read(context, collective, &entries);
    return status.ok() ? context->engine->Submit(collective->process_set, std::move(entries), out) : status;
  });
}

int32_t hvd_run(hvd_context* context, const hvd_collective* collective, double timeout, hvd_handle* out,
                hvd_outputs** outputs) {
  return Guard([&] {
    *out = 0;
    std::vector<Entry> entries;
    Status status = Read(context, collective, &entries);
    if (!status.ok()) return status;
    hvd_handle handle = 0;
    Outcome outcome = context->engine->Run(collective->process_set, std::move(entries), timeout, &handle);
    if (outcome.status.code == HVD_TIMEOUT) *out = handle;
    return Deliver(std::move(outcome), outputs);
  });
}

int32_t hvd_poll(hvd_context* context, hvd_handle handle, int32_t* done) {
  return Guard([&] {
    bool ended = false;
    if (!context->engine->Poll(handle, &ended)) return Invalid("unknown handle");
    *done = ended ? 1 : 0;
    return Status::Ok();
  });
}

int32_t hvd_wait(hvd_context* context, hvd_handle handle, double timeout) {
  return hvd_wait_outputs(context, handle, timeout, nullptr);
}

int32_t hvd_wait_outputs(hvd_context* context, hvd_handle handle, double timeout, hvd_outputs** outputs) {
  return Guard([&] { return Deliver(context->engine->Wait(handle, timeout), outputs); });
}

int32_t hvd_outputs_get(const hvd_outputs* outputs, int32_t index, hvd_output* out) {
  return Guard([&] {
    if (index < 0 || index >= static_cast<int32_t>(outputs->items.size())) return Invalid("no output of this number");
    const spark_hvd::Output& item = outputs->items[index];
    out->data = item.memory.get();
    out->bytes = item.bytes;
    out->rows = item.rows;
    out->splits = item.splits.data();
    out->splits_count = static_cast<int32_t>(item.splits.size());
    out->value = item.value;
    return Status::Ok();
  });
}

void hvd_outputs_free(hvd_outputs* outputs) { delete outputs; }

int32_t hvd_release(hvd_context* context, hvd_handle handle) {
  return Guard([&] { return context->engine->Release(handle) ? Status::Ok() : Invalid("unknown handle"); });
}

int32_t hvd_add_process_set(hvd_context* context, const int32_t* ranks, int32_t count, int32_t* out) {
  return Guard([&] {
    if (count < 0 || (count > 0 && ranks == nullptr)) return Invalid("null pointer");
    return context->engine->AddSet(std::vector<int32_t>(ranks, ranks + count), out);
  });
}

int32_t hvd_remove_process_set(hvd_context* context, int32_t process_set) {
  return Guard([&] { return context->engine->RemoveSet(process_set); });
}

int64_t hvd_counter(const hvd_context* context, const char* name) {
  const spark_hvd::Counters& counters = context->engine->counters();
  const std::pair<const char*, const std::atomic<int64_t>*> all[] = {
      {"messages", &counters.messages}, {"negotiated", &counters.negotiated}, {"predicted", &counters.predicted},
      {"refused", &counters.refused},   {"tensors", &counters.tensors},
  };
  for (const auto& [known, value] : all) {
    if (std::strcmp(known, name) == 0) return value->load();
  }
  return -1;
}

int32_t hvd_transport_of(hvd_context* context, const hvd_collective* collective, char* text, int32_t capacity) {
  return Guard([&] {
    std::vector<Entry> entries;
    std::string name;
    Status status = Read(context, collective, &entries);
    if (status.ok()) {
      const Entry& entry = entries.front();
      status = context->engine->TransportOf(collective->process_set, entry.request, entry.input, &name);
    }
    if (!status.ok() || capacity < 1) return status;
    std::strncpy(text, name.c_str(), static_cast<size_t>(capacity));
    text[capacity - 1] = '\0';
    return status;
  });
}

int32_t hvd_start_timeline(hvd_context* context, const char* path) {
  return Guard([&] { return path == nullptr ? Invalid("no path given") : context->engine->timeline().Start(path); });
}

int32_t hvd_stop_timeline(hvd_context* context) {
  return Guard([&] {
    context->engine->timeline().Stop();
    return Status::Ok();
  });
}

}  // extern "C"
