// Convolution: forward, backward_data, backward_weights. A transposed convolution is backward_data used forward.
#include "core/backward.h"
#include "core/ops/families.h"
#include "core/passes/fuse.h"

namespace convoy {
namespace {

const char* axis_name[3] = {"depth", "height", "width"};

/// Output extent of a convolution along one axis: floor((in + pads - (dilation*(k-1)+1)) / stride) + 1.
int64_t conv_extent(const Op& op, int axis, int64_t in, int64_t kernel) {
  const auto& a = op.as<ConvAttrs>();
  const int64_t reach = a.dilation[axis] * (kernel - 1) + 1;
  const int64_t room = in + a.pad_low[axis] + a.pad_high[axis] - reach;
  if (room < 0)
    fail_op(op, std::string("kernel reaches over ") + std::to_string(reach) + " positions in " + axis_name[axis] +
                    ", the padded input has " + std::to_string(in + a.pad_low[axis] + a.pad_high[axis]));
  return room / a.stride[axis] + 1;
}

void check_conv_attrs(const Op& op) {
  const auto& a = op.as<ConvAttrs>();
  for (int i = 0; i < 3; ++i)
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.pad_low[i] < 0 || a.pad_high[i] < 0)
      fail_op(op, "expected strides and dilations of 1 or more and paddings of 0 or more, found " +
                      text_of("stride", a.stride) + ", " + text_of("dilation", a.dilation) + ", " +
                      text_of("pad_low", a.pad_low) + ", " + text_of("pad_high", a.pad_high));
  if (a.groups < 1) fail_op(op, "groups must be at least 1, found " + std::to_string(a.groups));
  check_slope(op, a.slope);
  if (a.slope != 1 && op.kind != OpKind::conv_activation_forward)
    fail_op(op, "ends in no activation: expected activation_slope 1, found " + std::to_string(a.slope));
}

/// Inputs: x, weights, optional bias.
std::vector<TensorDesc> infer_conv_forward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 3);
  check_conv_attrs(op);
  check_same_float(op, in.first(2));
  const auto& a = op.as<ConvAttrs>();
  const Shape &x = in[0].shape, &w = in[1].shape;
  if (x.c() != w.c() * a.groups)
    fail_op(op, "input has " + std::to_string(x.c()) + " channels, weights expect " + std::to_string(w.c() * a.groups));
  if (w.n() % a.groups)
    fail_op(op, std::to_string(w.n()) + " output channels do not divide into " + std::to_string(a.groups) + " groups");
  if (in.size() == 3) check_bias(op, in[2], in[0], w.n());
  return {TensorDesc({x.n(), conv_extent(op, 0, x.d(), w.d()), conv_extent(op, 1, x.h(), w.h()),
                      conv_extent(op, 2, x.w(), w.w()), w.n()},
                     in[0].dtype)};
}

/// Inputs: gradient, weights, optional bias (as the forward pass of a transposed convolution).
std::vector<TensorDesc> infer_conv_backward_data(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 3);
  check_conv_attrs(op);
  check_same_float(op, in.first(2));
  const auto& a = op.as<ConvAttrs>();
  const Shape &y = in[0].shape, &w = in[1].shape;
  if (y.c() != w.n())
    fail_op(op, "gradient has " + std::to_string(y.c()) + " channels, weights expect " + std::to_string(w.n()));
  if (y.c() % a.groups)
    fail_op(op, std::to_string(y.c()) + " channels do not divide into " + std::to_string(a.groups) + " groups");
  check_result_size(op, a.result_size);
  for (int i = 0; i < 3; ++i) {
    const int64_t expected = conv_extent(op, i, a.result_size[i], spatial(w)[i]);
    if (expected != spatial(y)[i])
      fail_op(op, std::string("an input of ") + axis_name[i] + " " + std::to_string(a.result_size[i]) + " gives " +
                      std::to_string(expected) + " outputs, the gradient has " + std::to_string(spatial(y)[i]));
  }
  const int64_t channels = w.c() * a.groups;
  if (in.size() == 3) check_bias(op, in[2], in[0], channels);
  return {TensorDesc({y.n(), a.result_size[0], a.result_size[1], a.result_size[2], channels}, in[0].dtype)};
}

/// Inputs: gradient, weights and what the convolution's result is added to.
std::vector<TensorDesc> infer_conv_backward_data_add(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  const TensorDesc sum = infer_conv_backward_data(op, in.first(2))[0];
  if (in[2].shape != sum.shape || in[2].dtype != sum.dtype)
    fail_op(op, "adds " + sum.str() + " to an input of its own shape and type, found " + in[2].str());
  return {sum};
}

