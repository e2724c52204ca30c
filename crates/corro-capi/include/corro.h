/* Corro for C and C++. Made from crates/corro-capi by `make gen`; change it there. docs/c-api.md tells how to use it. */

#ifndef CORRO_H
#define CORRO_H

#include <stddef.h>
#include <stdint.h>

// How a call, or an operation, has ended. The same numbers in all versions.
typedef enum corro_status {
  // Well.
  CORRO_STATUS_OK = 0,
  // The call itself is wrong: fix the program.
  CORRO_STATUS_USAGE = 1,
  // The ranks disagree about what is to be done: fix the program where they differ.
  CORRO_STATUS_MISMATCH = 2,
  // A rank is gone, or has made no progress until the deadline. A job may be begun again without it.
  CORRO_STATUS_PEER_LOST = 3,
  // The set of hosts has changed. A job may be begun again.
  CORRO_STATUS_HOSTS_CHANGED = 4,
  // A library found at run time (NCCL, MPI, CUDA) failed.
  CORRO_STATUS_NATIVE = 5,
  // The operating system refused something.
  CORRO_STATUS_IO = 6,
  // Another rank sent what is no message.
  CORRO_STATUS_MALFORMED = 7,
  // Somebody could not prove to belong to this job.
  CORRO_STATUS_UNAUTHENTICATED = 8,
  // The job is over: some rank has shut it down.
  CORRO_STATUS_SHUTDOWN = 9,
  // Called off before all ranks had begun.
  CORRO_STATUS_WITHDRAWN = 10,
  // A mistake in Corro: please report it.
  CORRO_STATUS_BUG = 11,
  // `corro_init` was not called, or `corro_shutdown` was.
  CORRO_STATUS_NOT_INITIALIZED = 12,
  // Not done yet. No error.
  CORRO_STATUS_PENDING = 13,
} corro_status;

// The type of a tensor's elements.
typedef enum corro_dtype {
  CORRO_DTYPE_UINT8 = 0,
  CORRO_DTYPE_INT8 = 1,
  CORRO_DTYPE_UINT16 = 2,
  CORRO_DTYPE_INT16 = 3,
  CORRO_DTYPE_INT32 = 4,
  CORRO_DTYPE_INT64 = 5,
  CORRO_DTYPE_FLOAT16 = 6,
  CORRO_DTYPE_FLOAT32 = 7,
  CORRO_DTYPE_FLOAT64 = 8,
  // One byte, 0 or 1.
  CORRO_DTYPE_BOOL = 9,
  CORRO_DTYPE_BFLOAT16 = 10,
  CORRO_DTYPE_UINT32 = 11,
  CORRO_DTYPE_UINT64 = 12,
} corro_dtype;

// How the contributions of all ranks become one.
typedef enum corro_op {
  // The sum, divided by the number of ranks. Integers truncate toward zero.
  CORRO_OP_AVERAGE = 0,
  // The sum. Integers wrap; for bool it is "any".
  CORRO_OP_SUM = 1,
  // Adaptive sum: orthogonal vectors add, equal ones average. For floating-point types.
  CORRO_OP_ADASUM = 2,
  // The smallest; NaN wins. For bool it is "all".
  CORRO_OP_MIN = 3,
  // The largest; NaN wins. For bool it is "any".
  CORRO_OP_MAX = 4,
  // The product. Integers wrap; for bool it is "all".
  CORRO_OP_PRODUCT = 5,
} corro_op;

// How far the workers of a store may drift apart.
typedef enum corro_consistency {
  // Rounds: what is pulled has one push of every worker in it, added in the order of ranks.
  CORRO_CONSISTENCY_BSP = 0,
  // A worker that begins a step is at most `bound` steps ahead of the slowest.
  CORRO_CONSISTENCY_SSP = 1,
  // Nobody waits for anybody. With a `bound` of 1, updates that come d versions late count 1 / (1 + d).
  CORRO_CONSISTENCY_ASYNC = 2,
} corro_consistency;

// What a push does.
typedef enum corro_rule {
  // The value is the sum of one push of every worker. In rounds only.
  CORRO_RULE_SUM = 0,
  // The same, divided by how many have pushed.
  CORRO_RULE_AVERAGE = 1,
  // It is added to the value.
  CORRO_RULE_ADD = 2,
  // It is a gradient: the optimizer of `corro_store_set_optimizer` updates the value with it.
  CORRO_RULE_UPDATE = 3,
} corro_rule;

// Stands for an operation that was submitted. Never 0.
typedef uint64_t corro_ticket;

