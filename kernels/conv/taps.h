// What the weight gradients of neighbouring taps (conv_taps.cu, conv_wgmma_taps.cu) tell each other.
#pragma once

#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/tensor_map.h"

namespace convoy::cuda {

/// Which taps and channels a block has: so many of each axis, and how many such blocks there are.
struct TapsCut {
  int kh, kw, c64, blocks_kh, blocks_kw, blocks_c64;
  int blocks() const { return blocks_kh * blocks_kw * blocks_c64; }
};

/// Which columns of inputs a tap of a row reads: output column i reads column i + shift of all of them, or, with a
/// stride of 2, of the even (parity 0) or odd ones.
struct TapColumns {
  int parity, shift;
  __host__ __device__ TapColumns(const ConvGeometry& g, int kw) {
    const int at = kw * g.dilation[2] - g.pad[2];
    parity = g.stride[2] == 2 ? at & 1 : 0, shift = (at - parity) / g.stride[2];
  }
};

/// What the kernel is told.
struct Taps {
  ConvGeometry g;
  TapsCut cut;
  int lattices;        ///< 2 where a row of taps reads even and odd columns, copied one behind the other
  int columns;         ///< of a row of weights: taps times input channels
  int chunk, across;   ///< positions of a stage, and how many such a row of outputs is
  int chunks;          ///< of all rows
  int halo;            ///< positions of input that a row of taps sees beyond its first one's
  int x_bytes, bytes;  ///< of a stage: 64 channels of a row of inputs, of one of its lattices; all
  int stages;
};

/// The kernels there are: output channels of a block, and units of each of its two warpgroups.
struct TapsKind {
  int wide, each;
};
constexpr TapsKind taps_kinds[] = {{128, 3}, {128, 1}, {64, 5}, {32, 5}};
/// A stage's rows of 128 bytes are turned by eights; what stages may take together, and how many there may be.
constexpr int taps_row_bytes = 128, taps_turn_bytes = 8 * taps_row_bytes, taps_shared_bytes = 222 * 1024,
              most_taps_stages = 8;

/// Queues the sums of `splits` shares of the chunks: x, and with a stride of 2 its even and its odd columns, in pieces
/// of `chunk + halo` positions, dy of `chunk`.
void queue_wgmma_taps(DType type, const TapsKind& kind, const Taps& taps, int splits, const CUtensorMap (&x)[2],
                      const CUtensorMap& dy, const GradientParts& out);

}  // namespace convoy::cuda
