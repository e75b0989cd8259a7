#include "layers/layers.h"

#include <algorithm>

#include "core/round_up.h"

namespace convoy {
namespace {

/// A uniform draw within sqrt(6/(a + b)) is Glorot's for a = fan in, b = fan out, He's for b = 0, and PyTorch's default
/// (Kaiming's with a slope of sqrt(5)) for b = 5a.
StateInit weight_init(Initializer kind, int64_t fan_in, int64_t fan_out) {
  switch (kind) {
    case Initializer::glorot_uniform:
      return {StateInit::Kind::glorot_uniform, 0, fan_in, fan_out};
    case Initializer::he_normal:
      return {StateInit::Kind::he_normal, 0, fan_in, fan_out};
    case Initializer::he_uniform:
      return {StateInit::Kind::glorot_uniform, 0, fan_in, 0};
    case Initializer::zero:
      break;
    case Initializer::torch_uniform:
      return {StateInit::Kind::glorot_uniform, 0, fan_in, 5 * fan_in};
  }
  return {};
}

StateInit bias_init(Bias bias, int64_t fan_in) {
  if (bias == Bias::torch_uniform) return weight_init(Initializer::torch_uniform, fan_in, 0);
  return {StateInit::Kind::constant, bias == Bias::tenth ? 0.1 : 0.0, 0, 0};
}

/// Padding that a convolution from `input` needs; `same` splits what is missing with the odd element at the high end.
void resolve_padding(const ConvOptions& o, const Int3& input, ConvAttrs& a) {
  for (int i = 0; i < 3; ++i) {
    if (o.padding == Padding::valid) continue;
    if (o.padding == Padding::explicit_) {
      a.pad_low[i] = o.pad_low[i], a.pad_high[i] = o.pad_high[i];
      continue;
    }
    const int64_t outputs = ceil_div(input[i], o.stride[i]);
    const int64_t total =
        std::max<int64_t>(0, (outputs - 1) * o.stride[i] + o.dilation[i] * (o.kernel[i] - 1) + 1 - input[i]);
    a.pad_low[i] = total / 2, a.pad_high[i] = total - total / 2;
  }
}

/// StateSpec::rank of a convolution's weights: a network that saw volumes sees them to its end, where they may have no
/// depth left.
int conv_rank(const Tape& tape) {
  const auto deep = [](const Value& v) { return v.kind != ValueKind::state && v.desc.shape.d() > 1; };
  return std::any_of(tape.values().begin(), tape.values().end(), deep) ? 5 : 4;
}

ConvAttrs base_attrs(const ConvOptions& o) {
  return {.stride = o.stride, .dilation = o.dilation, .groups = o.groups};
}

/// An option that the layer would not look at.
void refuse_unused(const std::string& name, const char* field, const Int3& found, const char* where) {
  if (found != Int3{0, 0, 0})
    fail_usage(name + ": " + field + " has no effect on " + where + ": expected 0,0,0, found " +
               std::to_string(found[0]) + "," + std::to_string(found[1]) + "," + std::to_string(found[2]));
}

void check(const std::string& name, const ConvOptions& o, int64_t inputs) {
  if (o.padding != Padding::explicit_) {
    const char* where = o.padding == Padding::same ? "Padding::same" : "Padding::valid";
    refuse_unused(name, "pad_low", o.pad_low, where), refuse_unused(name, "pad_high", o.pad_high, where);
  }
  for (int i = 0; i < 3; ++i)
    if (o.kernel[i] < 1 || o.stride[i] < 1 || o.dilation[i] < 1)
      fail_usage(name + ": expected kernels, strides and dilations of 1 or more, found " + std::to_string(o.kernel[i]) +
                 ", " + std::to_string(o.stride[i]) + " and " + std::to_string(o.dilation[i]) + " on axis " +
                 std::to_string(i));
  if (o.channels < 1 || o.groups < 1)
    fail_usage(name + ": expected channels and groups of 1 or more, found " + std::to_string(o.channels) + " and " +
               std::to_string(o.groups));
  if (inputs % o.groups || o.channels % o.groups)
    fail_usage(name + ": " + std::to_string(inputs) + " input and " + std::to_string(o.channels) +
               " output channels do not divide into " + std::to_string(o.groups) + " groups");
}

}  // namespace

ValueId conv(Tape& tape, const std::string& name, ValueId x, const ConvOptions& o) {
  const Shape s = tape.desc(x).shape;
  check(name, o, s.c());
  refuse_unused(name, "output_padding", o.output_padding, "a convolution that is not transposed");
  ConvAttrs a = base_attrs(o);
  resolve_padding(o, spatial(s), a);
  const int64_t taps = o.kernel[0] * o.kernel[1] * o.kernel[2], per_group = s.c() / o.groups;
  std::vector<ValueId> in{
      x, tape.parameter(name + ".weight", {o.channels, o.kernel[0], o.kernel[1], o.kernel[2], per_group},
                        weight_init(o.initializer, taps * per_group, taps * o.channels / o.groups), conv_rank(tape))};
  if (o.bias != Bias::none)
    in.push_back(tape.parameter(name + ".bias", Shape::vector(o.channels), bias_init(o.bias, taps * per_group)));
  return tape.emit({OpKind::conv_forward, a}, name + ".forward", std::move(in));
}

ValueId deconv(Tape& tape, const std::string& name, ValueId x, const ConvOptions& o) {
  const Shape s = tape.desc(x).shape;
  check(name, o, s.c());
  if (o.padding == Padding::same) refuse_unused(name, "output_padding", o.output_padding, "Padding::same");
  ConvAttrs a = base_attrs(o);
  const Int3 from = spatial(s);
  if (o.padding == Padding::same) {
    for (int i = 0; i < 3; ++i) a.result_size[i] = from[i] * o.stride[i];
    resolve_padding(o, a.result_size, a);
  } else {
    resolve_padding(o, from, a);
    for (int i = 0; i < 3; ++i)
      a.result_size[i] = (from[i] - 1) * o.stride[i] - a.pad_low[i] - a.pad_high[i] +
                         o.dilation[i] * (o.kernel[i] - 1) + 1 + o.output_padding[i];
  }
  const int64_t taps = o.kernel[0] * o.kernel[1] * o.kernel[2], per_group = o.channels / o.groups;
  const bool torch = o.initializer == Initializer::torch_uniform;
  const int64_t fan_in = taps * (torch ? per_group : s.c() / o.groups);
  std::vector<ValueId> in{x, tape.parameter(name + ".weight", {s.c(), o.kernel[0], o.kernel[1], o.kernel[2], per_group},
                                            weight_init(o.initializer, fan_in, taps * per_group), conv_rank(tape))};
  if (o.bias != Bias::none)
    in.push_back(tape.parameter(name + ".bias", Shape::vector(o.channels), bias_init(o.bias, fan_in)));
  return tape.emit({OpKind::conv_backward_data, a}, name + ".forward", std::move(in));
}

ValueId dense(Tape& tape, const std::string& name, ValueId x, const DenseOptions& o) {
  if (o.units < 1) fail_usage(name + ": expected 1 unit or more, found " + std::to_string(o.units));
  const Shape s = tape.desc(x).shape;
  const int64_t features = s.elements() / s.n();
  std::vector<ValueId> in{x, tape.parameter(name + ".weight", {o.units, 1, 1, 1, features},
                                            weight_init(o.initializer, features, o.units), 2)};
  if (o.bias != Bias::none)
    in.push_back(tape.parameter(name + ".bias", Shape::vector(o.units), bias_init(o.bias, features)));
  return tape.emit({OpKind::dense_forward, NoAttrs{}}, name + ".forward", std::move(in));
}

ValueId max_pool(Tape& tape, const std::string& name, ValueId x, const PoolAttrs& window) {
  return tape.emit({OpKind::max_pool, window}, name + ".forward", {x});
}
ValueId avg_pool(Tape& tape, const std::string& name, ValueId x, const PoolAttrs& window) {
  return tape.emit({OpKind::avg_pool, window}, name + ".forward", {x});
}
ValueId leaky_relu(Tape& tape, const std::string& name, ValueId x, double slope) {
  return tape.emit({OpKind::activation, ActivationAttrs{.slope = slope}}, name + ".activation", {x});
}
ValueId relu(Tape& tape, const std::string& name, ValueId x) {
  return leaky_relu(tape, name, x, 0);
}
ValueId tanh(Tape& tape, const std::string& name, ValueId x, double scale) {
  return tape.emit({OpKind::activation, ActivationAttrs{.function = Activation::tanh, .scale = scale}},
                   name + ".activation", {x});
}

ValueId dropout(Tape& tape, const std::string& name, ValueId x, double rate) {
  if (rate == 0) return x;
  const std::vector<Node>& nodes = tape.nodes();
  if (std::any_of(nodes.begin(), nodes.end(), [&](const Node& n) { return n.name == name + ".forward"; }))
    fail_usage("dropout: expected a name of its own, by which it draws, found " + name + " twice");
  const ValueId step = tape.state(step_state_name, step_state_desc());
  const auto stream = static_cast<int64_t>(hash_name(name) & 0xffffffffu);
  return tape.emit({OpKind::dropout, DropoutAttrs{rate, stream}}, name + ".forward", {x, step});
}

ValueId batch_norm(Tape& tape, const std::string& name, ValueId x, const BatchNormOptions& o) {
  const Shape s = tape.desc(x).shape;
  const Shape channels = Shape::vector(s.c());
  const TensorDesc statistic(channels, tape.float_type());
  const StateInit zero{}, one{StateInit::Kind::constant, 1, 0, 0};
  const ValueId gamma = tape.parameter(name + ".weight", channels, one),
                beta = tape.parameter(name + ".bias", channels, zero),
                mean = tape.state(name + ".running_mean", statistic, zero),
                variance = tape.state(name + ".running_var", statistic, one);
  const Op norm{OpKind::batch_norm, BatchNormAttrs{.epsilon = o.epsilon}};
  if (o.mode == Mode::evaluation && !o.batch_statistics)
    return tape.emit(norm, name + ".forward", {x, gamma, beta, mean, variance});
  const ValueId moments = tape.emit({OpKind::channel_moments, NoAttrs{}}, name + ".moments", {x});
  if (o.mode == Mode::training)
    tape.add({OpKind::batch_norm_update, RunningAttrs{o.momentum, s.rows()}}, name + ".update_statistics",
             {moments, mean, variance});
  return tape.emit(norm, name + ".forward", {x, gamma, beta, moments});
}

ValueId resize(Tape& tape, const std::string& name, ValueId x, int64_t height, int64_t width, Corners corners) {
  const Int3 size{tape.desc(x).shape.d(), height, width};
  return tape.emit({OpKind::resize, ResizeAttrs{corners, size}}, name + ".forward", {x});
}

ValueId channel_affine(Tape& tape, const std::string& name, ValueId x) {
  const Shape channels = Shape::vector(tape.desc(x).shape.c());
  const ValueId weight = tape.parameter(name + ".weight", channels, {StateInit::Kind::constant, 1, 0, 0}),
                bias = tape.parameter(name + ".bias", channels, {});
  return tape.emit({OpKind::channel_scale, NoAttrs{}}, name + ".forward", {x, weight, bias});
}

ValueId scale(Tape& tape, const std::string& name, ValueId x, double factor) {
  return tape.emit({OpKind::scale, ScaleAttrs{factor}}, name + ".forward", {x});
}
ValueId add(Tape& tape, const std::string& name, ValueId a, ValueId b) {
  return tape.emit({OpKind::add, NoAttrs{}}, name + ".forward", {a, b});
}
ValueId concat(Tape& tape, const std::string& name, const std::vector<ValueId>& parts) {
  return tape.emit({OpKind::concat, NoAttrs{}}, name + ".forward", parts);
}

ValueId slice(Tape& tape, const std::string& name, ValueId x, int64_t begin, int64_t size) {
  return tape.emit({OpKind::slice, SliceAttrs{begin, size}}, name + ".forward", {x});
}

ValueId global_avg_pool(Tape& tape, const std::string& name, ValueId x) {
  const Int3 all = spatial(tape.desc(x).shape);
  return avg_pool(tape, name, x, {.kernel = all, .stride = all});
}

ValueId pixel_loss(Tape& tape, const std::string& name, const PixelLossAttrs& attrs, ValueId logits, ValueId labels) {
  return tape.emit({OpKind::pixel_loss, attrs}, name + ".forward", {logits, labels});
}

ValueId regression_loss(Tape& tape, const std::string& name, Loss loss, ValueId prediction, ValueId target) {
  return tape.emit({OpKind::loss, LossAttrs{loss}}, name + ".forward", {prediction, target});
}

}  // namespace convoy
