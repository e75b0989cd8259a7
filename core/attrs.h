// Attributes of ops: plain structs of numbers. Each lists in `visit` the fields that are printed and parsed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <variant>

#include "core/dtype.h"
#include "core/error.h"

namespace convoy {

/// Extents or offsets over depth, height, width.
using Int3 = std::array<int64_t, 3>;

struct NoAttrs {
  template <class V>
  void visit(V&&) {}
  bool operator==(const NoAttrs&) const = default;
};

/// One geometry for the three convolution passes. `result_size` holds what the inputs of a backward pass cannot tell:
/// the spatial extents of dx for backward_data, the kernel extents for backward_weights; forward ignores it.
struct ConvAttrs {
  Int3 stride{1, 1, 1};
  Int3 dilation{1, 1, 1};  ///< 1 = dense
  Int3 pad_low{0, 0, 0};
  Int3 pad_high{0, 0, 0};
  int64_t groups = 1;
  Int3 result_size{0, 0, 0};
  /// conv_activation_forward: leaky_relu of this slope behind the bias, 0 is ReLU. 1, which changes nothing, elsewhere.
  double slope = 1;
  template <class V>
  void visit(V&& v) {
    v("stride", stride), v("dilation", dilation), v("pad_low", pad_low), v("pad_high", pad_high), v("groups", groups),
        v("result_size", result_size), v("activation_slope", slope);
  }
  bool operator==(const ConvAttrs&) const = default;
};

/// Pooling window. `result_size` is the spatial extent of dx for the backward ops. Averages divide by the number of
/// positions inside the image, or by the whole window where `count_padding` is 1.
struct PoolAttrs {
  Int3 kernel{2, 2, 2};
  Int3 stride{2, 2, 2};
  Int3 pad_low{0, 0, 0};
  Int3 pad_high{0, 0, 0};
  Int3 result_size{0, 0, 0};
  int64_t count_padding = 0;
  template <class V>
  void visit(V&& v) {
    v("kernel", kernel), v("stride", stride), v("pad_low", pad_low), v("pad_high", pad_high),
        v("result_size", result_size), v("count_padding", count_padding);
  }
  bool operator==(const PoolAttrs&) const = default;
};

enum class Activation : int64_t { leaky_relu, tanh };

/// leaky_relu: scale * (x > 0 ? x : slope*x) (slope 0 is ReLU). tanh: scale*tanh(x).
struct ActivationAttrs {
  Activation function = Activation::leaky_relu;
  double slope = 0;
  double scale = 1;
  template <class V>
  void visit(V&& v) {
    v("function", function), v("slope", slope), v("scale", scale);
  }
  bool operator==(const ActivationAttrs&) const = default;
};

struct ActivationPoolAttrs {
  ActivationAttrs activation;
  PoolAttrs pool;
  template <class V>
  void visit(V&& v) {
    activation.visit(v), pool.visit(v);
  }
  bool operator==(const ActivationPoolAttrs&) const = default;
};

/// A convolution whose output went through activation and max-pool.
struct ConvPoolAttrs {
  ConvAttrs conv;
  ActivationPoolAttrs pool;
  template <class V>
  void visit(V&& v) {
    conv.visit(v);
    PoolAttrs& p = pool.pool;
    v("slope", pool.activation.slope), v("pool_kernel", p.kernel), v("pool_stride", p.stride),
        v("pool_pad_low", p.pad_low), v("pool_pad_high", p.pad_high), v("pool_result_size", p.result_size);
  }
  bool operator==(const ConvPoolAttrs&) const = default;
};

/// Inverted dropout: kept elements are scaled by 1/(1-rate). `stream` names the layer's random numbers.
struct DropoutAttrs {
  double rate = 0.5;
  int64_t stream = 0;
  template <class V>
  void visit(V&& v) {
    v("rate", rate), v("stream", stream);
  }
  bool operator==(const DropoutAttrs&) const = default;
};

enum class Loss : int64_t { mse, l1 };

struct LossAttrs {
  Loss loss = Loss::mse;
  template <class V>
  void visit(V&& v) {
    v("loss", loss);
  }
  bool operator==(const LossAttrs&) const = default;
};

enum class PixelLoss : int64_t { cross_entropy, focal };
enum class Reduction : int64_t { mean, sum };

/// One number for each of up to 8 classes; none given = all 1.
struct ClassWeights {
  std::array<double, 8> values{};
  int64_t count = 0;  ///< how many are given
  ClassWeights() = default;
  /// Throws Error(usage) for more than 8.
  ClassWeights(std::span<const double> list) : count(static_cast<int64_t>(list.size())) {
    if (list.size() > values.size())
      fail_usage("class weights: expected 8 or fewer, found " + std::to_string(list.size()));
    std::copy(list.begin(), list.end(), values.begin());
  }
  ClassWeights(std::initializer_list<double> list) : ClassWeights(std::span(list.begin(), list.size())) {}
  bool given() const { return count > 0; }
  double operator[](int64_t k) const { return !given() ? 1.0 : k < count ? values[static_cast<size_t>(k)] : 0.0; }
  bool operator==(const ClassWeights&) const = default;
};

/// Softmax cross-entropy per pixel times the weight of the pixel's class, then the mean over all pixels (not divided by
/// the sum of weights: MLPerf HPC DeepCAM) or the sum. focal multiplies by (1 - p)^gamma (Lin et al. 2017). Pixels of
/// class `ignore` count zero. Weights, where given, are one for each class.
struct PixelLossAttrs {
  PixelLoss loss = PixelLoss::cross_entropy;
  Reduction reduction = Reduction::mean;
  double gamma = 2;
  int64_t ignore = 255;
  ClassWeights weights;
  template <class V>
  void visit(V&& v) {
    v("loss", loss), v("reduction", reduction), v("gamma", gamma), v("ignore", ignore), v("weights", weights);
  }
  bool operator==(const PixelLossAttrs&) const = default;
};

/// y = (x - mean)/sqrt(variance + epsilon)*gamma + beta (Ioffe & Szegedy 2015); relu 1 clamps y at zero.
struct BatchNormAttrs {
  double epsilon = 1e-5;
  int64_t relu = 0;
  template <class V>
  void visit(V&& v) {
    v("epsilon", epsilon), v("relu", relu);
  }
  bool operator==(const BatchNormAttrs&) const = default;
};

/// running = (1 - momentum)*running + momentum*batch, the variance multiplied by count/(count - 1) where count is
/// above 1; channels whose moments are not finite keep what they have. `count` is the number of values behind one
/// channel's moments.
struct RunningAttrs {
  double momentum = 0.1;
  int64_t count = 0;
  template <class V>
  void visit(V&& v) {
    v("momentum", momentum), v("count", count);
  }
  bool operator==(const RunningAttrs&) const = default;
};

/// Where output pixel i of n reads an input of m pixels: half_pixel (i + 0.5)*m/n - 0.5 (PyTorch's default), aligned
/// i*(m - 1)/(n - 1) (align_corners), asymmetric i*m/n (TensorFlow 1's default); clamped to the image.
enum class Corners : int64_t { half_pixel, aligned, asymmetric };

/// Bilinear resizing of height and width. `result_size` is the spatial extent of the output, of dx for the backward op.
struct ResizeAttrs {
  Corners corners = Corners::half_pixel;
  Int3 result_size{0, 0, 0};
  template <class V>
  void visit(V&& v) {
    v("corners", corners), v("result_size", result_size);
  }
  bool operator==(const ResizeAttrs&) const = default;
};

struct CastAttrs {
  DType to = DType::f32;
  template <class V>
  void visit(V&& v) {
    v("to", to);
  }
  bool operator==(const CastAttrs&) const = default;
};

struct ScaleAttrs {
  double alpha = 1;
  template <class V>
  void visit(V&& v) {
    v("alpha", alpha);
  }
  bool operator==(const ScaleAttrs&) const = default;
};

/// Channels [begin, begin + size) of a wider tensor.
struct SliceAttrs {
  int64_t begin = 0, size = 0;
  template <class V>
  void visit(V&& v) {
    v("begin", begin), v("size", size);
  }
  bool operator==(const SliceAttrs&) const = default;
};

/// Keras form: v = momentum*v - lr*g; w += v. With larc > 0 each tensor's gradient is first multiplied by
/// min(1, larc*|w|/|g|/lr) (You et al. 2017, clipped), by min(1, larc_epsilon/lr) where |w| or |g| is zero, as the
/// Gordon Bell climate runs did: a bias that begins with zeros is not stuck there.
struct SgdAttrs {
  double momentum = 0.9;                        ///< from 0 to below 1
  double larc = 0, larc_epsilon = 1.0 / 16000;  ///< 0 or more; above 0
  template <class V>
  void visit(V&& v) {
    v("momentum", momentum), v("larc", larc), v("larc_epsilon", larc_epsilon);
  }
  bool operator==(const SgdAttrs&) const = default;
};

/// Kingma & Ba 2014, algorithm 1, epsilon outside the root of the bias-corrected second moment, as in PyTorch.
/// (TensorFlow and Keras add it ahead of the correction, where it counts 1/sqrt(1 - beta2^t) times as much: 32 times in
/// the first step, 1.26 times in the thousandth.) weight_decay is decoupled (AdamW, Loshchilov & Hutter 2017): w -=
/// lr*weight_decay*w. l2 is not: the gradient becomes g + l2*w. larc as in SgdAttrs, on g alone.
struct AdamAttrs {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-7;
  double weight_decay = 0, l2 = 0;
  double larc = 0, larc_epsilon = 1.0 / 16000;
  template <class V>
  void visit(V&& v) {
    v("beta1", beta1), v("beta2", beta2), v("epsilon", epsilon), v("weight_decay", weight_decay), v("l2", l2),
        v("larc", larc), v("larc_epsilon", larc_epsilon);
  }
  bool operator==(const AdamAttrs&) const = default;
};

/// You et al. 2019 (arXiv:1904.00962), algorithm 2: u = Adam's direction + weight_decay*w; w -= lr*|w|/|u|*u per tensor
/// (ratio 1 where either norm is 0; Apex leaves it out without weight decay, the paper does not). Gradients are first
/// scaled down to the norm max_grad_norm over all tensors; 0: not.
struct LambAttrs {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-6, weight_decay = 0.01, max_grad_norm = 1;
  template <class V>
  void visit(V&& v) {
    v("beta1", beta1), v("beta2", beta2), v("epsilon", epsilon), v("weight_decay", weight_decay),
        v("max_grad_norm", max_grad_norm);
  }
  bool operator==(const LambAttrs&) const = default;
};

/// So that no run of overflows drives to zero what updates divide by.
inline constexpr double smallest_loss_scale = 0x1p-14;

/// Dynamic loss scaling: multiply by `growth` after `interval` finite steps, by `backoff` after an overflow, unless
/// that were less than smallest_loss_scale.
struct LossScaleAttrs {
  double growth = 2, backoff = 0.5;
  int64_t interval = 1000;
  template <class V>
  void visit(V&& v) {
    v("growth", growth), v("backoff", backoff), v("interval", interval);
  }
  bool operator==(const LossScaleAttrs&) const = default;
};

/// An all-reduce between ranks: the mean over `ranks` of them. `id` (all_reduce_id) pairs its start with its wait;
/// `group` 0 is all ranks, 1 the ranks that share batch-norm statistics.
struct AllReduceAttrs {
  int64_t id = 0;
  int64_t group = 0;
  int64_t ranks = 1;
  DType wire = DType::f32;
  template <class V>
  void visit(V&& v) {
    v("id", id), v("group", group), v("ranks", ranks), v("wire", wire);
  }
  bool operator==(const AllReduceAttrs&) const = default;
};

using Attrs =
    std::variant<NoAttrs, ConvAttrs, PoolAttrs, ActivationAttrs, ActivationPoolAttrs, ConvPoolAttrs, DropoutAttrs,
                 LossAttrs, CastAttrs, ScaleAttrs, SliceAttrs, SgdAttrs, AdamAttrs, LossScaleAttrs, PixelLossAttrs,
                 BatchNormAttrs, RunningAttrs, ResizeAttrs, LambAttrs, AllReduceAttrs>;

}  // namespace convoy
