#include "transport/mpi/mpi_link.h"

#include <dlfcn.h>

namespace spark_hvd {
namespace {

Status FromMpi(const char* error) { return error == nullptr ? Status::Ok() : Status::Error(HVD_PEER_FAILED, error); }

}  // namespace

Status MpiLink::Open(const std::string& module, int64_t communicator, double timeout, std::shared_ptr<Link>* out) {
  // Never closed: MPI keeps pointers into it until the process ends.
  void* library = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Status::Error(HVD_UNAVAILABLE, "the MPI module " + module +
                                              " cannot be loaded: " + (reason != nullptr ? reason : "no reason given") +
                                              ". Is the MPI library that mpi4py loaded one of the MPICH ABI?");
  }
  const auto factory = reinterpret_cast<hvd_mpi_module_function>(dlsym(library, HVD_MPI_TABLE_SYMBOL));
  const hvd_mpi_table* table = factory != nullptr ? factory() : nullptr;
  if (table == nullptr || table->version != HVD_MPI_TABLE_VERSION) {
    return Status::Error(HVD_UNAVAILABLE, "the MPI module " + module + " belongs to another build of the core");
  }
  void* link = nullptr;
  int32_t rank = 0, size = 0;
  const char* error = table->open(communicator, timeout, &link, &rank, &size);
  if (error != nullptr) return Status::Error(HVD_UNAVAILABLE, error);
  out->reset(new MpiLink(table, link, rank, size));
  return Status::Ok();
}

MpiLink::~MpiLink() {
  if (link_ != nullptr) table_->close(link_, 0);
}

Status MpiLink::Send(int peer, int32_t tag, const void* data, int64_t bytes, Request* request) {
  return FromMpi(table_->send(link_, peer, tag, data, bytes, request));
}

Status MpiLink::Receive(int peer, int32_t tag, void* data, int64_t bytes, Request* request) {
  return FromMpi(table_->receive(link_, peer, tag, data, bytes, request));
}

Status MpiLink::Test(Request* request, bool* done) {
  int32_t flag = 0;
  Status status = FromMpi(table_->test(link_, request, &flag));
  *done = flag != 0;
  return status;
}

Status MpiLink::Probe(int32_t tag, bool* found, int* peer, int64_t* bytes) {
  int32_t flag = 0, source = 0;
  Status status = FromMpi(table_->probe(link_, tag, &flag, &source, bytes));
  *found = flag != 0;
  *peer = source;
  return status;
}

void MpiLink::Cancel(Request* request) { table_->cancel(link_, request); }

void MpiLink::Close() {
  if (link_ != nullptr) table_->close(link_, 1);
  link_ = nullptr;
}

}  // namespace spark_hvd
