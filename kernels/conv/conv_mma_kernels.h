// The CUDA functions behind conv_mma.cu, one per file so that they compile side by side.
#pragma once

#include "kernels/conv/mma_tile.h"

namespace convoy::cuda {

/// Where a convolution reads from and what becomes of its result.
struct MmaSource {
  const void* x = nullptr;                            ///< the input itself, or
  const void *gradient = nullptr, *output = nullptr;  ///< of the pooled map that it is spread from
  const uint8_t* arg = nullptr;
};
struct MmaResult {
  void* y = nullptr;
  uint8_t* arg = nullptr;  ///< given: y is the pooled map
};

/// Eight channels of a window of the pool, in registers; zeros where the window does not exist.
struct PooledEight {
  uint4 gradient, output;
  uint2 arg;
  /// `at` in elements of 16 bits.
  __device__ void load(const MmaSource& dy, bool exists, int64_t at) {
    gradient = output = make_uint4(0, 0, 0, 0), arg = make_uint2(0, 0);
    if (!exists) return;
    gradient = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(dy.gradient) + at));
    output = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(dy.output) + at));
    arg = __ldg(reinterpret_cast<const uint2*>(dy.arg + at));
  }
};

/// What becomes of the sums: stored, pooled, or left to the second pass.
enum class Ending { store, pool, part };

/// How a convolution is cut: positions across a tile (16 or 8; warpgroup products always take 8), channels of a block
/// (64 or 32; of warpgroup products 128 or 64), and shares of the input channels, whose sums then go through `parts`:
/// [splits][positions][k] in f32.
struct MmaCut {
  int columns = 16, block_k = 64, splits = 1;
  float* parts = nullptr;
};
/// Queues y = x * w, weights as [k][27][c]: channels in multiples of 32 (conv_mma_direct.cu).
void queue_mma_direct(DType type, const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w,
                      const float* bias, const MmaResult& to);
/// Its second pass, where splits are more than one: adds the parts in order and ends the convolution.
void queue_mma_finish(DType type, const MmaConv& p, const MmaCut& cut, const float* bias, const MmaResult& to);
/// [k][taps][c] to [c][taps backwards][k].
void queue_mma_turn(DType type, int k, int taps, int c, const void* w, void* turned);

/// The same on Hopper's warpgroup products: 3 x 3 x 3, multiples of 64 output channels, or 32 without a pool and in one
/// share, multiples of 16 input channels; tiles as wgmma_tile says, block_k 64 or 128 (conv_wgmma_direct.cu). `packed`
/// is what queue_wgmma_pack writes.
void queue_wgmma_direct(DType type, const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* packed,
                        const float* bias, const MmaResult& to);
constexpr int wgmma_width = 8;
/// 32 output channels are taken at two depths at once.
constexpr bool wgmma_deep(int k) {
  return k == 32;
}
/// Extent of a tile in depth, height and width.
constexpr Int3 wgmma_tile(int k, int block_k) {
  return {wgmma_deep(k) ? 8 : 4, block_k == 128 ? 8 : 16, wgmma_width};
}
/// What is packed: weights [k][27][c], or (turned) those of a convolution from k to c, [c][27][k], backwards.
struct WgmmaWeights {
  int k, c;
  bool turned;
  __host__ __device__ constexpr bool deep() const { return wgmma_deep(k); }
};
constexpr int64_t wgmma_pack_bytes(const WgmmaWeights& s) {
  return int64_t(s.deep() ? 64 * 36 : s.k * 27) * s.c * 2;
}
void queue_wgmma_pack(DType type, const WgmmaWeights& s, const void* w, void* packed);

/// Four channels to 32, 3 x 3 x 3, an even width and one position of padding in front of it, into the pool
/// (conv_mma_four.cu). `packed` is what queue_mma_four_pack writes.
void queue_mma_four(DType type, const MmaConv& p, const void* x, const void* packed, const float* bias,
                    const MmaResult& to);
constexpr int mma_four_pack_bytes = 2 * 32 * 304;
void queue_mma_four_pack(DType type, const void* w, void* packed);

/// Shared memory that a block of each asks for.
int mma_direct_shared_bytes();
int mma_weights_shared_bytes();
int mma_four_shared_bytes();

/// Where weight gradients go, [k][27][c], and those of the bias, both in f32: part i of several `i * stride` further.
struct GradientParts {
  float *weights, *bias;
  int64_t stride;
};
/// Weight gradients of a 3 x 3 x 3 convolution from the gradient of its pooled map: parts of `splits` blocks, each
/// [k][27][c] in f32 (conv_mma_weights.cu; four channels: conv_mma_four.cu).
void queue_mma_weights(DType type, const MmaConv& p, int columns, int splits, const void* x, const MmaSource& dy,
                       float* parts);
/// The bias's as well; tiles of eight positions across (conv_wgmma_weights.cu).
void queue_wgmma_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy,
                         const GradientParts& parts);
void queue_mma_four_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy, float* parts);
/// The bias's as well (conv_wgmma_four.cu).
void queue_wgmma_four_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy,
                              const GradientParts& parts);

}  // namespace convoy::cuda
