// Geometry of a direct convolution: which input rows and columns a row of outputs reads, for any stride, dilation,
// padding, group and tensor stride, forward and backward_data alike. Knows nothing of instruction sets.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"
#include "core/parallel.h"

namespace convoy {

/// Words of input channels, one or two to a word, that a direct convolution sums in one pass at most: more would
/// shorten the runs of positions that fit its patch.
constexpr int64_t direct_chunk_words = 384;

/// One tap along W: position j of a phase reads input column `advance * j + column`.
struct ColumnTap {
  int64_t weight;  ///< index along KW
  int64_t column;
};

/// Output columns start, start + step, ...: they all see the same taps. A strided backward_data has one phase per
/// residue of the stride, everything else has one phase.
struct ColumnPhase {
  int64_t start = 0, step = 1, count = 0;
  int64_t advance = 1;  ///< input columns from one position to the next
  int64_t first_tap = 0;
  std::vector<ColumnTap> taps{};  ///< columns ascending; taps that meet padding at every position are left out
  bool contiguous = true;         ///< columns are consecutive: taps and channels make one run
};

/// A problem of conv_forward or conv_backward_data as a sum over taps; of conv_pool_forward, whose rows come in the
/// order of the pool's windows; of conv_pool_backward_data, whose input is the map that the pool read; or
/// (conv_backward_weights, conv_pool_backward_weights) the forward geometry that its positions follow.
struct DirectShape {
  explicit DirectShape(const Problem& p);

  bool forward = true;
  bool activates = false;  ///< ends in leaky_relu without a pool
  bool unpools = false;    ///< the gradient is given behind the pool, with its arg-max
  ConvAttrs attrs;         ///< with a stride of 1 where x is a view that has it
  TensorDesc x, y;  ///< read and written; backward_weights: input and gradient; pooled: the map that is not stored; x
                    ///< may be a view of the problem's (leave_out_unread)
  Int3 window{1, 1, 1};  ///< of the pool behind a forward pass
  Int3 cells{0, 0, 0};   ///< pooled extents
  Int3 kernel;
  int64_t groups = 1, in = 0, out = 0;  ///< channels of a group that are summed over, and that result
  std::vector<ColumnPhase> phases;
  int64_t column_taps = 0;                  ///< taps of all phases
  int64_t column_low = 0, column_high = 0;  ///< over all taps: columns of position 0
  int64_t positions = 0;                    ///< the largest count of a phase

  int64_t row_taps() const { return kernel[0] * kernel[1]; }
  bool pooled() const { return window[2] > 1; }
  /// Output rows; pooled: only those that a window covers.
  int64_t rows() const {
    const int64_t d = pooled() ? cells[0] * window[0] : y.shape.d(), h = pooled() ? cells[1] * window[1] : y.shape.h();
    return y.shape.n() * d * h;
  }
  /// Rows that must stay together: those of one row of windows.
  int64_t row_group() const { return window[0] * window[1]; }
  /// Flat row (n, d, h) of the index-th row.
  int64_t row_at(int64_t index) const;
  /// Index along `axis` that output `o` reads through tap `t`, or -1 for padding and gaps.
  int64_t source(int axis, int64_t o, int64_t t) const;
  /// Whether tap `t` along `axis` meets inputs that no tap of an earlier output has met.
  bool first_to_read(int axis, int64_t t) const;
  /// Whether row tap `t` meets input rows that no earlier output row has met.
  bool meets_new_rows(int64_t t) const { return first_to_read(0, t / kernel[1]) && first_to_read(1, t % kernel[1]); }
  /// Flat input row (n, d, h) that flat output row `row` reads through row tap `t`, or -1.
  int64_t source_row(int64_t row, int64_t t) const;
  /// Element offset of a flat row in its tensor.
  static int64_t row_offset(const TensorDesc& desc, int64_t row);
  /// Positions of a phase for which the tap is inside the image; empty when it only meets padding.
  Range inside(const ColumnPhase& phase, const ColumnTap& tap) const;
  /// Lists the column taps' weights, without those that only meet padding: the order of packed weights depends on them.
  std::string kept_taps() const;
  /// Positions of a phase for which all its taps are inside the image; empty ranges begin where they end.
  Range interior(const ColumnPhase& phase) const;
  /// Columns that `count` positions of all phases read: the length of a padded row.
  int64_t columns(int64_t count) const;

