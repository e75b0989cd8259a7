// The three networks behind record_climate, and the pieces they share.
#pragma once

#include "models/climate.h"

namespace convoy {

/// Each maps images (N,1,H,W,C) to logits (N,1,H,W,classes).
ValueId record_deepcam(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode);
ValueId record_deeplab(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode);
ValueId record_tiramisu(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode);

/// A square kernel, stride or dilation of an image.
inline Int3 square(int64_t n) {
  return {1, n, n};
}

/// Options of an image convolution; padding keeps the extent up to the stride and is the same at both ends.
inline ConvOptions image_conv(int64_t channels, int64_t kernel, int64_t stride, int64_t dilation, Bias bias,
                              Initializer initializer) {
  const int64_t pad = dilation * (kernel - 1) / 2;
  return {.channels = channels,
          .kernel = square(kernel),
          .stride = square(stride),
          .dilation = square(dilation),
          .padding = Padding::explicit_,
          .pad_low = {0, pad, pad},
          .pad_high = {0, pad, pad},
          .bias = bias,
          .initializer = initializer};
}

/// A transposed 3x3 convolution to twice the extent.
inline ConvOptions double_size(int64_t channels, Cropping cropping, Bias bias, Initializer initializer) {
  ConvOptions o = image_conv(channels, 3, 2, 1, bias, initializer);
  if (cropping == Cropping::pytorch)
    o.output_padding = {0, 1, 1};
  else
    o.padding = Padding::same, o.pad_low = o.pad_high = {0, 0, 0};
  return o;
}

/// tf.layers, of which the Tiramisu is made, adds 1e-3 to the variance; slim's ResNet and PyTorch 1e-5.
inline BatchNormOptions batch_norm_options(const ClimateConfig& c, Mode mode) {
  return {.epsilon = c.model == ClimateModel::tiramisu ? 1e-3 : 1e-5,
          .momentum = c.batch_norm_momentum,
          .mode = mode,
          .batch_statistics = c.batch_statistics};
}

/// What both DeepLabs are made of.
class DeepLabParts {
 protected:
  DeepLabParts(Tape& tape, const ClimateConfig& config, Mode mode) : t_(tape), c_(config), mode_(mode) {}

  /// Ahead of a normalisation.
  static ConvOptions plain(int64_t channels, int64_t kernel, int64_t stride = 1, int64_t dilation = 1,
                           Initializer initializer = Initializer::he_normal) {
    return image_conv(channels, kernel, stride, dilation, Bias::none, initializer);
  }
  /// ClimateConfig::batch_norm says by what.
  ValueId norm(const std::string& name, ValueId x) {
    const bool by_batch = c_.batch_norm || c_.model == ClimateModel::deepcam;
    return by_batch ? batch_norm(t_, name, x, batch_norm_options(c_, mode_)) : scale(t_, name, x, 0.5);
  }
  ValueId norm_relu(const std::string& name, ValueId x) { return relu(t_, name, norm(name, x)); }

  /// Branches of an atrous spatial pyramid: 1x1, then 3x3 dilated by `rate` and by two and three times that.
  std::vector<ValueId> atrous(ValueId x, int64_t channels, int64_t rate) {
    std::vector<ValueId> branches{norm_relu("aspp1.bn", conv(t_, "aspp1", x, plain(channels, 1)))};
    for (int64_t i = 1; i <= 3; ++i) {
      const std::string name = "aspp" + std::to_string(i + 1);
      branches.push_back(norm_relu(name + ".bn", conv(t_, name, x, plain(channels, 3, 1, rate * i))));
    }
    return branches;
  }

  Tape& t_;
  const ClimateConfig& c_;
  Mode mode_;
};

}  // namespace convoy
