/* What the core needs from MPI, as a table of C functions: the border between the core, which holds no MPI symbol, and
 * a module that is compiled against one mpi.h. There is one module per MPI ABI; the process loads the one that fits the
 * library that is in it already.
 *
 * Functions return NULL when all went well, else a text that lives until this thread's next call. A request is 8 bytes
 * that only the module understands.
 */
#ifndef SPARK_HVD_SRC_TRANSPORT_MPI_MODULE_H_
#define SPARK_HVD_SRC_TRANSPORT_MPI_MODULE_H_

#include <stdint.h>

#define HVD_MPI_TABLE_VERSION 1

typedef struct hvd_mpi_table {
  int32_t version;
  /* Duplicates the communicator (a Fortran handle). Collective; waits at most `timeout` seconds for the others. */
  const char* (*open)(int64_t communicator, double timeout, void** link, int32_t* rank, int32_t* size);
  const char* (*send)(void* link, int32_t peer, int32_t tag, const void* data, int64_t bytes, uint64_t* request);
  const char* (*receive)(void* link, int32_t peer, int32_t tag, void* data, int64_t bytes, uint64_t* request);
  const char* (*test)(void* link, uint64_t* request, int32_t* done);
  const char* (*probe)(void* link, int32_t tag, int32_t* found, int32_t* peer, int64_t* bytes);
  void (*cancel)(void* link, uint64_t* request);
  /* Frees the duplicate when `agreed` is not 0 (then all ranks do), and the link. */
  void (*close)(void* link, int32_t agreed);
} hvd_mpi_table;

/* The one symbol of a module. */
#define HVD_MPI_TABLE_SYMBOL "hvd_mpi_module"
typedef const hvd_mpi_table* (*hvd_mpi_module_function)(void);

#endif /* SPARK_HVD_SRC_TRANSPORT_MPI_MODULE_H_ */
