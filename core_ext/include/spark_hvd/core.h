/* The C ABI of the gradient core: the only door between Python (or any framework) and C++.
 *
 * Owns: names, types and contracts of the functions. It knows no framework: a tensor is pointer, shape, dtype, device,
 * stream. Every function returns an hvd_status; after anything but HVD_OK, hvd_last_error() gives this thread's
 * message. No C++ exception crosses this line. All functions may be called from any thread, hvd_destroy from one, once.
 */
#ifndef SPARK_HVD_CORE_H_
#define SPARK_HVD_CORE_H_

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define HVD_API __attribute__((visibility("default")))
/* Raised whenever a struct or a function below changes; core/library.py refuses another number. */
#define HVD_ABI_VERSION 1

typedef enum hvd_status {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1, /* this call is wrong by itself */
  HVD_MISMATCH = 2,         /* ranks disagree: shape, dtype, op, root, ... ; told on every rank */
  HVD_DUPLICATE_NAME = 3,   /* a collective of this name is in flight on this rank */
  HVD_TIMEOUT = 4,          /* hvd_wait ran out of time; the handle stays valid */
  HVD_SHUT_DOWN = 5,        /* the engine was shut down */
  HVD_PEER_FAILED = 6,      /* a rank is dead or unreachable; the first cause is in the message */
  HVD_UNAVAILABLE = 7,      /* a library or module could not be loaded */
  HVD_INTERNAL = 8,
  HVD_STALLED = 9 /* some ranks did not join a collective within comm_timeout; they are named */
} hvd_status;

typedef enum hvd_dtype {
  HVD_FLOAT32 = 0,
  HVD_FLOAT64 = 1,
  HVD_UINT8 = 2,
  HVD_INT32 = 3,
  HVD_INT64 = 4,
  HVD_INT8 = 5,
  HVD_INT16 = 6,
  HVD_FLOAT16 = 7, /* 16-bit floats are accumulated in float32 and rounded once, at the end */
  HVD_BFLOAT16 = 8,
  HVD_BOOL = 9 /* one byte; sum and max: or, product and min: and */
} hvd_dtype;
typedef enum hvd_op {
  HVD_SUM = 0,
  HVD_AVERAGE = 1,
  HVD_MIN = 2,
  HVD_MAX = 3,
  HVD_PRODUCT = 4,
  HVD_ADASUM = 5 /* floats only */
} hvd_op;

typedef struct hvd_context hvd_context; /* one engine: its thread, its queue, its transports */
typedef int64_t hvd_handle;             /* one submitted collective; freed by hvd_wait or hvd_release */

typedef struct hvd_config {
  uint32_t struct_size;         /* sizeof(hvd_config) of the caller */
  const char* transport_module; /* path of the MPI module (shared library), NULL: this process is alone */
  int64_t communicator;         /* Fortran handle of an MPI communicator; the engine works on a duplicate */
  int32_t expected_rank;        /* what the launcher said, -1: unknown; another value from MPI is an error */
  int32_t expected_size;        /* likewise, 0: unknown */
  int32_t local_rank, local_size, cross_rank, cross_size;
  int64_t fusion_threshold; /* bytes */
  double comm_timeout;      /* seconds until a collective that not all ranks have joined is an error */
  int32_t log_level;        /* 0 trace .. 5 fatal */
} hvd_config;

typedef struct hvd_tensor {
  const void* input;
  void* output; /* may equal input */
  int32_t dtype;
  int32_t ndim;
  const int64_t* shape; /* ndim extents, each >= 0 */
  int32_t device;       /* -1: host memory */
  void* stream;         /* NULL for host memory */
} hvd_tensor;

HVD_API int32_t hvd_abi_version(void);
HVD_API const char* hvd_version(void);
/* Message of the last failure on the calling thread; valid until its next call. */
HVD_API const char* hvd_last_error(void);
/* The ranks that this failure is known to come from: writes at most `capacity`, returns how many there are. */
HVD_API int32_t hvd_last_failed_ranks(int32_t* ranks, int32_t capacity);

/* Starts an engine. Collective over the communicator. */
HVD_API int32_t hvd_create(const hvd_config* config, hvd_context** out);
/* Agrees with all ranks that nothing more comes, within `timeout` seconds, then stops the thread; collectives that all
 * ranks have joined are still carried out. With `abort` it tells the others that this rank is gone and waits for
 * nobody. Pending collectives end with HVD_SHUT_DOWN. Not HVD_OK: the engine is stopped, but the ranks did not agree
 * (MPI must not be finalized then). A later call returns what the first one did. */
HVD_API int32_t hvd_shutdown(hvd_context* context, double timeout, int32_t abort);
/* Frees the context. After hvd_shutdown only. */
HVD_API void hvd_destroy(hvd_context* context);

HVD_API int32_t hvd_rank(const hvd_context* context);
HVD_API int32_t hvd_size(const hvd_context* context);
HVD_API int32_t hvd_local_rank(const hvd_context* context);
HVD_API int32_t hvd_local_size(const hvd_context* context);
HVD_API int32_t hvd_cross_rank(const hvd_context* context);
HVD_API int32_t hvd_cross_size(const hvd_context* context);

/* Submit and return at once. The memory of input and output must live until the handle is done. Names pair the calls of
 * the ranks: collectives of one name meet, whatever the order of submission. Average divides by the size, in the
 * accumulation type. Zero elements and zero dimensions are legal. */
HVD_API int32_t hvd_allreduce_async(hvd_context* context, const char* name, const hvd_tensor* tensor, int32_t op,
                                    double prescale, double postscale, hvd_handle* out);
HVD_API int32_t hvd_broadcast_async(hvd_context* context, const char* name, const hvd_tensor* tensor, int32_t root,
                                    hvd_handle* out);
HVD_API int32_t hvd_barrier_async(hvd_context* context, const char* name, hvd_handle* out);

/* *done = 1 when the collective has ended, well or not. */
HVD_API int32_t hvd_poll(hvd_context* context, hvd_handle handle, int32_t* done);
/* Waits at most `timeout` seconds (negative: until the engine ends it) and returns how it ended; frees the handle
 * unless the answer is HVD_TIMEOUT. */
HVD_API int32_t hvd_wait(hvd_context* context, hvd_handle handle, double timeout);
/* Frees a handle without waiting; the collective goes on, and its memory must live until it has ended. */
HVD_API int32_t hvd_release(hvd_context* context, hvd_handle handle);

#if defined(__cplusplus)
}
#endif

#endif /* SPARK_HVD_CORE_H_ */
