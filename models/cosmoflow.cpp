#include "models/cosmoflow.h"

#include <algorithm>

namespace convoy {
namespace {

ValueId record_input(Tape& tape, CosmoflowNet& net, const CosmoflowConfig& c, int64_t batch, DType type,
                     Normalisation normalisation) {
  net.input = tape.input("x", TensorDesc({batch, c.size, c.size, c.size, c.channels}, type));
  switch (normalisation) {
    case Normalisation::log1p:
      return tape.emit({OpKind::log1p, CastAttrs{tape.float_type()}}, "input.log1p", {net.input});
    case Normalisation::mean:
      return tape.emit({OpKind::divide_by_mean, CastAttrs{tape.float_type()}}, "input.divide_by_mean", {net.input});
    case Normalisation::none:
      break;
  }
  return type == tape.float_type() ? net.input
                                   : tape.emit({OpKind::cast, CastAttrs{tape.float_type()}}, "input.cast", {net.input});
}

constexpr int64_t widest_first_block = 512;

/// What halves the volume behind a block.
ValueId record_pool(Tape& tape, const std::string& name, const CosmoflowConfig& c, ValueId x) {
  if (c.variant != CosmoflowVariant::lbann) return max_pool(tape, name, x, PoolAttrs{});
  const Int3 one{1, 1, 1};
  return avg_pool(tape, name, x, {.kernel = {3, 3, 3}, .pad_low = one, .pad_high = one, .count_padding = 1});
}

/// Each block halves the volume.
int64_t block_count(const CosmoflowConfig& c) {
  int64_t log2 = 0;
  while (c.size >> (log2 + 1) > 0) ++log2;
  if (c.layers < 0) fail_usage("cosmoflow: layers: expected 0 or more, found " + std::to_string(c.layers));
  if (c.layers > log2)
    fail_usage("cosmoflow: a volume of size " + std::to_string(c.size) + " cannot be halved " +
               std::to_string(c.layers) + " times");
  if (c.layers == 0 && log2 < 3)
    fail_usage("cosmoflow: expected volumes of size 8 or more for log2(size) - 2 blocks, found " +
               std::to_string(c.size));
  return c.layers > 0 ? c.layers : log2 - 2;
}

ValueId record_blocks(Tape& tape, CosmoflowNet& net, const CosmoflowConfig& c, ValueId x, Mode mode) {
  const int64_t blocks = block_count(c);
  if (c.conv_size < 1 || c.conv_size > widest_first_block)
    fail_usage("cosmoflow: conv_size: expected 1 to " + std::to_string(widest_first_block) + ", found " +
               std::to_string(c.conv_size));
  const Int3 kernel{c.kernel, c.kernel, c.kernel};
  int64_t channels = c.conv_size;
  for (int64_t i = 0; i < blocks; ++i, channels = std::min(2 * channels, std::max(c.conv_size, c.most_channels))) {
    const std::string name = "conv" + std::to_string(i + 1);
    x = conv(tape, name, x,
             {.channels = channels,
              .kernel = kernel,
              .bias = c.batch_norm ? Bias::none : Bias::zero,
              .initializer = c.initializer});
    if (c.batch_norm)
      x = batch_norm(tape, "bn" + std::to_string(i + 1), x, {.momentum = c.batch_norm_momentum, .mode = mode});
    x = leaky_relu(tape, name, x, c.slope);
    x = record_pool(tape, "pool" + std::to_string(i + 1), c, x);
  }
  const double rate = mode == Mode::training ? c.dropout : 0;
  for (const auto& [name, units] : {std::pair<std::string, int64_t>{"dense1", c.fc1_size}, {"dense2", c.fc2_size}}) {
    x = dense(tape, name, x, {.units = units, .initializer = c.initializer});
    x = leaky_relu(tape, name, x, c.slope);
    x = dropout(tape, "dropout" + name.substr(5), x, rate);
    net.hidden_dense_weights.push_back(name + ".weight");
  }
  x = dense(tape, "dense3", x, {.units = c.targets, .initializer = c.last_initializer.value_or(c.initializer)});
  return tanh(tape, "output", x, 1.2);
}

ValueId record_sc18(Tape& tape, CosmoflowNet& net, const CosmoflowConfig& c, ValueId x, Mode mode) {
  constexpr int64_t kernels[] = {3, 4, 4, 3, 3, 2, 2}, widths[] = {16, 32, 64, 128, 256, 256, 256};
  for (int i = 0; i < 7; ++i) {
    const std::string name = "conv" + std::to_string(i + 1);
    const int64_t stride = i == 3 ? 2 : 1;
    x = conv(tape, name, x,
             {.channels = widths[i],
              .kernel = {kernels[i], kernels[i], kernels[i]},
              .stride = {stride, stride, stride},
              .padding = Padding::valid,
              .bias = Bias::tenth,
              .initializer = c.initializer});
    x = leaky_relu(tape, name, x, c.slope);
    if (i < 3) x = avg_pool(tape, "pool" + std::to_string(i + 1), x, PoolAttrs{});
  }
  const double rate = mode == Mode::training ? c.dropout : 0;
  const int64_t units[] = {2048, 256, c.targets};
  for (int i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i + 1);
    x = dropout(tape, "dropout" + number, x, rate);
    x = dense(tape, "dense" + number, x, {.units = units[i], .bias = Bias::tenth, .initializer = c.initializer});
    if (i == 2) break;
    x = leaky_relu(tape, "dense" + number, x, c.slope);
    net.hidden_dense_weights.push_back("dense" + number + ".weight");
  }
  return x;
}

}  // namespace

CosmoflowConfig CosmoflowConfig::lbann() {
  CosmoflowConfig c;
  c.variant = CosmoflowVariant::lbann;
  c.conv_size = 16, c.most_channels = 256;
  c.fc1_size = 2048, c.fc2_size = 256;
  c.initializer = Initializer::he_normal, c.last_initializer = Initializer::zero;
  return c;
}

CosmoflowConfig CosmoflowConfig::sc18() {
  CosmoflowConfig c;
  c.variant = CosmoflowVariant::sc18;
  c.channels = 1;
  c.targets = 3;
  c.slope = 0.01;
  return c;
}

CosmoflowNet record_cosmoflow(Tape& tape, const CosmoflowConfig& c, int64_t batch, DType input_type,
                              Normalisation normalisation, Mode mode) {
  CosmoflowNet net;
  const ValueId x = record_input(tape, net, c, batch, input_type, normalisation);
  net.prediction =
      c.variant == CosmoflowVariant::sc18 ? record_sc18(tape, net, c, x, mode) : record_blocks(tape, net, c, x, mode);
  tape.keep(net.prediction, "prediction");
  return net;
}

}  // namespace convoy
