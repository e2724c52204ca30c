/* Every function of corro.h, rightly and wrongly used. Started by examples.rs on several ranks. */

#include <corro.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                                                          \
  do {                                                                                        \
    if (!(what)) {                                                                            \
      fprintf(stderr, "line %d: not so: %s (last error: %s)\n", __LINE__, #what, corro_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define OK(call) EXPECT((call) == CORRO_STATUS_OK)
#define REFUSED(call, word) EXPECT((call) == CORRO_STATUS_USAGE && strstr(corro_last_error(), word) != NULL)

static int rank, size;

static corro_tensor floats(const char *name, const size_t *length, const float *input, float *output, size_t room) {
  corro_tensor tensor = {.name = name, .dtype = CORRO_DTYPE_FLOAT32, .dimensions = 1, .shape = length,
                         .input = input, .output = output, .output_bytes = room * sizeof(float)};
  return tensor;
}

static void before_init(void) {
  int number;
  size_t count;
  EXPECT(strcmp(corro_version(), VERSION) == 0);
  EXPECT(corro_is_initialized() == 0);
  EXPECT(corro_rank(&number) == CORRO_STATUS_NOT_INITIALIZED);
  EXPECT(strstr(corro_last_error(), "corro_init") != NULL);
  EXPECT(corro_barrier(0) == CORRO_STATUS_NOT_INITIALIZED);
  EXPECT(corro_flight_record(NULL, 0, &count) == CORRO_STATUS_NOT_INITIALIZED);
  EXPECT(corro_mark_step() == CORRO_STATUS_NOT_INITIALIZED);
  REFUSED(corro_wait(1), "no ticket 1");
  OK(corro_shutdown());
}

static void place(void) {
  int local_rank, local_size, cross_rank, cross_size, homogeneous;
  OK(corro_rank(&rank));
  OK(corro_size(&size));
  OK(corro_local_rank(&local_rank));
  OK(corro_local_size(&local_size));
  OK(corro_cross_rank(&cross_rank));
  OK(corro_cross_size(&cross_size));
  OK(corro_is_homogeneous(&homogeneous));
  EXPECT(local_rank == rank && local_size == size && cross_rank == 0 && cross_size == 1 && homogeneous == 1);
  EXPECT(rank >= 0 && rank < size && corro_is_initialized() == 1);
}

static void wrong_calls(void) {
  float data[4] = {1, 2, 3, 4};
  const size_t four = 4;
  corro_ticket ticket = 77;
  corro_tensor tensor = floats("wrong", &four, data, data, 4), bad;
  REFUSED(corro_rank(NULL), "NULL");
  REFUSED(corro_allreduce(NULL, CORRO_OP_SUM, 1, 1, &ticket), "NULL");
  bad = tensor, bad.name = NULL;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "name is NULL");
  bad = tensor, bad.name = "\xff\xfe";
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "UTF-8");
  bad = tensor, bad.name = "";
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "name must have");
  bad = tensor, bad.shape = NULL;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "shape is NULL");
  bad = tensor, bad.dtype = 99;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "99");
  REFUSED(corro_allreduce(&tensor, -3, 1, 1, &ticket), "-3");
  bad = tensor, bad.output_bytes = 15;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "room for 15");
  bad = tensor, bad.output = data + 1;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "overlaps");
  bad = tensor, bad.input = NULL, bad.output = NULL;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "without data");
  bad = tensor, bad.output = NULL;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, NULL), "somewhere");
  REFUSED(corro_broadcast(&tensor, -1, &ticket), "invalid root rank -1");
  REFUSED(corro_broadcast(&tensor, size, &ticket), "invalid root rank");
  REFUSED(corro_alltoall(&tensor, NULL, 4, &ticket), "splits is NULL");
  REFUSED(corro_grouped_allgather(NULL, 2, &ticket), "tensors is NULL");
  bad = tensor, bad.process_set = 9;
  REFUSED(corro_allreduce(&bad, CORRO_OP_SUM, 1, 1, &ticket), "process set 9");
  EXPECT(ticket == 77 && data[0] == 1);
  REFUSED(corro_poll(12345678), "no ticket");
  REFUSED(corro_free(0), "no ticket");
  REFUSED(corro_add_process_set(NULL, 1, (uint32_t *)&ticket), "ranks is NULL");
  REFUSED(corro_add_process_set(&rank, 1, NULL), "NULL");
  const int minus = -1;
  uint32_t set;
  REFUSED(corro_add_process_set(&minus, 1, &set), "-1 is not a rank");
  REFUSED(corro_remove_process_set(0), "no process set 0");
  REFUSED(corro_process_set_ranks(5, NULL, 0, NULL), "no process set 5");
}

