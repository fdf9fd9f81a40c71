// A Link over the MPI library that is in the process already. Loads the module for it; holds no MPI symbol itself.
#ifndef SPARK_HVD_SRC_TRANSPORT_MPI_MPI_LINK_H_
#define SPARK_HVD_SRC_TRANSPORT_MPI_MPI_LINK_H_

#include <memory>
#include <string>

#include "transport/link.h"
#include "transport/mpi/module.h"

namespace spark_hvd {

class MpiLink : public Link {
 public:
  // Collective over the communicator (a Fortran handle); waits at most `timeout` seconds for the other ranks.
  static Status Open(const std::string& module, int64_t communicator, double timeout, std::shared_ptr<Link>* out);
  ~MpiLink() override;
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status Send(int peer, int32_t tag, const void* data, int64_t bytes, Request* request) override;
  Status Receive(int peer, int32_t tag, void* data, int64_t bytes, Request* request) override;
  Status Test(Request* request, bool* done) override;
  Status Probe(int32_t tag, bool* found, int* peer, int64_t* bytes) override;
  void Cancel(Request* request) override;
  void Close() override;

 private:
  MpiLink(const hvd_mpi_table* table, void* link, int rank, int size)
      : table_(table), link_(link), rank_(rank), size_(size) {}

  const hvd_mpi_table* table_;
  void* link_;
  const int rank_, size_;
};

}  // namespace spark_hvd

#endif  // SPARK_HVD_SRC_TRANSPORT_MPI_MPI_LINK_H_