// Is told that an operation is done, how it ended (a `corro_status`), and what it was registered with. It may ask for
// the result, `corro_last_error` among it, and free the ticket; it must not wait for others, nor end the job.
typedef void (*corro_callback)(void *user, corro_ticket ticket, int32_t status);

// A tensor in host memory, dense, in row-major order. The struct itself, its name and its shape are read during the
// call only; the memory of its elements is the library's until the operation is done: don't free or write the input,
// don't touch the output.
typedef struct corro_tensor {
  // By which ranks find each other's tensors. Only one tensor of a name may be under way in a process set.
  const char *name;
  // A `corro_dtype`.
  int32_t dtype;
  // A process set; 0: all ranks.
  uint32_t process_set;
  // How many numbers `shape` has. 0: a scalar.
  size_t dimensions;
  // The dimensions.
  const size_t *shape;
  // What this rank brings. `NULL`: what `output` holds (allreduce and broadcast only).
  const void *input;
  // Where the result goes: not into the middle of `input`, though it may be `input` itself (allreduce and broadcast
  // only). `NULL`: into memory of the library's, see `corro_result`.
  void *output;
  // For how many bytes `output` has room. A result that turns out to be larger goes into memory of the library's.
  size_t output_bytes;
} corro_tensor;

// Stands for a store. Never 0.
typedef uint64_t corro_store;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What went wrong in the last call of this thread that did not end well; empty if none has. The text is good until
// the next such call of this thread. Never `NULL`.
const char *corro_last_error(void);

// The version of the library, `"0.1.0"` for one. Never `NULL`.
const char *corro_version(void);

// Joins the job that the environment describes (docs/environment.md), or makes one of a single rank if it describes
// none. All ranks must call this. Does nothing if that was done already. After `corro_shutdown` it can be called again,
// by all ranks.
int32_t corro_init(void);

// Ends the job, for all ranks: what is under way fails with `CORRO_STATUS_SHUTDOWN`. Tickets remain, to be freed. Does
// nothing if there is no job.
int32_t corro_shutdown(void);

// As `corro_shutdown`, for a program that can't go on: `why` says what went wrong. The other ranks find it in the text of their
// error, and the launcher shows it as the reason why the job failed.
//
// `why` is a text.
int32_t corro_shutdown_because(const char *why);

// Tells those who watch the job (`corro run --page`) that a step of the training has ended. To be called when the step's tensors are
// there. Without it a step ends, for them, when a tensor comes again.
int32_t corro_mark_step(void);

// Tells those who watch the job a value of its training, such as `"loss"`: they see the mean over the ranks that say it. Does nothing
// if nobody watches.
//
// `name` is a text.
int32_t corro_log_value(uint64_t step,
                        const char *name,
                        double value);

// 1 between `corro_init` and `corro_shutdown`, else 0.
int corro_is_initialized(void);

// This process's rank in the job, from 0.
//
// `rank` may be written to.
int32_t corro_rank(int *rank);

// How many ranks the job has.
//
// `size` may be written to.
int32_t corro_size(int *size);

// This process's place among the ranks of its host.
//
// `rank` may be written to.
int32_t corro_local_rank(int *rank);

// How many ranks its host has.
//
// `size` may be written to.
int32_t corro_local_size(int *size);

// Its host's place among those that have a rank with its local rank.
//
// `rank` may be written to.
int32_t corro_cross_rank(int *rank);

// How many hosts have a rank with its local rank.
//
// `size` may be written to.
int32_t corro_cross_size(int *size);

// Whether all hosts have equally many ranks: 1 or 0.
//
// `homogeneous` may be written to.
int32_t corro_is_homogeneous(int *homogeneous);

// The last operations of this rank, as text: what to look at when something hangs. Writes at most `room` bytes, a zero
// byte at the end among them, and to `needed` how many would hold it all. `text` may be `NULL` if `room` is 0.
//
// `text` has `room` bytes, and `needed` may be written to.
int32_t corro_flight_record(char *text, size_t room, size_t *needed);

// Waits until an operation is done, and says how it ended. The waiting thread does the library's work meanwhile.
int32_t corro_wait(corro_ticket ticket);

// As `corro_wait`, for at most so many milliseconds: `CORRO_STATUS_PENDING` if it is not done by then.
int32_t corro_wait_for(corro_ticket ticket, uint64_t milliseconds);

// How an operation ended, or `CORRO_STATUS_PENDING` if it is not done.
int32_t corro_poll(corro_ticket ticket);

// Has `callback` called once the operation is done: on any thread, or right here if it is done already. At most one
// for each ticket. Freeing the ticket does not take it back.
//
// `callback` may be called from any thread with `user`, once, at any time until it was.
int32_t corro_on_done(corro_ticket ticket, corro_callback callback, void *user);