static void reductions(void) {
  const size_t three = 3, none = 0;
  float in[3] = {1, 2, (float)rank}, out[4] = {0, 0, 0, -7};
  corro_tensor tensor = floats("reduced", &three, in, out, 4);
  /* Without a ticket; with factors; a larger room than needed. */
  OK(corro_allreduce(&tensor, CORRO_OP_SUM, 2.0, 0.5, NULL));
  EXPECT(out[0] == (float)size && out[1] == (float)(2 * size) && out[3] == -7 && in[0] == 1);
  OK(corro_allreduce(&tensor, CORRO_OP_MAX, 1, 1, NULL));
  EXPECT(out[2] == (float)(size - 1));
  /* In the library's memory. */
  corro_ticket ticket;
  const void *data;
  size_t bytes, shape[2], dimensions;
  tensor.output = NULL;
  OK(corro_allreduce(&tensor, CORRO_OP_AVERAGE, 1, 1, &ticket));
  OK(corro_wait(ticket));
  OK(corro_wait(ticket));
  OK(corro_poll(ticket));
  OK(corro_result(ticket, &data, &bytes));
  EXPECT(bytes == 12 && ((const float *)data)[1] == 2);
  OK(corro_result_shape(ticket, shape, 2, &dimensions));
  EXPECT(dimensions == 1 && shape[0] == 3);
  OK(corro_result_shape(ticket, NULL, 0, &dimensions));
  REFUSED(corro_result_copy(ticket, out, 11), "12 bytes");
  REFUSED(corro_result_copy(ticket, NULL, 12), "NULL");
  OK(corro_result_copy(ticket, out, 12));
  EXPECT(out[1] == 2);
  OK(corro_free(ticket));
  REFUSED(corro_free(ticket), "no ticket");
  /* Nothing at all, from nowhere. */
  tensor = floats("nothing", &none, NULL, NULL, 0);
  OK(corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, &ticket));
  OK(corro_finish(ticket));
  /* A scalar, from the root only. */
  float scalar = (float)rank;
  tensor = floats("scalar", NULL, NULL, &scalar, 1), tensor.dimensions = 0;
  OK(corro_broadcast(&tensor, size - 1, NULL));
  EXPECT(scalar == (float)(size - 1));
  /* Disagreement. */
  const size_t odd = rank == 0 ? 3 : 2;
  tensor = floats("odd", &odd, in, out, 4);
  const int status = corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, NULL);
  EXPECT(status == (size == 1 ? CORRO_STATUS_OK : CORRO_STATUS_MISMATCH));
}

