/* A C program outside the tree that averages over ranks, or alone. */
#include <stdio.h>

#include "dist/convoy_comm.h"

int main(void) {
  const int threads = 1;
  float value = 3;
  void* tensors[] = {&value};
  const size_t counts[] = {1};
  int code = convoy_comm_initialise(&threads, 1);
  if (!code) code = convoy_comm_average(0, tensors, counts, 1, CONVOY_COMM_F32);
  if (!code) code = convoy_comm_finalise();
  if (code) fprintf(stderr, "%s\n", convoy_comm_error());
  return code ? code : value != 3;
}
