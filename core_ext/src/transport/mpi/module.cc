// The MPI module: the only file that sees mpi.h. It moves bytes and translates errors; every decision is the core's.
#include "transport/mpi/module.h"

#include <mpi.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request must fit its slot");

struct MpiLink {
  MPI_Comm comm = MPI_COMM_NULL;
};

thread_local char error_text[MPI_MAX_ERROR_STRING + 64];

const char* Explain(const char* call, int code) {
  if (code == MPI_SUCCESS) return nullptr;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::snprintf(error_text, sizeof(error_text), "%s: %s", call, text);
  return error_text;
}

const char* Fail(const char* text) {
  std::snprintf(error_text, sizeof(error_text), "%s", text);
  return error_text;
}

MPI_Comm CommOf(void* link) { return static_cast<MpiLink*>(link)->comm; }

MPI_Request Load(const uint64_t* slot) {
  MPI_Request request;
  std::memcpy(&request, slot, sizeof(request));
  return request;
}

void Store(uint64_t* slot, MPI_Request request) { std::memcpy(slot, &request, sizeof(request)); }

const char* CheckState() {
  int flag = 0, level = 0;
  MPI_Initialized(&flag);
  if (!flag) return Fail("MPI is not initialized");
  MPI_Finalized(&flag);
  if (flag) return Fail("MPI was finalized; a process can start it once only");
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_MULTIPLE) {
    return Fail(
        "MPI was initialized without MPI_THREAD_MULTIPLE; the engine has a thread of its own. Do not lower "
        "mpi4py.rc.thread_level, and do not call MPI_Init before init()");
  }
  return nullptr;
}

// Waits for a nonblocking duplicate without blocking inside MPI, so that a rank that never comes is an error.
const char* Duplicate(MPI_Comm parent, double timeout, MPI_Comm* duplicate) {
  MPI_Request request;
  if (const char* error = Explain("MPI_Comm_idup", MPI_Comm_idup(parent, duplicate, &request))) return error;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    int done = 0;
    if (const char* error = Explain("MPI_Test", MPI_Test(&request, &done, MPI_STATUS_IGNORE))) return error;
    if (done) return nullptr;
    if (std::chrono::duration<double>(Clock::now() - begin).count() > timeout) {
      return Fail("not all ranks called init() in time");
    }
    const timespec pause = {0, 100 * 1000};
    nanosleep(&pause, nullptr);
  }
}

const char* Open(int64_t communicator, double timeout, void** link, int32_t* rank, int32_t* size) {
  if (const char* error = CheckState()) return error;
  auto opened = std::make_unique<MpiLink>();
  const MPI_Comm parent = MPI_Comm_f2c(static_cast<MPI_Fint>(communicator));
  if (parent == MPI_COMM_NULL) return Fail("the communicator is MPI_COMM_NULL");
  if (const char* error = Duplicate(parent, timeout, &opened->comm)) return error;
  if (const char* error =
          Explain("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(opened->comm, MPI_ERRORS_RETURN))) {
    return error;
  }
  int value = 0;
  if (const char* error = Explain("MPI_Comm_rank", MPI_Comm_rank(opened->comm, &value))) return error;
  *rank = value;
  if (const char* error = Explain("MPI_Comm_size", MPI_Comm_size(opened->comm, &value))) return error;
  *size = value;
  *link = opened.release();
  return nullptr;
}

const char* Send(void* link, int32_t peer, int32_t tag, const void* data, int64_t bytes, uint64_t* slot) {
  MPI_Request request;
  const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, CommOf(link), &request);
  if (code == MPI_SUCCESS) Store(slot, request);
  return Explain("MPI_Isend", code);
}

const char* Receive(void* link, int32_t peer, int32_t tag, void* data, int64_t bytes, uint64_t* slot) {
  MPI_Request request;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, CommOf(link), &request);
  if (code == MPI_SUCCESS) Store(slot, request);
  return Explain("MPI_Irecv", code);
}

const char* Test(void*, uint64_t* slot, int32_t* done) {
  MPI_Request request = Load(slot);
  int flag = 0;
  const int code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
  Store(slot, request);
  *done = flag;
  return Explain("MPI_Test", code);
}

const char* Probe(void* link, int32_t tag, int32_t* found, int32_t* peer, int64_t* bytes) {
  int flag = 0;
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, CommOf(link), &flag, &status);
  *found = code == MPI_SUCCESS && flag;
  if (*found) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    *peer = status.MPI_SOURCE;
    *bytes = count;
  }
  return Explain("MPI_Iprobe", code);
}

void Cancel(void*, uint64_t* slot) {
  MPI_Request request = Load(slot);
  if (request == MPI_REQUEST_NULL) return;
  MPI_Cancel(&request);
  int done = 0;
  MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  Store(slot, request);
}

void Close(void* link, int32_t agreed) {
  std::unique_ptr<MpiLink> owned(static_cast<MpiLink*>(link));
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (agreed && !finalized) MPI_Comm_free(&owned->comm);
}

const hvd_mpi_table kTable = {HVD_MPI_TABLE_VERSION, Open, Send, Receive, Test, Probe, Cancel, Close};

}  // namespace

extern "C" __attribute__((visibility("default"))) const hvd_mpi_table* hvd_mpi_module(void) { return &kTable; }