static void sizes_that_come_out(void) {
  const size_t mine = (size_t)rank + 1, total = (size_t)(size * (size + 1) / 2), n = (size_t)size;
  float in[64], out[64];
  size_t bytes, splits[64], count;
  const void *data;
  corro_ticket ticket;
  for (int i = 0; i < 64; i++) in[i] = (float)(rank * 100 + i);
  corro_tensor tensor = floats("gathered", &mine, in, out, 64);
  OK(corro_allgather(&tensor, &ticket));
  OK(corro_wait(ticket));
  OK(corro_result(ticket, &data, &bytes));
  EXPECT(data == out && bytes == total * 4 && out[total - 1] == (float)((size - 1) * 100 + size - 1));
  OK(corro_free(ticket));
  /* Too little room: the library keeps it; without a ticket it is lost, and that is said. */
  tensor.output_bytes = total * 4 - 1;
  OK(corro_allgather(&tensor, &ticket));
  OK(corro_wait(ticket));
  OK(corro_result(ticket, &data, &bytes));
  EXPECT(data != out && bytes == total * 4);
  OK(corro_free(ticket));
  REFUSED(corro_allgather(&tensor, NULL), "give more");
  tensor.output_bytes = sizeof out;
  OK(corro_allgather(&tensor, NULL));
  /* Rank r sends i rows to rank i. */
  const size_t rows = n * (n - 1) / 2;
  for (size_t i = 0; i < n; i++) splits[i] = i;
  tensor = floats("dealt", &rows, in, NULL, 0);
  OK(corro_alltoall(&tensor, splits, n, &ticket));
  OK(corro_wait(ticket));
  OK(corro_result_splits(ticket, splits, 64, &count));
  EXPECT(count == n && splits[n - 1] == (size_t)rank);
  OK(corro_result(ticket, &data, &bytes));
  EXPECT(bytes == n * (size_t)rank * 4);
  if (rank > 0) EXPECT(((const float *)data)[0] == in[rank * (rank - 1) / 2] - (float)(rank * 100));
  OK(corro_free(ticket));
  OK(corro_alltoall(&(corro_tensor){.name = "equal", .dtype = CORRO_DTYPE_FLOAT32, .dimensions = 1, .shape = &n,
                                    .input = in, .output = out, .output_bytes = n * 4}, NULL, 0, NULL));
  EXPECT(out[n - 1] == (float)((size - 1) * 100 + rank));
  /* One row more than ranks: the first gets two. */
  const size_t more = n + 1;
  tensor = floats("scattered", &more, in, out, 64);
  OK(corro_reducescatter(&tensor, CORRO_OP_SUM, 1, 1, &ticket));
  OK(corro_wait(ticket));
  OK(corro_result(ticket, &data, &bytes));
  EXPECT(bytes == (rank == 0 ? 8 : 4));
  OK(corro_free(ticket));
}

static void groups(void) {
  float a = 1, b = 2;
  const size_t one = 1;
  corro_ticket tickets[2];
  corro_tensor pair[2] = {floats("a", &one, &a, &a, 1), floats("b", &one, &b, &b, 1)};
  OK(corro_grouped_allreduce(pair, 2, CORRO_OP_SUM, 1, 1, tickets));
  OK(corro_finish(tickets[1]));
  OK(corro_finish(tickets[0]));
  EXPECT(a == (float)size && b == (float)(2 * size));
  OK(corro_grouped_allreduce(pair, 2, CORRO_OP_AVERAGE, 1, 1, NULL));
  OK(corro_grouped_allreduce(pair, 0, CORRO_OP_SUM, 1, 1, NULL));
  pair[1].name = "a";
  REFUSED(corro_grouped_allreduce(pair, 2, CORRO_OP_SUM, 1, 1, tickets), "same name");
  pair[1].name = "b", pair[1].dtype = -1;
  REFUSED(corro_grouped_allreduce(pair, 2, CORRO_OP_SUM, 1, 1, tickets), "-1");
  float all[2][64];
  pair[1].dtype = CORRO_DTYPE_FLOAT32;
  for (int i = 0; i < 2; i++) pair[i].output = all[i], pair[i].output_bytes = sizeof all[i];
  OK(corro_grouped_allgather(pair, 2, NULL));
  EXPECT(all[1][size - 1] == (float)(2 * size));
  const size_t n = (size_t)size;
  float rows[64] = {0};
  for (int i = 0; i < 2; i++) pair[i].shape = &n, pair[i].input = rows;
  OK(corro_grouped_reducescatter(pair, 2, CORRO_OP_SUM, 1, 1, NULL));
  EXPECT(all[1][0] == 0);
}

static atomic_int called, called_status;

static void callback(void *user, corro_ticket ticket, int32_t status) {
  const void *data;
  size_t bytes;
  if (corro_result(ticket, &data, &bytes) == CORRO_STATUS_OK && bytes == 4 && data == user) called_status = status + 100;
  corro_free(ticket);
  called++;
}

static void *waiter(void *ticket) {
  OK(corro_wait(*(corro_ticket *)ticket));
  return NULL;
}

