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

}  // namespace convoy
