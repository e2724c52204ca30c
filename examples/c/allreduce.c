/* Sums a vector over all ranks, then gathers vectors of different lengths.
 *
 *     cc allreduce.c -I include -L lib -lcorro -o allreduce
 *     corro run -np 2 ./allreduce
 */

#include <corro.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int status) {
  if (status != CORRO_STATUS_OK) {
    fprintf(stderr, "corro: %s\n", corro_last_error());
    exit(1);
  }
}

int main(void) {
  int rank, size;
  check(corro_init());
  check(corro_rank(&rank));
  check(corro_size(&size));

  float data[1000];
  for (int i = 0; i < 1000; i++) data[i] = (float)(rank + i);
  const size_t length = 1000;
  const corro_tensor sum = {
      .name = "sum", .dtype = CORRO_DTYPE_FLOAT32, .dimensions = 1, .shape = &length,
      .input = data, .output = data, .output_bytes = sizeof data,
  };
  corro_ticket ticket;
  check(corro_allreduce(&sum, CORRO_OP_SUM, 1.0, 1.0, &ticket));
  /* Something else could be computed here. */
  check(corro_finish(ticket));
  for (int i = 0; i < 1000; i++) {
    if (data[i] != (float)(size * i + size * (size - 1) / 2)) return 2;
  }

  /* Nobody knows yet how much will come: the result stays with the library until the ticket is freed. */
  const size_t mine = (size_t)rank + 1;
  const corro_tensor part = {.name = "part", .dtype = CORRO_DTYPE_FLOAT32, .dimensions = 1, .shape = &mine, .input = data};
  const void *all;
  size_t bytes;
  check(corro_allgather(&part, &ticket));
  check(corro_wait(ticket));
  check(corro_result(ticket, &all, &bytes));
  if (bytes != (size_t)(size * (size + 1) / 2) * sizeof(float)) return 3;
  printf("rank %d of %d: the first sum is %g, and %zu values came\n", rank, size, ((const float *)all)[0], bytes / sizeof(float));
  check(corro_free(ticket));

  check(corro_shutdown());
  return 0;
}