// Gives a ticket back, and the library's memory with its result. The operation must be done, or have a callback.
int32_t corro_free(corro_ticket ticket);

// `corro_wait`, then `corro_free`.
int32_t corro_finish(corro_ticket ticket);

// Where the result of an operation is, and how many bytes it has. That is the tensor's own `output` if it has room
// for it; otherwise memory of the library's, good until the ticket is freed.
//
// `data` and `bytes` may be written to.
int32_t corro_result(corro_ticket ticket, const void **data, size_t *bytes);

// Copies the result of an operation to `to`, which must have room for all of it.
//
// `to` has `room` bytes, and is not inside the result.
int32_t corro_result_copy(corro_ticket ticket, void *to, size_t room);

// The dimensions of a result. Writes at most `room` of them, and how many there are to `dimensions`. `shape` may be
// `NULL` if `room` is 0.
//
// `shape` has room for `room` numbers, and `dimensions` may be written to.
int32_t corro_result_shape(corro_ticket ticket, size_t *shape, size_t room, size_t *dimensions);

// After an alltoall: how many rows came from each rank of the set. Writes at most `room` numbers, and how many there
// are to `count`. `splits` may be `NULL` if `room` is 0.
//
// `splits` has room for `room` numbers, and `count` may be written to.
int32_t corro_result_splits(corro_ticket ticket, size_t *splits, size_t room, size_t *count);

// Reduces a tensor over all ranks: each gets `postscale * op(prescale * input)`. The factors are 1 for none; `op` is a
// `corro_op`.
//
// Of this function and all that follow, `ticket` may be `NULL`: then the call returns once the operation is done, which
// is the fastest way if there is nothing else to do meanwhile; the tensor must have an output with room for the result.
//
// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
int32_t corro_allreduce(const struct corro_tensor *tensor,
                        int32_t op,
                        double prescale,
                        double postscale,
                        corro_ticket *ticket);

// Puts the tensors of all ranks together along the first dimension, in which they may differ.
//
// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
int32_t corro_allgather(const struct corro_tensor *tensor, corro_ticket *ticket);

// Gives the tensor of rank `root` to all. `root` counts among all ranks, also in a process set. The others need no
// input.
//
// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
int32_t corro_broadcast(const struct corro_tensor *tensor, int root, corro_ticket *ticket);

// Sends rows to each rank: `splits[i]` of them to the i-th of the process set, in order. `count` is the size of the
// set; 0 deals all rows out equally. `corro_result_splits` tells how many came from whom.
//
// The tensor is as the description of `corro_tensor` says; `splits` are `count`; `ticket` is `NULL` or may be written
// to.
int32_t corro_alltoall(const struct corro_tensor *tensor, const size_t *splits, size_t count, corro_ticket *ticket);

// Reduces as `corro_allreduce` does, by sum or average, and gives each rank a part of the rows; the first ranks get
// one more if they can't be dealt out equally.
//
// The tensor is as the description of `corro_tensor` says; `ticket` is `NULL` or may be written to.
int32_t corro_reducescatter(const struct corro_tensor *tensor,
                            int32_t op,
                            double prescale,
                            double postscale,
                            corro_ticket *ticket);

// As `corro_allreduce`, for `count` tensors of one process set that complete together. `tickets` has room for as many,
// or is `NULL`. If one tensor is refused, none is submitted.
//
// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
int32_t corro_grouped_allreduce(const struct corro_tensor *tensors,
                                size_t count,
                                int32_t op,
                                double prescale,
                                double postscale,
                                corro_ticket *tickets);

// As `corro_allgather`, for tensors that complete together, see `corro_grouped_allreduce`.
//
// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
int32_t corro_grouped_allgather(const struct corro_tensor *tensors, size_t count, corro_ticket *tickets);

// As `corro_reducescatter`, for tensors that complete together, see `corro_grouped_allreduce`.
//
// `tensors` are `count`, each as the description of `corro_tensor` says; `tickets` is `NULL` or has room for as many.
int32_t corro_grouped_reducescatter(const struct corro_tensor *tensors,
                                    size_t count,
                                    int32_t op,
                                    double prescale,
                                    double postscale,
                                    corro_ticket *tickets);

// Waits until all ranks of a process set have come here.
int32_t corro_barrier(uint32_t process_set);

// This rank has no more data: until all ranks have called this, it takes part in the allreduces of the others with
// zeros. Writes who came last to `last`, which may be `NULL`.
//
// `last` is `NULL` or may be written to.
int32_t corro_join(int *last);

