// The bias's gradient beside weight gradients on warpgroup products.
#pragma once

#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/wgmma.h"

namespace convoy::cuda {

/// Adds up what the `threads` multiplying threads have of `pairs` pairs of channels, a thread the pair of its number
/// modulo `pairs`, and leaves it as the block's part, channels from `first` on, of `k`. `barrier` is those threads'.
template <int pairs, int threads>
__device__ inline void leave_bias(float2 own, float2 (&shared)[threads], int thread, int barrier, int first, int k,
                                  const GradientParts& out) {
  shared[thread] = own;
  arrive_and_wait(barrier, threads);
  if (thread >= pairs || first + 2 * thread >= k) return;
  for (int other = thread + pairs; other < threads; other += pairs) own.x += shared[other].x, own.y += shared[other].y;
  float* sums = out.bias + int64_t(blockIdx.z) * out.stride + first + 2 * thread;
  sums[0] = own.x, sums[1] = own.y;
}

}  // namespace convoy::cuda
