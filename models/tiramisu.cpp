// The modified Tiramisu of the Gordon Bell runs of 2018: dense blocks of few 5x5 layers with a wide growth.
#include <algorithm>

#include "models/climate_nets.h"

namespace convoy {
namespace {

class Tiramisu {
 public:
  Tiramisu(Tape& tape, const ClimateConfig& config, Mode mode) : t_(tape), c_(config), mode_(mode) {}

  ValueId record(ValueId x) {
    const size_t levels = c_.blocks.size();
    if (levels < 2 || levels > 16)
      fail_usage("tiramisu: expected 2 to 16 dense blocks, found " + std::to_string(levels));
    const int64_t least =
        std::min(*std::min_element(c_.blocks.begin(), c_.blocks.end()), std::min(c_.first_filters, c_.growth));
    if (least < 1)
      fail_usage("tiramisu: expected 1 or more layers of every block, first filters and growth, found " +
                 std::to_string(least));
    if (c_.filter < 1 || c_.filter % 2 == 0)
      fail_usage("tiramisu: expected filters of an odd extent, found " + std::to_string(c_.filter));
    x = activated("first", x, plain(c_.first_filters, c_.filter, 1));
    std::vector<ValueId> skips;
    for (size_t i = 0; i + 1 < levels; ++i) {
      const std::string number = std::to_string(i + 1);
      skips.push_back(dense_block("down" + number, x, c_.blocks[i]).all);
      x = activated("transition_down" + number, skips.back(), plain(t_.desc(skips.back()).shape.c(), 1, 2));
    }
    Stack stack = dense_block("bottom", x, c_.blocks.back());
    for (size_t i = levels - 1; i-- > 0;) {
      const std::string number = std::to_string(i + 1);
      x = deconv(t_, "transition_up" + number, stack.made,
                 double_size(t_.desc(stack.made).shape.c(), c_.cropping.value_or(Cropping::tensorflow), Bias::zero,
                             Initializer::he_uniform));
      x = concat(t_, "up" + number + ".concat", {x, skips[i]});
      stack = dense_block("up" + number, x, c_.blocks[i]);
    }
    return dropped("logits", conv(t_, "logits", stack.all, plain(c_.classes, 1, 1)));
  }

 private:
  struct Stack {
    ValueId all, made;  ///< everything, and what the block added
  };

  static ConvOptions plain(int64_t channels, int64_t kernel, int64_t stride) {
    return image_conv(channels, kernel, stride, 1, Bias::zero, Initializer::he_uniform);
  }

  ValueId dropped(const std::string& name, ValueId x) {
    return dropout(t_, name + ".dropout", x, mode_ == Mode::training ? c_.dropout : 0);
  }

  /// Convolution, batch norm where it is on, ReLU, dropout.
  ValueId activated(const std::string& name, ValueId x, const ConvOptions& options) {
    x = conv(t_, name, x, options);
    if (c_.batch_norm) x = batch_norm(t_, name + ".bn", x, batch_norm_options(c_, mode_));
    return dropped(name, relu(t_, name, x));
  }

  /// Every layer reads all maps before it and adds `growth`. Each stack starts with the one before, so that the slice
  /// pass lays all of them over one another and nothing is copied.
  Stack dense_block(const std::string& name, ValueId x, int64_t layers) {
    const int64_t before = t_.desc(x).shape.c();
    for (int64_t i = 1; i <= layers; ++i) {
      const std::string layer = name + ".layer" + std::to_string(i);
      x = concat(t_, layer + ".concat", {x, activated(layer, x, plain(c_.growth, c_.filter, 1))});
    }
    return {x, slice(t_, name + ".made", x, before, layers * c_.growth)};
  }

  Tape& t_;
  const ClimateConfig& c_;
  Mode mode_;
};

}  // namespace

ValueId record_tiramisu(Tape& tape, const ClimateConfig& config, ValueId x, Mode mode) {
  return Tiramisu(tape, config, mode).record(x);
}

}  // namespace convoy