/// Inputs: x, gradient. Outputs: gradients of the weights and of the bias, in the type that sums have.
std::vector<TensorDesc> infer_conv_backward_weights(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_conv_attrs(op);
  check_same_float(op, in);
  const auto& a = op.as<ConvAttrs>();
  const Shape &x = in[0].shape, &y = in[1].shape;
  if (x.n() != y.n()) fail_op(op, "input has batch " + std::to_string(x.n()) + ", gradient " + std::to_string(y.n()));
  if (x.c() % a.groups || y.c() % a.groups)
    fail_op(op, std::to_string(x.c()) + " and " + std::to_string(y.c()) + " channels do not divide into " +
                    std::to_string(a.groups) + " groups");
  check_result_size(op, a.result_size);
  for (int i = 0; i < 3; ++i) {
    const int64_t expected = conv_extent(op, i, spatial(x)[i], a.result_size[i]);
    if (expected != spatial(y)[i])
      fail_op(op, std::string("input and kernel give ") + std::to_string(expected) + " outputs in " + axis_name[i] +
                      ", the gradient has " + std::to_string(spatial(y)[i]));
  }
  const DType type = accumulation_type(in[0].dtype);
  return {TensorDesc({y.c(), a.result_size[0], a.result_size[1], a.result_size[2], x.c() / a.groups}, type),
          TensorDesc(Shape::vector(y.c()), type)};
}

/// 2 per multiply-add of the dense definition; the same number for all three passes.
int64_t dense_flops(const Shape& y, const Shape& w) {
  return 2 * y.rows() * w.elements();
}

int64_t flops_conv_forward(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  return dense_flops(out[0].shape, in[1].shape);
}
int64_t flops_conv_backward_data(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return dense_flops(in[0].shape, in[1].shape);
}
int64_t flops_conv_backward_weights(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  return dense_flops(in[1].shape, out[0].shape);
}

ConvAttrs with_result(const Op& op, const Int3& size) {
  ConvAttrs a = op.as<ConvAttrs>();
  a.result_size = size;
  return a;
}

void gradient_conv_forward(GradientContext& g) {
  const ValueId x = g.in(0), w = g.in(1), dy = g.out_gradient(0);
  const bool bias = g.inputs() == 3 && g.needs(2);
  if (g.needs(1) || bias) {
    const auto grads = g.emit({OpKind::conv_backward_weights, with_result(g.op(), spatial(g.desc(w).shape))},
                              "backward_weights", {x, dy});
    if (g.needs(1)) g.add(1, grads[0]);
    if (bias) g.add(2, grads[1]);
  }
  if (g.needs(0))
    g.add(0, g.emit({OpKind::conv_backward_data, with_result(g.op(), spatial(g.desc(x).shape))}, "backward_data",
                    {dy, w})[0]);
}

/// Of y = backward_data(x, w): dx = forward(dy, w), dw = backward_weights(input dy, gradient x).
void gradient_conv_backward_data(GradientContext& g) {
  const ValueId x = g.in(0), w = g.in(1), dy = g.out_gradient(0);
  if (g.needs(1))
    g.add(1, g.emit({OpKind::conv_backward_weights, with_result(g.op(), spatial(g.desc(w).shape))}, "backward_weights",
                    {dy, x})[0]);
  if (g.inputs() == 3 && g.needs(2)) g.add(2, g.emit({OpKind::channel_sum, NoAttrs{}}, "backward_bias", {dy})[0]);
  if (g.needs(0)) g.add(0, g.emit({OpKind::conv_forward, with_result(g.op(), {0, 0, 0})}, "backward_data", {dy, w})[0]);
}

void lower_backward_data_add(LoweringContext& l) {
  const ValueId gradient = l.emit({OpKind::conv_backward_data, l.op().attrs}, "", {l.in(0), l.in(1)});
  l.emit_final({OpKind::add, NoAttrs{}}, "add", {l.in(2), gradient});
}

Op pool_op(const Op& op) {
  return {OpKind::activation_max_pool, op.as<ConvPoolAttrs>().pool};
}
Op conv_op(const Op& op) {
  return {OpKind::conv_forward, op.as<ConvPoolAttrs>().conv};
}

/// The text of these ops, by which plans tell problems apart, knows no other activation.
void check_leaky_relu(const Op& op) {
  const ActivationAttrs& a = op.as<ConvPoolAttrs>().pool.activation;
  if (a.function != Activation::leaky_relu || a.scale != 1)
    fail_op(op, "expected a leaky_relu without a scale ahead of the pool, found " + to_text({OpKind::activation, a}));
}

/// Inputs: x, weights and, where the convolution has one, a bias. Outputs: pooled map and arg-max.
std::vector<TensorDesc> infer_pool_forward(const Op& op, std::span<const TensorDesc> in) {
  check_leaky_relu(op);
  return infer(pool_op(op), infer(conv_op(op), in));
}

void lower_activation_forward(LoweringContext& l) {
  auto attrs = l.op().as<ConvAttrs>();
  const ActivationAttrs activation{.slope = attrs.slope};
  attrs.slope = 1;
  const ValueId y = l.emit({OpKind::conv_forward, attrs}, "", l.inputs());
  l.emit_final({OpKind::activation, activation}, "activation", {y});
}

int64_t flops_pool_forward(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return dense_flops(infer(conv_op(op), in)[0].shape, in[1].shape);
}

void lower_pool_forward(LoweringContext& l) {
  const ValueId y = l.emit(conv_op(l.op()), "", l.inputs());
  l.emit_final(pool_op(l.op()), "pool", {y});
}

