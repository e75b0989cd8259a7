// Hopper's copy engine and the barriers in shared memory that say when its copies are there (PTX ISA, "mbarrier",
// "cp.async.bulk.tensor"). Compute capability 9.0 alone; elsewhere these compile to nothing, and the kernels that use
// them refuse.
#pragma once

#include "kernels/device/tensor_map.h"
#include "kernels/device/wgmma.h"

namespace convoy::cuda {

/// A barrier of shared memory at `barrier`, 8 bytes: a phase is complete when `arrivals` have been counted and all
/// bytes that were announced have come.
__device__ inline void barrier_begin(uint32_t barrier, int arrivals) {
#if CONVOY_WGMMA
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
/// Behind the last barrier_begin, ahead of the block's next __syncthreads().
__device__ inline void barriers_begun() {
#if CONVOY_WGMMA
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void barrier_arrive(uint32_t barrier) {
#if CONVOY_WGMMA
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
/// Arrives and announces bytes.
__device__ inline void barrier_expect(uint32_t barrier, int bytes) {
#if CONVOY_WGMMA
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Waits until the phase of this parity is complete; the first one's is 0.
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
#if CONVOY_WGMMA
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
      "@done bra through; bra again; through: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

/// Two stages of shared memory that one thread of a block has filled in turns: the barriers that say which is full.
struct StagePair {
  uint64_t (&barriers)[2];  ///< of shared memory
  __device__ uint32_t full(int stage) const { return shared_address(barriers + stage); }
  /// All threads of the block call it.
  __device__ void begin() const {
    if (threadIdx.x == 0) {
      barrier_begin(full(0), 1), barrier_begin(full(1), 1);
      barriers_begun();
    }
    __syncthreads();
  }
  /// Until the stage that is filled for the `round`-th time of both is full.
  __device__ void wait(int round) const { barrier_wait(full(round & 1), round / 2 & 1); }
};

/// Copies one of ImagePieces, whose first channel and pixel are given and may lie outside, to `to`; announced to
/// `barrier` before.
__device__ inline void copy_piece(uint32_t to, const CUtensorMap& from, uint32_t barrier, int channel, int column,
                                  int row, int64_t image) {
#if CONVOY_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(static_cast<int>(image))
      : "memory");
#endif
}

}  // namespace convoy::cuda