static void waiting(void) {
  float x = 1;
  const size_t one = 1;
  corro_ticket ticket;
  corro_tensor tensor = floats("late", &one, &x, &x, 1);
  /* Rank 0 comes after the others have looked. */
  if (rank == 0) OK(corro_barrier(0));
  OK(corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, &ticket));
  if (rank != 0) {
    EXPECT(corro_poll(ticket) == CORRO_STATUS_PENDING);
    EXPECT(corro_wait_for(ticket, 20) == CORRO_STATUS_PENDING);
    const void *data;
    size_t bytes;
    EXPECT(corro_result(ticket, &data, &bytes) == CORRO_STATUS_PENDING);
    REFUSED(corro_free(ticket), "wait for it first");
    OK(corro_barrier(0));
  }
  /* Three threads wait for one ticket, one of them with a limit. */
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) EXPECT(pthread_create(&threads[i], NULL, waiter, &ticket) == 0);
  OK(corro_wait_for(ticket, 30000));
  for (int i = 0; i < 2; i++) EXPECT(pthread_join(threads[i], NULL) == 0);
  OK(corro_free(ticket));
  REFUSED(corro_on_done(ticket, callback, &x), "no ticket");

  for (int i = 1; i <= 20; i++) {
    OK(corro_allreduce(&tensor, CORRO_OP_AVERAGE, 1, 1, &ticket));
    REFUSED(corro_on_done(ticket, NULL, &x), "NULL");
    if (i % 3 == 0) OK(corro_wait(ticket));
    OK(corro_on_done(ticket, callback, &x));
    while (called < i) EXPECT(corro_is_initialized() == 1);
    EXPECT(called_status == 100);
  }
}

static void sets(void) {
  uint32_t set, all[4];
  size_t count;
  int members[64], zero = 0, last = -1;
  float x = 1;
  const size_t one = 1;
  if (size == 1) {
    REFUSED(corro_add_process_set(&zero, 1, &set), "duplicate process set");
  } else {
    OK(corro_add_process_set(&zero, 1, &set));
    EXPECT(set == 1);
    OK(corro_process_sets(all, 4, &count));
    EXPECT(count == 2 && all[0] == 0 && all[1] == 1);
    OK(corro_process_set_ranks(0, members, 64, &count));
    EXPECT((int)count == size && members[size - 1] == size - 1);
    OK(corro_process_set_ranks(1, NULL, 0, &count));
    EXPECT(count == 1);
    corro_tensor tensor = floats("x", &one, &x, &x, 1);
    tensor.process_set = set;
    if (rank == 0) {
      OK(corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, NULL));
      EXPECT(x == 1);
    } else {
      REFUSED(corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, NULL), "not a member");
    }
    OK(corro_remove_process_set(set));
    REFUSED(corro_remove_process_set(set), "no process set");
  }
  /* Rank r has r steps of data. */
  corro_tensor tensor = floats("joined", &one, &x, &x, 1);
  for (int step = 0; step < rank; step++) {
    x = 1;
    OK(corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, NULL));
    EXPECT(x == (float)(size - 1 - step));
  }
  OK(corro_join(&last));
  EXPECT(last >= 0 && last < size);
  OK(corro_join(NULL));
}

static void records(void) {
  size_t needed, again;
  OK(corro_mark_step());
  OK(corro_log_value(1, "loss", 0.5));
  EXPECT(corro_log_value(1, NULL, 0.5) == CORRO_STATUS_USAGE);
  OK(corro_flight_record(NULL, 0, &needed));
  EXPECT(needed > 1);
  char *text = malloc(needed + 1000);
  OK(corro_flight_record(text, needed + 1000, &again));
  EXPECT(strlen(text) + 1 == again && strstr(text, "gathered") != NULL);
  OK(corro_flight_record(text, 10, &again));
  EXPECT(strlen(text) == 9);
  free(text);
}