/// The plain ops that conv_pool_backward_weights stands for.
Op unpool_op(const Op& op) {
  return {OpKind::activation_max_pool_backward, op.as<ConvPoolAttrs>().pool};
}
Op weights_op(const Op& op) {
  return {OpKind::conv_backward_weights, op.as<ConvPoolAttrs>().conv};
}

/// Inputs: x, gradient of the pooled map, pooled map, arg-max.
std::vector<TensorDesc> infer_pool_weights(const Op& op, std::span<const TensorDesc> in) {
  check_leaky_relu(op);
  check_inputs(op, in, 4, 4);
  const std::vector<TensorDesc> weights_in{in[0], infer(unpool_op(op), in.subspan(1))[0]};
  return infer(weights_op(op), weights_in);
}

int64_t flops_pool_weights(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  return dense_flops(infer(unpool_op(op), in.subspan(1))[0].shape, out[0].shape);
}

void lower_pool_weights(LoweringContext& l) {
  const ValueId gradient = l.emit(unpool_op(l.op()), "unpool", {l.in(1), l.in(2), l.in(3)});
  l.emit_final(weights_op(l.op()), "", {l.in(0), gradient});
}

/// Inputs: gradient of the pooled map, pooled map, arg-max, weights.
std::vector<TensorDesc> infer_pool_data(const Op& op, std::span<const TensorDesc> in) {
  check_leaky_relu(op);
  check_inputs(op, in, 4, 4);
  const std::vector<TensorDesc> data_in{infer(unpool_op(op), in.first(3))[0], in[3]};
  return infer({OpKind::conv_backward_data, op.as<ConvPoolAttrs>().conv}, data_in);
}

int64_t flops_pool_data(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return dense_flops(infer(unpool_op(op), in.first(3))[0].shape, in[3].shape);
}

void lower_pool_data(LoweringContext& l) {
  const ValueId gradient = l.emit(unpool_op(l.op()), "unpool", {l.in(0), l.in(1), l.in(2)});
  l.emit_final({OpKind::conv_backward_data, l.op().as<ConvPoolAttrs>().conv}, "", {gradient, l.in(3)});
}

bool special_pool_data(const Op& op, int index, std::span<const TensorDesc> in, const Tensor& t,
                       const PhiloxStream& random) {
  return op_def(OpKind::activation_max_pool_backward).special_input(unpool_op(op), index, in, t, random);
}

bool special_pool_weights(const Op& op, int index, std::span<const TensorDesc> in, const Tensor& t,
                          const PhiloxStream& random) {
  return op_def(OpKind::activation_max_pool_backward).special_input(unpool_op(op), index - 1, in.subspan(1), t, random);
}

}  // namespace

std::vector<OpDef> conv_ops() {
  return {{.kind = OpKind::conv_forward,
           .family = OpFamily::convolution,
           .name = "conv_forward",
           .default_attrs = ConvAttrs{},
           .infer = infer_conv_forward,
           .gradient = gradient_conv_forward,
           .flops = flops_conv_forward},
          {.kind = OpKind::conv_backward_data,
           .family = OpFamily::convolution,
           .name = "conv_backward_data",
           .default_attrs = ConvAttrs{},
           .infer = infer_conv_backward_data,
           .gradient = gradient_conv_backward_data,
           .flops = flops_conv_backward_data},
          {.kind = OpKind::conv_backward_data_add,
           .family = OpFamily::convolution,
           .name = "conv_backward_data_add",
           .default_attrs = ConvAttrs{},
           .infer = infer_conv_backward_data_add,
           .flops = flops_conv_backward_data,
           .lower = lower_backward_data_add},
          {.kind = OpKind::conv_backward_weights,
           .family = OpFamily::convolution,
           .name = "conv_backward_weights",
           .default_attrs = ConvAttrs{},
           .infer = infer_conv_backward_weights,
           .flops = flops_conv_backward_weights},
          {.kind = OpKind::conv_activation_forward,
           .family = OpFamily::convolution,
           .name = "conv_activation_forward",
           .default_attrs = ConvAttrs{},
           .infer = infer_conv_forward,
           .flops = flops_conv_forward,
           .lower = lower_activation_forward},
          {.kind = OpKind::conv_pool_forward,
           .family = OpFamily::convolution,
           .name = "conv_pool_forward",
           .default_attrs = ConvPoolAttrs{},
           .infer = infer_pool_forward,
           .flops = flops_pool_forward,
           .lower = lower_pool_forward},
          {.kind = OpKind::conv_pool_backward_data,
           .family = OpFamily::convolution,
           .name = "conv_pool_backward_data",
           .default_attrs = ConvPoolAttrs{},
           .infer = infer_pool_data,
           .flops = flops_pool_data,
           .lower = lower_pool_data,
           .special_input = special_pool_data},
          {.kind = OpKind::conv_pool_backward_weights,
           .family = OpFamily::convolution,
           .name = "conv_pool_backward_weights",
           .default_attrs = ConvPoolAttrs{},
           .infer = infer_pool_weights,
           .flops = flops_pool_weights,
           .lower = lower_pool_weights,
           .special_input = special_pool_weights}};
}

}  // namespace convoy