 private:
  /// Forward and backward_weights of a strided 1x1x1 convolution without padding read only every stride-th position: x
  /// becomes the view of those, and the stride 1.
  void leave_out_unread();
};

/// Which input of a forward pass or data gradient is the weight, and that one.
int weight_input(const Problem& p);
const TensorDesc& weight_of(const Problem& p);

/// A 1x1x1 convolution at stride 1 (forward or backward_data) whose rows follow each other in memory is a product of
/// positions and channels: the same problem with all positions in one row. Every other problem comes back as it is.
Problem in_one_row(const Problem& p);

/// A plain convolution (any pass) with as many groups as channels on both sides: those have kernels of their own.
bool is_depthwise(const Problem& p);

/// Refuses all but 1x1 convolutions (any pass and stride) without padding, in one group.
Support needs_pointwise(const Problem& p);

/// Whether the CPU multiplies this 16-bit type faster than f32, so that widening it first must save something else.
bool multiplies_faster(DType type);
/// 3x3 convolutions of images forward, with a stride from at most 16 channels, a network's first: Winograd's transforms
/// cost more than its tiles save (f32 takes 0.5 to 0.97 of the time without them on all CPUs of bench/results).
bool strides_from_few_channels(const Problem& p);

/// Where the direct and depthwise AVX-512 kernels beat oneDNN's channels-last ones in bench/results: depthwise
/// convolutions in f32 and bf16; in f32 1x1 ones of 2048 positions and 32 output channels or more, weight gradients of
/// 3x3 kernels and of strided images, the first layers of strides_from_few_channels, transposed and strided
/// convolutions with 64 or more channels in the larger image; in any type that is not multiplied faster, dilations so
/// far beyond the image that half of the taps meet padding.
bool direct_is_measured_faster(const Problem& p);
/// The same for AVX2, but for 1x1 ones forward, or backward into more than twice their channels
/// (bench/results/*-avx2-*, epyc7003-*).
bool direct_avx2_is_measured_faster(const Problem& p);
/// The same in bf16 where products of bf16 run at half the f32 rate or less and no tiles are, so that the library loses
/// by its arithmetic (bench/results/xeon-fp16-*): 2048 positions or more, and neither stride-1 kernels of 3 or 5 taps,
/// which are Winograd's, nor input gradients (1x1: outputs) of fewer than 32 channels.
bool direct_widening_is_measured_faster(const Problem& p);
/// The same for direct_bf16, on CPUs with full-rate bf16 products: 1x1 convolutions of 2048 positions or more whose
/// input channels fit one pass, transposed convolutions and strided input gradients of 64 or more channels, strided
/// weight gradients of large images, and stride-1 convolutions so dilated that a fifth (weight gradients: three tenths)
/// of their taps or more meet padding.
bool direct_bf16_is_measured_faster(const Problem& p);
/// Outputs that few_outputs.inl takes.
constexpr int64_t few_outputs_at_most = 4;
/// Where it beats all of them: many positions of 64 channels or more, in 64 rows or more (which threads
/// share), at most four outputs.
bool few_outputs_is_measured_faster(const Problem& p);
/// Channels of a task of the 1x1 weight gradients at most; a problem needs several tasks per thread.
constexpr int64_t pointwise_task_inputs = 24, pointwise_task_outputs = 512;
/// Where kernels with panels (pointwise*.inl) beat those and oneDNN's, 1x1 convolutions all: weight gradients with 704
/// channels or more on both sides, in f32;
bool pointwise_avx512_is_measured_faster(const Problem& p);
/// with 704 inputs and 256 outputs or more, in bf16 with full-rate products;
bool pointwise_bf16_is_measured_faster(const Problem& p);
/// with AVX2, in f32: of 256 x 704 channels or more, or 256 x 256 with 384 inputs or a stride; forward, and
/// backward_data without a stride, of many positions and 32 channels or more on both sides.
bool pointwise_avx2_is_measured_faster(const Problem& p);

/// The distinct input rows of a band of output rows: every row is copied once, `slot` finds it.
class RowSet {
 public:
  /// Rows first, first + 1, ... in the shape's order. `slots` holds rows * row_taps entries, `sources` as many at most;
  /// both are the caller's.
  static int64_t collect(const DirectShape& s, int64_t first, int64_t rows, int32_t* slots, int64_t* sources);
  /// Rows of band `index` when all rows are cut into `bands` bands; row groups stay whole.
  static Range band(const DirectShape& s, int64_t index, int64_t bands);
  /// The largest number of distinct rows over the bands.
  static int64_t largest(const DirectShape& s, int64_t bands);
};

}  // namespace convoy
