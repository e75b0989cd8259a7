/* Fits y = 2x + 1 on several ranks, each with data of its own, by averaged gradients.
 *   mpirun -n 3 convoy_comm_example */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dist/convoy_comm.h"

static void check(int code) {
  if (code == CONVOY_COMM_OK) return;
  fprintf(stderr, "convoy_comm: %s\n", convoy_comm_error());
  exit(code);
}

int main(void) {
  const int threads[] = {1};
  int rank, size;
  check(convoy_comm_initialise(threads, 1));
  check(convoy_comm_rank(&rank));
  check(convoy_comm_size(&size));

  /* Ranks start from different weights and agree on those of rank 0. */
  float slope = (float)rank, offset = (float)-rank;
  check(convoy_comm_broadcast(0, &slope, sizeof slope, 0));
  check(convoy_comm_broadcast(0, &offset, sizeof offset, 0));

  for (int step = 0; step < 300; ++step) {
    float gradient_slope = 0, gradient_offset = 0;
    for (int i = 0; i < 4; ++i) {
      const float x = (float)((4 * rank + i) % 7) / 7 - 0.5f, error = slope * x + offset - (2 * x + 1);
      gradient_slope += error * x / 4;
      gradient_offset += error / 4;
    }
    void* gradients[] = {&gradient_slope, &gradient_offset};
    const size_t counts[] = {1, 1};
    check(convoy_comm_average(0, gradients, counts, 2, CONVOY_COMM_F32));
    slope -= gradient_slope;
    offset -= gradient_offset;
  }
  if (rank == 0) printf("%d ranks: y = %.4f x + %.4f\n", size, slope, offset);
  const int fits = fabsf(slope - 2) < 0.01f && fabsf(offset - 1) < 0.01f;
  check(convoy_comm_finalise());
  return fits ? 0 : 1;
}