// Makes a process set of `count` ranks and writes its number to `set`. All ranks of the job must call this, in the same
// order; all of them give the same ranks. Number 0 is the set of all ranks, which is always there.
//
// `ranks` points to `count` numbers, and `set` may be written to.
int32_t corro_add_process_set(const int *ranks, size_t count, uint32_t *set);

// Removes a process set. All ranks of the job must call this.
int32_t corro_remove_process_set(uint32_t set);

// The numbers of all process sets. Writes at most `room` of them, and how many there are to `count`. `sets` may be
// `NULL` if `room` is 0.
//
// `sets` has room for `room` numbers, and `count` may be written to.
int32_t corro_process_sets(uint32_t *sets, size_t room, size_t *count);

// The ranks of a process set, ascending. Writes at most `room` of them, and how many there are to `count`. `ranks` may
// be `NULL` if `room` is 0.
//
// `ranks` has room for `room` numbers, and `count` may be written to.
int32_t corro_process_set_ranks(uint32_t set, int *ranks, size_t room, size_t *count);

// Makes a store of named arrays at the servers of this job, for the ranks of a process set (0: all). All of them must. Servers are
// those that `corro run --servers` has started; without them, one in a thread of every rank. `consistency` is a
// `corro_consistency`, and `bound` the number of steps for those that have one.
//
// `store` may be written to.
int32_t corro_store_open(uint32_t process_set,
                         int32_t consistency,
                         uint64_t bound,
                         corro_store *store);

// Names an array of `rows` times `width` elements, and waits until it has its first value: that of the set's first rank (`NULL`:
// zeros). Every rank must name the same arrays in the same order. `dtype` is a `corro_dtype`, `rule` a `corro_rule`. `by_rows` other
// than 0: rows are pushed and pulled one by one. `compression` (`NULL`: none) is `"fp16"`, `"bf16"` or `"int8"`: a float32 array is
// pushed with fewer bytes, and what a push leaves out goes with the next.
//
// `name` is a text, `compression` a text or `NULL`, and `value` the whole array or `NULL`.
int32_t corro_store_init(corro_store store,
                         const char *name,
                         int32_t dtype,
                         uint64_t rows,
                         uint32_t width,
                         int32_t rule,
                         int32_t by_rows,
                         const char *compression,
                         const void *value);

// Servers update with this optimizer from now on: its name and numbers, as in `"adam lr=0.01 beta1=0.9"`. There are sgd (lr, momentum,
// nesterov, `weight_decay`), adam and adamw (lr, beta1, beta2, eps, `weight_decay`), adagrad (lr, eps, `weight_decay`,
// `initial_accumulator_value`) and `row_adagrad` (lr, eps, `initial_accumulator_value`).
//
// `optimizer` is a text.
int32_t corro_store_set_optimizer(corro_store store,
                                  const char *optimizer);

// Pushes all of an array, and does not wait: its memory may be used again at once. Lower priorities go first. `rate` is a learning rate
// in place of the optimizer's own; not a number: none.
//
// `name` is a text, and `value` has `size` bytes.
int32_t corro_store_push(corro_store store,
                         const char *name,
                         const void *value,
                         size_t size,
                         int64_t priority,
                         float rate);

// Reads all of an array; in rounds it waits for those who have not pushed yet.
//
// `name` is a text, and `value` has `size` bytes that nobody else touches.
int32_t corro_store_pull(corro_store store, const char *name, void *value, size_t size);

// Pushes some rows of an array; one that is there twice is added up. In rounds every rank must, if only with none.
//
// `name` is a text, `rows` has `count` numbers, and `values` `size` bytes.
int32_t corro_store_push_rows(corro_store store,
                              const char *name,
                              const uint64_t *rows,
                              size_t count,
                              const void *values,
                              size_t size,
                              float rate);

// Reads some rows of an array, in the order of `rows`.
//
// `name` is a text, `rows` has `count` numbers, and `values` `size` bytes that nobody else touches.
int32_t corro_store_pull_rows(corro_store store,
                              const char *name,
                              const uint64_t *rows,
                              size_t count,
                              void *values,
                              size_t size);

// A step of this rank is over: with a bound, the others may go on as far as it allows.
int32_t corro_store_clock(corro_store store);

// Waits until all ranks of the store are here, and what they have pushed before is in what is pulled after.
int32_t corro_store_barrier(corro_store store);

// Writes all that servers own to a file of the first rank's. All must call it.
//
// `file` is a text.
int32_t corro_store_save(corro_store store, const char *file);

// Gives servers what `corro_store_save` has written, after the same inits; there may be more or fewer servers now.
//
// `file` is a text.
int32_t corro_store_load(corro_store store, const char *file);

// Leaves the store when all do.
int32_t corro_store_close(corro_store store);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CORRO_H */
