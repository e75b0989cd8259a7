// DeepLabv3+ over ResNet-50 v2 (pre-activation), output stride 8, as the Gordon Bell runs of 2018 trained it.
#include "models/climate_nets.h"

namespace convoy {
namespace {

class DeepLab : DeepLabParts {
 public:
  DeepLab(Tape& tape, const ClimateConfig& config, Mode mode) : DeepLabParts(tape, config, mode) {}

  ValueId record(const ValueId image) {
    const Shape full = t_.desc(image).shape;
    ValueId x = conv(t_, "root", image, image_conv(64, 7, 2, 1, Bias::zero, he));
    x = max_pool(t_, "root_pool", x, {.kernel = square(3), .stride = square(2), .pad_high = {0, 1, 1}});
    ValueId low = no_value;
    for (int i = 1; i <= 3; ++i) x = unit("block1.unit" + std::to_string(i), x, 64, i == 3 ? 2 : 1, 1, &low);
    for (int i = 1; i <= 4; ++i) x = unit("block2.unit" + std::to_string(i), x, 128, 1, 1, nullptr);
    for (int i = 1; i <= 6; ++i) x = unit("block3.unit" + std::to_string(i), x, 256, 1, 2, nullptr);
    for (int i = 1; i <= 3; ++i) x = unit("block4.unit" + std::to_string(i), x, 512, 1, 4, nullptr);
    x = pyramid(x);
    low = norm_relu("low_level.bn", conv(t_, "low_level", low, plain(48, 1)));
    x = c_.decoder == Decoder::bilinear ? resize_to("upsample1", x, t_.desc(low).shape) : up("deconv1", x);
    x = concat(t_, "decoder.concat", {x, low});
    x = norm_relu("decoder1.bn", conv(t_, "decoder1", x, plain(256, 3)));
    x = norm_relu("decoder2.bn", conv(t_, "decoder2", x, plain(256, 3)));
    if (c_.decoder == Decoder::bilinear) return resize_to("upsample2", logits(x), full);
    x = up("deconv3", up("deconv2", x));
    if (c_.decoder == Decoder::deconv_full) {
      const ValueId detail = tail("skip2", tail("skip1", image, 64), 128);
      x = concat(t_, "full.concat", {x, detail});
      x = tail("full2", tail("full1", x, 256), 256);
    }
    return logits(x);
  }

 private:
  /// Slim's layers draw from a normal distribution, the decoder's own ones from a uniform one.
  static constexpr Initializer he = Initializer::he_normal, uniform = Initializer::he_uniform;

  ValueId resize_to(const std::string& name, ValueId x, const Shape& s) {
    return resize(t_, name, x, s.h(), s.w(), c_.corners);
  }

  /// Pre-activated bottleneck: 1x1 to `width`, 3x3, 1x1 to four times the width. The stride sits on the 3x3; a unit
  /// that keeps its channels passes its input on, sub-sampled by a 1x1 max-pool. `low` gets the first activation.
  ValueId unit(const std::string& name, ValueId x, int64_t width, int64_t stride, int64_t dilation, ValueId* low) {
    // The record runs' x0.5 took the place of slim's batch_norm together with the ReLU that is an argument of it here.
    const ValueId active = c_.batch_norm ? norm_relu(name + ".preact", x) : norm(name + ".preact", x);
    ValueId shortcut = x;
    if (t_.desc(x).shape.c() != 4 * width)
      shortcut = conv(t_, name + ".shortcut", active, image_conv(4 * width, 1, stride, 1, Bias::zero, he));
    else if (stride > 1)
      shortcut = max_pool(t_, name + ".subsample", x, {.kernel = square(1), .stride = square(stride)});
    ValueId y = norm_relu(name + ".conv1.bn", conv(t_, name + ".conv1", active, plain(width, 1)));
    if (low) *low = y;
    y = norm_relu(name + ".conv2.bn", conv(t_, name + ".conv2", y, plain(width, 3, stride, dilation)));
    y = conv(t_, name + ".conv3", y, image_conv(4 * width, 1, 1, 1, Bias::zero, he));
    return add(t_, name + ".add", y, shortcut);
  }

  /// Atrous spatial pyramid pooling at twice the usual rates, because the stride is 8.
  ValueId pyramid(ValueId x) {
    std::vector<ValueId> branches = atrous(x, 256, 12);
    const ValueId pooled =
        norm_relu("global.bn", conv(t_, "global.conv", global_avg_pool(t_, "global.pool", x), plain(256, 1)));
    branches.push_back(resize_to("global.resize", pooled, t_.desc(x).shape));
    return norm_relu("merge.bn", conv(t_, "merge", concat(t_, "aspp.concat", branches), plain(256, 1)));
  }

  ValueId up(const std::string& name, ValueId x) {
    return linear(
        name, deconv(t_, name, x, double_size(256, c_.cropping.value_or(Cropping::tensorflow), Bias::zero, uniform)));
  }
  ValueId tail(const std::string& name, ValueId x, int64_t channels) {
    return linear(name, conv(t_, name, x, image_conv(channels, 3, 1, 1, Bias::zero, uniform)));
  }
  ValueId logits(ValueId x) { return conv(t_, "logits", x, image_conv(c_.classes, 1, 1, 1, Bias::zero, he)); }
  ValueId linear(const std::string& name, ValueId x) { return c_.decoder_relu ? relu(t_, name, x) : x; }
};

}  // namespace

ValueId record_deeplab(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode) {
  return DeepLab(tape, config, mode).record(x);
}

}  // namespace convoy
