// Layers: functions that append nodes and parameters to a tape. A layer named "conv1" owns parameters "conv1.weight"
// and "conv1.bias" and nodes "conv1.forward", ... All throw Error(usage) that names the layer: where inputs differ from
// what is said here in shape or type, options are out of range, or the layer's parameters exist already.
#pragma once

#include <string>

#include "core/tape.h"

namespace convoy {

enum class Padding : uint8_t {
  valid,     ///< none
  same,      ///< output extent = ceil(input / stride); the odd element goes to the high end (TensorFlow's rule)
  explicit_  ///< pad_low and pad_high as given
};
enum class Initializer : uint8_t {
  glorot_uniform,
  he_normal,
  he_uniform,
  zero,
  torch_uniform  ///< PyTorch's default: uniform within 1/sqrt(fan in); of a transposed convolution over its outputs
};
enum class Bias : uint8_t { none, zero, tenth, torch_uniform };  ///< 0, 0.1, or as the weights
/// evaluation normalises by running statistics (BatchNormOptions::batch_statistics: not); dropout() takes no mode:
/// models give it a rate of 0 there.
enum class Mode : uint8_t { training, evaluation };

/// Kernels, strides and dilations of 1 or more; `groups` divides the channels of input and output. Paddings that
/// `padding` does not look at are refused unless they are 0.
struct ConvOptions {
  int64_t channels = 0;  ///< of the output, 1 or more
  Int3 kernel{3, 3, 3};
  Int3 stride{1, 1, 1};
  Int3 dilation{1, 1, 1};
  Padding padding = Padding::same;
  Int3 pad_low{0, 0, 0}, pad_high{0, 0, 0};
  /// Transposed convolution without Padding::same only: extra rows at the high end, fewer than the stride.
  Int3 output_padding{0, 0, 0};
  int64_t groups = 1;
  Bias bias = Bias::zero;
  Initializer initializer = Initializer::glorot_uniform;
};

/// x (N,D,H,W,C) -> (N,D',H',W',channels) with D' = (D + pads - dilation*(KD-1) - 1) / stride + 1; weight
/// (channels, KD,KH,KW, C/groups), bias (channels). Throws where the kernel exceeds the padded extent.
ValueId conv(Tape& tape, const std::string& name, ValueId x, const ConvOptions& options);

/// Transposed convolution: x (N,D,H,W,C) -> (N, (D-1)*stride - pads + dilation*(KD-1) + 1 + output_padding, ...,
/// channels). Padding::same gives extent*stride. Weight (C, KD,KH,KW, channels/groups): that of the convolution it
/// transposes.
ValueId deconv(Tape& tape, const std::string& name, ValueId x, const ConvOptions& options);

struct DenseOptions {
  int64_t units = 0;
  Bias bias = Bias::zero;
  Initializer initializer = Initializer::glorot_uniform;
};

/// x (N,D,H,W,C) -> (N,1,1,1,units); weight (units,1,1,1,D*H*W*C) over the elements in memory order, bias (units).
ValueId dense(Tape& tape, const std::string& name, ValueId x, const DenseOptions& options);

/// The largest (max) or mean (avg) value of every window: x (N,D,H,W,C) -> (N,D',H',W',C) with
/// D' = (D + pads - kernel) / stride + 1. Throws Error(usage) where a window exceeds the padded extent.
ValueId max_pool(Tape& tape, const std::string& name, ValueId x, const PoolAttrs& window);
ValueId avg_pool(Tape& tape, const std::string& name, ValueId x, const PoolAttrs& window);
/// Element by element x where above 0, slope * x elsewhere, for slopes of 0 or more; relu: slope 0. NaN stays.
ValueId leaky_relu(Tape& tape, const std::string& name, ValueId x, double slope);
ValueId relu(Tape& tape, const std::string& name, ValueId x);
/// scale * tanh(x), element by element.
ValueId tanh(Tape& tape, const std::string& name, ValueId x, double scale);
/// Inverted dropout with a rate of 0 or more, below 1; rate 0 records nothing and returns x. `name` picks the random
/// stream.
ValueId dropout(Tape& tape, const std::string& name, ValueId x, double rate);

struct BatchNormOptions {
  double epsilon = 1e-5;  ///< above 0
  double momentum = 0.1;  ///< share of the batch in the running statistics (PyTorch's sense)
  Mode mode = Mode::training;
  bool batch_statistics = false;  ///< evaluation normalises by the batch's moments too
};

/// x (N,D,H,W,C) -> the same shape. Normalises every channel over all pixels of the batch; parameters weight and bias
/// (C), states running_mean and running_var (C). Training uses the batch's moments and updates the running ones;
/// evaluation uses those, or with batch_statistics the batch's and leaves the running ones alone.
ValueId batch_norm(Tape& tape, const std::string& name, ValueId x, const BatchNormOptions& options);

/// Bilinear resizing: x (N,D,H,W,C) -> (N,D,height,width,C), height and width of 1 or more.
ValueId resize(Tape& tape, const std::string& name, ValueId x, int64_t height, int64_t width, Corners corners);
/// x times a trainable weight plus a trainable bias per channel, which start at 1 and 0.
ValueId channel_affine(Tape& tape, const std::string& name, ValueId x);
/// factor * x
ValueId scale(Tape& tape, const std::string& name, ValueId x, double factor);
/// a + b, of one shape and type.
ValueId add(Tape& tape, const std::string& name, ValueId a, ValueId b);
/// Channels of all inputs side by side: (N,D,H,W,C1), (N,D,H,W,C2), ... of one type -> (N,D,H,W,C1 + C2 + ...).
ValueId concat(Tape& tape, const std::string& name, const std::vector<ValueId>& parts);
/// Channels [begin, begin + size): (N,D,H,W,C) -> (N,D,H,W,size). Throws where they are not within C.
ValueId slice(Tape& tape, const std::string& name, ValueId x, int64_t begin, int64_t size);
/// Mean over all pixels: (N,D,H,W,C) -> (N,1,1,1,C).
ValueId global_avg_pool(Tape& tape, const std::string& name, ValueId x);

/// Scalar loss over class logits (N,D,H,W,K), in f32 or f64, and labels u8 (N,D,H,W,1). Class weights, where given,
/// number K. A label of K or more that is not the one to ignore makes the loss NaN.
ValueId pixel_loss(Tape& tape, const std::string& name, const PixelLossAttrs& attrs, ValueId logits, ValueId labels);

/// Scalar loss over prediction and target of equal shape, in f32 or f64: the mean over samples and outputs of squared
/// or absolute differences.
ValueId regression_loss(Tape& tape, const std::string& name, Loss loss, ValueId prediction, ValueId target);

}  // namespace convoy
