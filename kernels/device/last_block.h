// The second half of a sum that several blocks share, in the same launch: blocks that get there last add up what others
// have left, in a fixed order.
#pragma once

#include "kernels/device/cuda.h"

namespace convoy::cuda {

#ifdef __CUDACC__
/// How many blocks of a group are through; at zero again when all are, so that launches behind each other in one queue
/// share them.
constexpr int most_groups = 1 << 14;
static __device__ unsigned blocks_through[most_groups];

/// Whether the calling block is the last of the `blocks` of its group to get here: what the others wrote before is seen
/// then, through __ldcg. All threads of the block call it.
__device__ inline bool last_block(int group, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0)
    last = atomicInc(blocks_through + group, unsigned(blocks - 1)) == unsigned(blocks - 1);
  __syncthreads();
  __threadfence();
  return last;
}

/// Adds up what the gridDim.y blocks of a column have left, row blockIdx.y of `rows` each, `pitch` numbers apart: of
/// the `count` numbers at column(i). One block gets them all, as use(i, sum), and true; the others are through. By
/// groups of 16 rows first, since one block alone would read many for longer than it takes to make them. All threads of
/// the block call it, `threads` of them.
template <int threads, class Number, class Column, class Use>
__device__ bool add_rows(Number* rows, int64_t pitch, int count, const Column& column, const Use& use) {
  constexpr int group = 16;
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x), all = int(gridDim.y);
  const int own = int(blockIdx.y) / group, groups = (all + group - 1) / group;
  const auto sum = [&](int i, int first, int step, int end) {
    Number sum = 0;
#pragma unroll 16
    for (int row = first; row < end; row += step) sum += __ldcg(rows + row * pitch + column(i));
    return sum;
  };
  const int first = own * group, end = min(first + group, all);
  if (!last_block(int(blockIdx.x + (own + 1) * gridDim.x), end - first)) return false;
  if (groups == 1) {
    for (int i = thread; i < count; i += threads) use(i, sum(i, 0, 1, all));
    return true;
  }
  for (int i = thread; i < count; i += threads) rows[first * pitch + column(i)] = sum(i, first, 1, end);
  if (!last_block(int(blockIdx.x), groups)) return false;
  for (int i = thread; i < count; i += threads) use(i, sum(i, 0, group, all));
  return true;
}

/// The sum of what the `threads` threads of a block have, on all of them.
template <int threads>
__device__ double sum_of_block(double v) {
  __shared__ double lanes[threads];
  lanes[threadIdx.x] = v;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
  }
  __syncthreads();
  return lanes[0];
}

/// *out = factor * the sum of what all threads of a launch have: of one column of blocks, gridDim.y parts.
template <int threads>
__device__ void leave_sum(double v, double* parts, double factor, float* out) {
  v = sum_of_block<threads>(v);
  if (threadIdx.x == 0) parts[blockIdx.y] = v;
  add_rows<threads>(
      parts, 1, 1, [](int) { return 0; }, [&](int, double sum) { *out = float(factor * sum); });
}
#endif

}  // namespace convoy::cuda