static void stores(void) {
  corro_store store;
  float ones[4] = {1, 1, 1, 1}, value[4] = {0};
  REFUSED(corro_store_open(0, 7, 0, &store), "corro_consistency");
  REFUSED(corro_store_open(0, CORRO_CONSISTENCY_BSP, 0, NULL), "place for the store");
  REFUSED(corro_store_clock(12345), "no store 12345");

  OK(corro_store_open(0, CORRO_CONSISTENCY_BSP, 0, &store));
  const int f32 = CORRO_DTYPE_FLOAT32;
  OK(corro_store_init(store, "sum", f32, 4, 1, CORRO_RULE_SUM, 0, NULL, NULL));
  OK(corro_store_init(store, "mean", f32, 4, 1, CORRO_RULE_AVERAGE, 0, "bf16", NULL));
  OK(corro_store_init(store, "table", f32, 2, 2, CORRO_RULE_UPDATE, 1, NULL, ones));
  REFUSED(corro_store_init(store, "odd", f32, 1, 1, 9, 0, NULL, NULL), "corro_rule");
  REFUSED(corro_store_init(store, "odd", f32, 1, 1, CORRO_RULE_SUM, 0, "onebit", NULL), "int8");
  REFUSED(corro_store_set_optimizer(store, "sgd lr"), "key=number");
  OK(corro_store_set_optimizer(store, "sgd lr=0.5"));
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < 4; i++) ones[i] = (float)(rank + round);
    OK(corro_store_push(store, "sum", ones, sizeof ones, 0, (float)NAN));
    OK(corro_store_push(store, "mean", ones, sizeof ones, 1, (float)NAN));
    OK(corro_store_pull(store, "mean", value, sizeof value));
    EXPECT(value[0] == (float)(size - 1) / 2 + (float)round);
    OK(corro_store_pull(store, "sum", value, sizeof value));
    EXPECT(value[3] == (float)(size * (size - 1)) / 2 + (float)(size * round));
  }
  const uint64_t rows[2] = {1, 1};
  const float gradient[4] = {1, 0, 1, 0};
  OK(corro_store_push_rows(store, "table", rows, 2, gradient, sizeof gradient, (float)NAN));
  OK(corro_store_pull_rows(store, "table", rows, 2, value, sizeof value));
  EXPECT(value[0] == 0 && value[1] == 1 && value[2] == 0);
  const uint64_t wrong = 2;
  REFUSED(corro_store_pull_rows(store, "table", &wrong, 1, value, 8), "row 2 of \"table\"");
  OK(corro_store_barrier(store));
  OK(corro_store_close(store));
  REFUSED(corro_store_close(store), "closed already");

  OK(corro_store_open(0, CORRO_CONSISTENCY_SSP, 2, &store));
  OK(corro_store_init(store, "count", f32, 4, 1, CORRO_RULE_ADD, 0, NULL, NULL));
  for (int i = 0; i < 4; i++) ones[i] = 1;
  for (int step = 0; step < 5; step++) {
    OK(corro_store_push(store, "count", ones, sizeof ones, 0, (float)NAN));
    OK(corro_store_clock(store));
    OK(corro_store_pull(store, "count", value, sizeof value));
    EXPECT(value[0] >= (float)(step + 1));
  }
  OK(corro_store_barrier(store));
  OK(corro_store_pull(store, "count", value, sizeof value));
  EXPECT(value[0] == (float)(5 * size));
  OK(corro_store_close(store));
}

int main(void) {
  before_init();
  for (int time = 0; time < 3; time++) {
    OK(corro_init());
    OK(corro_init());
    place();
    wrong_calls();
    reductions();
    sizes_that_come_out();
    groups();
    called = 0;
    waiting();
    sets();
    stores();
    records();
    /* Under way while the job ends. */
    float x = 1;
    const size_t one = 1;
    corro_ticket ticket = 0;
    corro_tensor tensor = floats("last", &one, &x, &x, 1);
    OK(corro_barrier(0));
    if (rank != 0 && corro_allreduce(&tensor, CORRO_OP_SUM, 1, 1, &ticket) == CORRO_STATUS_OK) {
      EXPECT(corro_wait(ticket) == CORRO_STATUS_SHUTDOWN);
      EXPECT(strstr(corro_last_error(), "shut down") != NULL);
      EXPECT(strstr(corro_last_error(), "rank 0 on ") != NULL);
      EXPECT(strstr(corro_last_error(), "failed: the disk is full") != NULL);
    }
    if (rank == 0) {
      REFUSED(corro_shutdown_because(NULL), "the reason");
      OK(corro_shutdown_because("the disk is full"));
    } else {
      OK(corro_shutdown());
    }
    EXPECT(corro_is_initialized() == 0);
    if (ticket != 0) {
      EXPECT(corro_poll(ticket) == CORRO_STATUS_SHUTDOWN);
      OK(corro_free(ticket));
    }
  }
  printf("rank %d of %d: all is well\n", rank, size);
  return 0;
}
