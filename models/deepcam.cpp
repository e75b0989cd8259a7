// DeepLabv3+ over Xception as MLPerf HPC DeepCAM defines it.
#include "models/climate_nets.h"

namespace convoy {
namespace {

class DeepCam : DeepLabParts {
 public:
  DeepCam(Tape& tape, const ClimateConfig& config, Mode mode) : DeepLabParts(tape, config, mode) {}

  ValueId record(ValueId x) {
    const Shape image = t_.desc(x).shape;
    const bool fine = c_.output_stride == 8;
    if (!fine && c_.output_stride != 16)
      fail_usage("deepcam: output stride must be 16 or 8, found " + std::to_string(c_.output_stride));
    if (c_.width_divisor < 1 || c_.width_divisor > 16)
      fail_usage("deepcam: width divisor must be 1 to 16, found " + std::to_string(c_.width_divisor));

    x = norm_relu("bn1", conv(t_, "conv1", x, plain(width(32), 3, 2)));
    x = norm_relu("bn2", conv(t_, "conv2", x, plain(width(64), 3)));
    x = entry_block("block1", x, width(128), 2);
    const ValueId raw = x;
    x = relu(t_, "block1", x);
    const ValueId low = c_.low_level_relu ? x : raw;
    x = relu(t_, "block2", entry_block("block2", x, width(256), 2));
    x = relu(t_, "block3", entry_block("block3", x, width(728), fine ? 1 : 2));
    for (int i = 4; i < 20; ++i) x = middle_block("block" + std::to_string(i), x, fine ? 2 : 1);
    x = exit_block("block20", x, fine ? 2 : 1);
    for (const auto& [name, channels] :
         {std::pair<std::string, int64_t>{"3", width(1536)}, {"4", width(1536)}, {"5", width(2048)}})
      x = norm_relu("bn" + name, separable("conv" + name, x, channels, 1, fine ? 4 : 2));
    x = pyramid(x, fine ? 2 : 1);
    return decode(x, low, image);
  }

 private:
  static constexpr Initializer torch = Initializer::torch_uniform;

  int64_t width(int64_t channels) const { return channels / c_.width_divisor; }

  /// Depthwise 3x3, then 1x1; nothing between.
  ValueId separable(const std::string& name, ValueId x, int64_t channels, int64_t stride, int64_t dilation) {
    const int64_t inputs = t_.desc(x).shape.c();
    ConvOptions depthwise = plain(inputs, 3, stride, dilation);
    depthwise.groups = inputs;
    x = conv(t_, name + ".depthwise", x, depthwise);
    return conv(t_, name + ".pointwise", x, plain(channels, 1));
  }

  ValueId skip(const std::string& name, ValueId x, int64_t channels, int64_t stride) {
    return norm(name + ".skip_bn", conv(t_, name + ".skip", x, plain(channels, 1, stride)));
  }

  /// Blocks 1 to 3: the last convolution strides and has no normalisation.
  ValueId entry_block(const std::string& name, ValueId x, int64_t channels, int64_t stride) {
    ValueId y = norm_relu(name + ".bn1", separable(name + ".sep1", x, channels, 1, 1));
    y = norm(name + ".bn2", separable(name + ".sep2", y, channels, 1, 1));
    y = separable(name + ".sep3", y, channels, stride, 1);
    return add(t_, name + ".add", y, skip(name, x, channels, stride));
  }

  ValueId middle_block(const std::string& name, ValueId x, int64_t dilation) {
    const int64_t channels = t_.desc(x).shape.c();
    ValueId y = norm_relu(name + ".bn1", separable(name + ".sep1", x, channels, 1, dilation));
    y = norm_relu(name + ".bn2", separable(name + ".sep2", y, channels, 1, dilation));
    y = norm(name + ".bn3", separable(name + ".sep3", y, channels, 1, dilation));
    return relu(t_, name, add(t_, name + ".add", y, x));
  }

  ValueId exit_block(const std::string& name, ValueId x, int64_t dilation) {
    ValueId y = norm_relu(name + ".bn1", separable(name + ".sep1", x, t_.desc(x).shape.c(), 1, dilation));
    y = norm(name + ".bn2", separable(name + ".sep2", y, width(1024), 1, dilation));
    y = separable(name + ".sep3", y, width(1024), 1, 1);
    return add(t_, name + ".add", y, skip(name, x, width(1024), 1));
  }

  /// Atrous spatial pyramid pooling; the pooled branch is tiled to the actual size.
  ValueId pyramid(ValueId x, int64_t factor) {
    const Shape s = t_.desc(x).shape;
    std::vector<ValueId> branches = atrous(x, width(256), 6 * factor);
    ValueId pooled = conv(t_, "global.conv", global_avg_pool(t_, "global.pool", x), plain(width(256), 1, 1, 1, torch));
    pooled = relu(t_, "global", channel_affine(t_, "global.affine", pooled));
    branches.push_back(resize(t_, "global.tile", pooled, s.h(), s.w(), Corners::half_pixel));
    const ValueId joined = concat(t_, "aspp.concat", branches);
    return norm_relu("merge.bn", conv(t_, "merge", joined, plain(width(256), 1, 1, 1, torch)));
  }

  ValueId up(const std::string& name, ValueId x, int64_t channels) {
    return deconv(t_, name, x, double_size(channels, c_.cropping.value_or(Cropping::pytorch), Bias::none, torch));
  }

  ValueId decode(ValueId x, ValueId low, const Shape& image) {
    low = norm_relu("low_level.bn", conv(t_, "low_level", low, plain(width(48), 1, 1, 1, torch)));
    x = norm_relu("deconv1.bn", up("deconv1", x, width(256)));
    if (t_.desc(x).shape.h() * 4 < image.h()) x = norm_relu("deconv2.bn", up("deconv2", x, width(256)));
    x = concat(t_, "decoder.concat", {x, low});
    x = norm_relu("decoder1.bn", conv(t_, "decoder1", x, plain(width(256), 3, 1, 1, torch)));
    x = norm_relu("decoder2.bn", conv(t_, "decoder2", x, plain(width(256), 3, 1, 1, torch)));
    x = conv(t_, "decoder3", x, image_conv(width(256), 1, 1, 1, Bias::torch_uniform, torch));
    x = norm_relu("deconv3.bn", up("deconv3", x, width(256)));
    return up("deconv4", x, c_.classes);
  }
};

}  // namespace

ValueId record_deepcam(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode) {
  return DeepCam(tape, config, mode).record(x);
}

}  // namespace convoy
