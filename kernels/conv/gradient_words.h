// What the weight gradients on warpgroup products make of a pooled gradient: words that hold a gradient and its place
// in the window, and the bias's gradient.
#pragma once

#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/wgmma.h"

namespace convoy::cuda {

/// A thread's sums of eight channels.
template <class T>
struct BiasSums {
  float sum[8] = {};
  __device__ void add(const uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = widened(*reinterpret_cast<const Two<T>*>(&pairs[i]));
      sum[2 * i] += two.x, sum[2 * i + 1] += two.y;
    }
  }
  /// Over a warpgroup whose threads' numbers modulo `slots` are their eight channels; `barrier` is the warpgroup's.
  template <int slots>
  __device__ void finish(int barrier, float* out) {
    __shared__ float warps[warpgroup / 32][slots * 8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      for (int step = 16; step >= slots; step /= 2) sum[i] += __shfl_down_sync(0xffffffffu, sum[i], step);
    if (threadIdx.x % 32 < slots)
      for (int i = 0; i < 8; ++i) warps[threadIdx.x / 32][threadIdx.x % 32 * 8 + i] = sum[i];
    arrive_and_wait(barrier, warpgroup);
    if (const int c = int(threadIdx.x); c < slots * 8) {
      float total = 0;
      for (const auto& warp : warps) total += warp[c];
      out[c] = total;
    }
  }
};

/// Writes eight words to shared memory: of each channel the gradient and, in the three bits above it, its place; what
/// is above those is undefined.
__device__ inline void store_words(uint32_t to, const uint32_t (&pairs)[4], const uint2& arg) {
  uint32_t word[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t places = (i < 2 ? arg.x : arg.y) >> 16 * (i & 1);
    word[2 * i] = __byte_perm(pairs[i], places, 0x5410), word[2 * i + 1] = __byte_perm(pairs[i], places, 0x6532);
  }
  store_16(to, make_uint4(word[0], word[1], word[2], word[3]));
  store_16(to + 16, make_uint4(word[4], word[5], word[6], word[7]));
}

/// The warpgroup that brings tiles: `producer` begins to read a tile's windows (foresee) a tile before it fills the
/// tile's stage (bring).
template <class Slots, class Producer>
__device__ inline void produce_tiles(Producer& producer, int begin, int end, uint32_t ring, int stage_bytes,
                                     int threads) {
  int slot = 0;
  producer.foresee(begin);
  for (int tile = begin; tile < end; ++tile, slot = Slots::after(slot)) {
    if (tile - begin >= Slots::count) arrive_and_wait(Slots::empty(slot), threads);
    producer.bring(tile, ring + static_cast<uint32_t>(slot * stage_bytes));
    commit_copies();
    if (tile + 1 < end) producer.foresee(tile + 1);
    if (tile == begin) continue;
    wait_copies<1>();
    show_to_products();
    arrive(Slots::full(Slots::before(slot)), threads);
  }
  wait_copies<0>();
  show_to_products();
  arrive(Slots::full(Slots::before(slot)), threads);
}

}  // namespace convoy::cuda
