#include "models/climate_nets.h"

#include <algorithm>

namespace convoy {

int64_t size_unit(const ClimateConfig& c) {
  if (c.model == ClimateModel::deeplab) return 8;
  if (c.model == ClimateModel::deepcam) return 16;
  // Every dense block but the bottom one is followed by a halving.
  return std::max<int64_t>(16, int64_t{1} << (std::clamp<size_t>(c.blocks.size(), 1, 16) - 1));
}

int64_t unread_parameters(const ClimateConfig& c) {
  constexpr int64_t last_unit = 2048;  // channels of deeplab's
  if (c.model == ClimateModel::deeplab) return c.batch_norm ? 2 * last_unit : 0;
  if (c.model == ClimateModel::deepcam) return 0;
  int64_t channels = c.first_filters;
  for (int64_t layers : c.blocks) channels += layers * c.growth;
  return channels * (channels + 1 + (c.batch_norm ? 2 : 0));  // of a 1x1 convolution, its bias and its norm
}

ClimateNet record_climate(Tape& tape, const ClimateConfig& c, int64_t batch, DType input_type, Mode mode) {
  const int64_t unit = size_unit(c);
  if (c.height < unit || c.width < unit || c.height % unit || c.width % unit)
    fail_usage("images of " + std::to_string(c.height) + "x" + std::to_string(c.width) +
               ": expected height and width divisible by " + std::to_string(unit));
  ClimateNet net;
  net.input = tape.input("x", TensorDesc({batch, 1, c.height, c.width, c.channels}, input_type));
  ValueId x = net.input;
  if (input_type != tape.float_type()) x = tape.emit({OpKind::cast, CastAttrs{tape.float_type()}}, "input.cast", {x});
  switch (c.model) {
    case ClimateModel::deepcam:
      net.logits = record_deepcam(tape, c, x, mode);
      break;
    case ClimateModel::deeplab:
      net.logits = record_deeplab(tape, c, x, mode);
      break;
    case ClimateModel::tiramisu:
      net.logits = record_tiramisu(tape, c, x, mode);
      break;
  }
  return net;
}

}  // namespace convoy
