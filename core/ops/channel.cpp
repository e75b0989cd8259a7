// Ops along the channel axis: concatenation, slices, bias gradients. The slice pass turns most copies here into views.
#include "core/backward.h"
#include "core/ops/families.h"

namespace convoy {
namespace {

std::vector<TensorDesc> infer_concat(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, SIZE_MAX);
  check_same_float(op, in);
  Shape y = in[0].shape;
  for (size_t i = 1; i < in.size(); ++i) {
    Shape expected = in[i].shape;
    expected[4] = in[0].shape.c();
    if (!(expected == in[0].shape))
      fail_op(op, "input " + std::to_string(i) + " is " + in[i].shape.str() + ", expected the extents of " +
                      in[0].shape.str());
    y[4] += in[i].shape.c();
  }
  return {TensorDesc(y, in[0].dtype)};
}

void gradient_concat(GradientContext& g) {
  int64_t begin = 0;
  for (size_t i = 0; i < g.inputs(); ++i) {
    const int64_t size = g.desc(g.in(i)).shape.c();
    if (g.needs(i))
      g.add(i, g.emit({OpKind::slice, SliceAttrs{begin, size}}, "slice_gradient", {g.out_gradient(0)})[0]);
    begin += size;
  }
}

std::vector<TensorDesc> infer_slice(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  const auto& a = op.as<SliceAttrs>();
  Shape y = in[0].shape;
  if (a.begin < 0 || a.size < 1 || a.begin + a.size > y.c())
    fail_op(op, "channels " + std::to_string(a.begin) + " to " + std::to_string(a.begin + a.size) + " of " +
                    std::to_string(y.c()));
  y[4] = a.size;
  return {TensorDesc(y, in[0].dtype)};
}

void gradient_slice(GradientContext& g) {
  const auto& a = g.op().as<SliceAttrs>();
  g.add(0, g.emit({OpKind::pad_channels, SliceAttrs{a.begin, g.desc(g.in(0)).shape.c()}}, "pad_gradient",
                  {g.out_gradient(0)})[0]);
}

/// Zeros around the input: `begin` channels before it, `size` channels in all.
std::vector<TensorDesc> infer_pad(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  const auto& a = op.as<SliceAttrs>();
  Shape y = in[0].shape;
  if (a.begin < 0 || a.begin + y.c() > a.size)
    fail_op(op,
            std::to_string(y.c()) + " channels from " + std::to_string(a.begin) + " exceed " + std::to_string(a.size));
  y[4] = a.size;
  return {TensorDesc(y, in[0].dtype)};
}

void gradient_pad(GradientContext& g) {
  const auto& a = g.op().as<SliceAttrs>();
  g.add(0, g.emit({OpKind::slice, SliceAttrs{a.begin, g.desc(g.in(0)).shape.c()}}, "slice_gradient",
                  {g.out_gradient(0)})[0]);
}

std::vector<TensorDesc> infer_channel_sum(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {TensorDesc(Shape::vector(in[0].shape.c()), accumulation_type(in[0].dtype))};
}

/// Inputs: a, b. Output c: the sum over pixels of a*b.
std::vector<TensorDesc> infer_dot(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in);
  check_same_shape(op, in);
  return {TensorDesc(Shape::vector(in[0].shape.c()), accumulation_type(in[0].dtype))};
}

/// Inputs: x, scale (C), optionally shift (C), both in the accumulation type.
std::vector<TensorDesc> infer_channel_scale(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 3);
  check_same_float(op, in.first(1));
  const TensorDesc expected(Shape::vector(in[0].shape.c()), accumulation_type(in[0].dtype));
  for (const TensorDesc& desc : in.subspan(1))
    if (!(desc == expected)) fail_op(op, "expected " + expected.str() + " per channel, found " + desc.str());
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_channel_scale(GradientContext& g) {
  const ValueId dy = g.out_gradient(0);
  if (g.needs(1)) g.add(1, g.emit({OpKind::channel_dot, NoAttrs{}}, "scale_gradient", {dy, g.in(0)})[0]);
  if (g.inputs() > 2 && g.needs(2)) g.add(2, g.emit({OpKind::channel_sum, NoAttrs{}}, "shift_gradient", {dy})[0]);
  if (g.needs(0)) g.add(0, g.emit({OpKind::channel_scale, NoAttrs{}}, "channel_scale_backward", {dy, g.in(1)})[0]);
}

}  // namespace

std::vector<OpDef> channel_ops() {
  return {{.kind = OpKind::channel_sum,
           .family = OpFamily::channel_sum,
           .name = "channel_sum",
           .default_attrs = NoAttrs{},
           .infer = infer_channel_sum,
           .flops = element_flops<1>},
          {.kind = OpKind::channel_dot,
           .family = OpFamily::channel_sum,
           .name = "channel_dot",
           .default_attrs = NoAttrs{},
           .infer = infer_dot,
           .flops = element_flops<2>},
          {.kind = OpKind::channel_scale,
           .family = OpFamily::point_wise,
           .name = "channel_scale",
           .default_attrs = NoAttrs{},
           .infer = infer_channel_scale,
           .gradient = gradient_channel_scale,
           .flops = element_flops<2>,
           .in_place_input = 0},
          {.kind = OpKind::concat,
           .family = OpFamily::copy,
           .name = "concat",
           .default_attrs = NoAttrs{},
           .infer = infer_concat,
           .gradient = gradient_concat},
          {.kind = OpKind::slice,
           .family = OpFamily::copy,
           .name = "slice",
           .default_attrs = SliceAttrs{},
           .infer = infer_slice,
           .gradient = gradient_slice},
          {.kind = OpKind::pad_channels,
           .family = OpFamily::copy,
           .name = "pad_channels",
           .default_attrs = SliceAttrs{},
           .infer = infer_pad,
           .gradient = gradient_pad}};
}

}  // namespace convoy
