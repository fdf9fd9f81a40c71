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
#define HVD_ABI_VERSION 2

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
typedef enum hvd_kind {
  HVD_ALLREDUCE = 0,
  HVD_BROADCAST = 1,
  HVD_BARRIER = 2,
  HVD_ALLGATHER = 3,
  HVD_ALLTOALL = 4,
  HVD_REDUCESCATTER = 5,
  HVD_JOIN = 6
} hvd_kind;

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
  int64_t cache_capacity; /* collectives that are learned, so that they need no message once a step repeats; 0: none */
  double comm_timeout;    /* seconds until a collective that not all ranks have joined is an error */
  double stall_check;     /* seconds until it is reported; 0: never */
  double heartbeat_timeout; /* seconds of silence until a rank counts as dead */
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
/* 1: every host has the same number of ranks. */
HVD_API int32_t hvd_is_homogeneous(const hvd_context* context);

/* Memory that the ranks of a host share: a tensor that lies in it on all of them is reduced without a copy. Zeroed,
 * aligned to a cache line. It may outlive the context; it goes with hvd_free. */
typedef struct hvd_memory hvd_memory;
HVD_API int32_t hvd_alloc(hvd_context* context, int64_t bytes, void** data, hvd_memory** memory);
HVD_API void hvd_free(hvd_memory* memory);

/* What ranks do together. Names pair their calls: collectives of one name meet, whatever the order of submission. Zero
 * elements and zero dimensions are legal; a scalar counts as one row.
 *   allreduce      output like input, which it may be. Average divides by the size of the process set, in the
 *                  accumulation type; integers are truncated. Prescale before, postscale after.
 *   broadcast      of `root`'s input to all outputs
 *   barrier        no tensor
 *   allgather      first extents may differ; the output is the core's: all rows in rank order
 *   alltoall       splits[i] rows go to the i-th rank of the set; the output is the core's, with the received splits
 *   reducescatter  the output is the core's: this rank's share of the rows (the first ranks get one more if uneven)
 *   join           no tensor; this rank has no more data: until all have joined it takes part in what the others do,
 * with data that changes nothing. The output's value is the last rank to join. */
typedef struct hvd_collective {
  uint32_t struct_size; /* sizeof(hvd_collective) of the caller */
  int32_t kind;
  int32_t process_set;
  int32_t op; /* allreduce, reducescatter */
  double prescale, postscale;
  int32_t root;              /* broadcast: a rank of the world */
  int32_t count;             /* tensors; more than one: a group, which is carried out together (not split by fusion) */
  const char* const* names;  /* one for each tensor; one for barrier and join */
  const char* group;         /* name of the group when count > 1 */
  const hvd_tensor* tensors; /* output is not looked at where it is the core's */
  const int64_t* splits;     /* alltoall; NULL: even */
  int32_t splits_count;
} hvd_collective;

/* What the core made for one collective of a handle. Lives until hvd_outputs_free. */
typedef struct hvd_output {
  void* data; /* NULL when the output was the caller's memory */
  int64_t bytes;
  int64_t rows;
  const int64_t* splits; /* alltoall: rows received from each rank */
  int32_t splits_count;
  int64_t value; /* join: the last rank */
} hvd_output;
typedef struct hvd_outputs hvd_outputs;

/* Submits and returns at once. The memory of inputs and outputs must live until the handle is done. */
HVD_API int32_t hvd_submit(hvd_context* context, const hvd_collective* collective, hvd_handle* out);
/* hvd_submit and hvd_wait in one, carried out by this thread if nobody else drives the engine. After HVD_TIMEOUT *out
 * is the handle, which is still to be waited for; else it is 0. `outputs` may be NULL. */
HVD_API int32_t hvd_run(hvd_context* context, const hvd_collective* collective, double timeout, hvd_handle* out,
                        hvd_outputs** outputs);

/* *done = 1 when the collective has ended, well or not. */
HVD_API int32_t hvd_poll(hvd_context* context, hvd_handle handle, int32_t* done);
/* Waits at most `timeout` seconds (negative: until the engine ends it) and returns how it ended; frees the handle
 * unless the answer is HVD_TIMEOUT. */
HVD_API int32_t hvd_wait(hvd_context* context, hvd_handle handle, double timeout);
/* hvd_wait for those whose output is the core's; *outputs is set when the answer is HVD_OK. */
HVD_API int32_t hvd_wait_outputs(hvd_context* context, hvd_handle handle, double timeout, hvd_outputs** outputs);
HVD_API int32_t hvd_outputs_get(const hvd_outputs* outputs, int32_t index, hvd_output* out);
HVD_API void hvd_outputs_free(hvd_outputs* outputs);
/* Frees a handle without waiting; the collective goes on, and its memory must live until it has ended. */
HVD_API int32_t hvd_release(hvd_context* context, hvd_handle handle);

/* A process set: some of the ranks, which have collectives of their own. Number 0 is all ranks. All ranks of the world
 * call both functions, with the same ranks, in the same order. */
HVD_API int32_t hvd_add_process_set(hvd_context* context, const int32_t* ranks, int32_t count, int32_t* out);
HVD_API int32_t hvd_remove_process_set(hvd_context* context, int32_t process_set);

/* Counted since the start: "messages" (sent to agree), "negotiated" and "predicted" (groups carried out after messages,
 * and without), "refused" (predicted groups that were skipped), "tensors". -1: no such counter. */
HVD_API int64_t hvd_counter(const hvd_context* context, const char* name);
/* Name of the transport that carries such a collective of one tensor, into `text`. */
HVD_API int32_t hvd_transport_of(hvd_context* context, const hvd_collective* collective, char* text, int32_t capacity);
/* Writes what happens to a file, as a Chrome trace, from now on until it is stopped. */
HVD_API int32_t hvd_start_timeline(hvd_context* context, const char* path);
HVD_API int32_t hvd_stop_timeline(hvd_context* context);

#if defined(__cplusplus)
}
#endif

#endif /* SPARK_HVD_CORE_H_ */
