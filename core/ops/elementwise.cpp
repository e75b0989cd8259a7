// Casts, input normalisation, sums.
#include "core/backward.h"
#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

std::vector<TensorDesc> infer_cast(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  return {TensorDesc(in[0].shape, op.as<CastAttrs>().to)};
}

/// A gradient that was accumulated in the wider type already needs no cast back.
void gradient_cast(GradientContext& g) {
  const DType to = g.desc(g.in(0)).dtype;
  const ValueId dy = g.out_gradient(0);
  g.add(0, g.desc(dy).dtype == to ? dy : g.emit({OpKind::cast, CastAttrs{to}}, "cast_backward", {dy})[0]);
}

std::vector<TensorDesc> infer_normalise(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  const DType to = op.as<CastAttrs>().to;
  if (!is_float(to)) fail_op(op, "writes a floating-point type, asked for " + std::string(name_of(to)));
  if (in[0].dtype != DType::i16 && !is_float(in[0].dtype))
    fail_op(op, "reads i16 or floating point, found " + in[0].str());
  return {TensorDesc(in[0].shape, to)};
}

/// Counts are never negative, and log1p of less than -1 is not a number.
bool special_normalise(const Op& op, int, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream& random) {
  (void)op;
  uint64_t index = 0;
  for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const uint64_t r = random.below(index++, 64);
    t.set(n, d, h, w, c, double(r < 32 ? r % 3 : r * 7));
  });
  return true;
}

std::vector<TensorDesc> infer_add(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in);
  check_same_shape(op, in);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_add(GradientContext& g) {
  for (size_t i = 0; i < 2; ++i)
    if (g.needs(i)) g.add(i, g.out_gradient(0));
}

std::vector<TensorDesc> infer_scale(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_scale(GradientContext& g) {
  g.add(0, g.emit(g.op(), "scale_backward", {g.out_gradient(0)})[0]);
}

/// Inputs: a, b, loss_scale state. a + alpha * scale * b: how a penalty on b joins the gradient a.
std::vector<TensorDesc> infer_add_scaled(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  check_loss_scale(op, "third", in[2]);
  return infer_add(op, in.first(2));
}

bool special_add_scaled(const Op&, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream&) {
  if (index != 2) return false;
  t.data<double>()[int(ScaleField::scale)] = 2.0;
  return true;
}

std::vector<TensorDesc> infer_sum_squares(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {TensorDesc(Shape::vector(1), accumulation_type(in[0].dtype))};
}

/// Any number of inputs of any floating-point type; 1 when every element of all is finite, else 0.
std::vector<TensorDesc> infer_all_finite(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, SIZE_MAX);
  for (const TensorDesc& desc : in)
    if (!is_float(desc.dtype)) fail_op(op, "reads floating point, found " + desc.str());
  return {TensorDesc(Shape::vector(1), DType::f32)};
}

/// Pack nodes are placed by the plan only; on a tape they make no sense.
std::vector<TensorDesc> infer_pack(const Op& op, std::span<const TensorDesc>) {
  fail_op(op, "cannot be recorded on a tape");
}

}  // namespace

std::vector<OpDef> elementwise_ops() {
  return {{.kind = OpKind::cast,
           .family = OpFamily::copy,
           .name = "cast",
           .default_attrs = CastAttrs{},
           .infer = infer_cast,
           .gradient = gradient_cast},
          {.kind = OpKind::log1p,
           .family = OpFamily::point_wise,
           .name = "log1p",
           .default_attrs = CastAttrs{},
           .infer = infer_normalise,
           .flops = element_flops<1>,
           .special_input = special_normalise},
          {.kind = OpKind::divide_by_mean,
           .family = OpFamily::point_wise,
           .name = "divide_by_mean",
           .default_attrs = CastAttrs{},
           .infer = infer_normalise,
           .flops = element_flops<2>,
           .special_input = special_normalise},
          {.kind = OpKind::add,
           .family = OpFamily::point_wise,
           .name = "add",
           .default_attrs = NoAttrs{},
           .infer = infer_add,
           .gradient = gradient_add,
           .flops = element_flops<1>,
           .in_place_input = 0},
          {.kind = OpKind::scale,
           .family = OpFamily::point_wise,
           .name = "scale",
           .default_attrs = ScaleAttrs{},
           .infer = infer_scale,
           .gradient = gradient_scale,
           .flops = element_flops<1>,
           .in_place_input = 0},
          {.kind = OpKind::add_scaled,
           .family = OpFamily::point_wise,
           .name = "add_scaled",
           .default_attrs = ScaleAttrs{},
           .infer = infer_add_scaled,
           .flops = element_flops<2>,
           .special_input = special_add_scaled,
           .in_place_input = 0},
          {.kind = OpKind::sum_squares,
           .family = OpFamily::point_wise,
           .name = "sum_squares",
           .default_attrs = ScaleAttrs{},
           .infer = infer_sum_squares,
           .flops = element_flops<2>},
          {.kind = OpKind::all_finite,
           .family = OpFamily::update,
           .name = "all_finite",
           .default_attrs = NoAttrs{},
           .infer = infer_all_finite},
          {.kind = OpKind::pack,
           .family = OpFamily::pack,
           .name = "pack",
           .default_attrs = NoAttrs{},
           .infer = infer_pack}};
}

}  // namespace convoy
