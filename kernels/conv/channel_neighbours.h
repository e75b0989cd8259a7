// Sums of warpgroup products whose rows are channels, on their way to tensors whose channels are neighbours.
#pragma once

#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// A thread's sums are of channels g and g + 8 of its warp's sixteen; one exchange with the thread of channel g ^ 1
/// makes two neighbours of them, which start at `first`.
struct Neighbours {
  bool even;
  int first;
  __device__ explicit Neighbours(int lane) : even((lane >> 2 & 1) == 0), first(lane / 4 + (even ? 0 : 7)) {}
  /// Of a pair of 16-bit values, g in the low half, and of a pair of bytes.
  __device__ void exchange(uint32_t& pair, uint32_t& bytes) const {
    const uint32_t give = even ? pair >> 16 | (bytes & 0xff00) << 8 : (pair & 0xffff) | (bytes & 0xff) << 16;
    const uint32_t take = __shfl_xor_sync(0xffffffffu, give, 4);
    pair = even ? (pair & 0xffff) | take << 16 : (pair & 0xffff0000u) | (take & 0xffff);
    bytes = even ? (bytes & 0xff) | (take >> 8 & 0xff00) : (bytes & 0xff00) | take >> 16;
  }
  __device__ float2 exchange(float2 pair) const {
    const float take = __shfl_xor_sync(0xffffffffu, even ? pair.y : pair.x, 4);
    return even ? make_float2(pair.x, take) : make_float2(take, pair.y);
  }
};

}  // namespace convoy::cuda
