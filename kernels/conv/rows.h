// What convolutions to few channels (conv_rows.cu, conv_wgmma_rows.cu) tell each other.
#pragma once

#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/device/tensor_map.h"

namespace convoy::cuda {

/// What a block covers: rows of outputs, positions of each, and output channels.
constexpr int rows_high = 4, rows_wide = 144, rows_channels = 32;
/// A position's, or an output channel's, 64 input channels; a tap's of all output channels.
constexpr int rows_line_bytes = 128, rows_tap_bytes = rows_channels * rows_line_bytes;
/// What a block's weights and stages may take together, and how many stages there may be, and rows of taps.
constexpr int rows_shared_bytes = 222 * 1024, most_rows_stages = 8, most_rows_taps = 8;

/// What the kernel is told. Work is cut into tiles, and into shares of their input channels.
struct Rows {
  ConvGeometry g;
  int tiles_w, tiles_h, splits;
  int64_t items;  ///< tiles of all images times shares
  int chunks;     ///< 64 input channels each
  int x_bytes;    ///< of a stage: 64 channels of a row of inputs
  int stages;
  int64_t pitch;  ///< of the outputs
  float slope;    ///< of an activation behind them, 1: none

  __host__ __device__ int64_t positions() const { return g.n * g.y[1] * g.y[2]; }
  /// Of one share's sums.
  int64_t part_bytes() const { return 4 * rows_channels * positions(); }
  /// Taps of neighbouring rows lie behind each other, with one of zeros in front of them and behind the last.
  __host__ __device__ int weight_bytes() const { return (g.kernel[2] * (g.kernel[1] + 1) + 1) * rows_tap_bytes; }
};

/// What becomes of the sums: outputs, or parts of [splits][positions][rows_channels] in f32.
struct RowsResult {
  void* y;
  const float* bias;  ///< or null
  float* parts;       ///< of several shares
};
/// Queues them and, of several shares, their sums: x in pieces of rows_wide + the kernel's reach positions, w (as
/// queue_rows_pack leaves it) in pieces of rows_channels.
void queue_wgmma_rows(DType type, const Rows& rows, const CUtensorMap& x, const CUtensorMap& w, const RowsResult& to);
/// [k][taps][c] to [taps][k][c], c in multiples of eight.
void queue_rows_pack(int k, int taps, int c, const void* w, void* packed);

}  // namespace convoy::cuda
