// Max and average pooling. Max-pool stores which element of the window won as a byte (kd*KH*KW + kh*KW + kw; the first
// of equals), so that backward needs neither input nor output.
#include <algorithm>

#include "core/backward.h"
#include "core/ops/families.h"
#include "core/passes/fuse.h"

namespace convoy {
namespace {

const PoolAttrs& pool_of(const Op& op) {
  if (const auto* fused = std::get_if<ActivationPoolAttrs>(&op.attrs)) return fused->pool;
  return op.as<PoolAttrs>();
}

void check_activation(const Op& op) {
  const auto* fused = std::get_if<ActivationPoolAttrs>(&op.attrs);
  if (!fused) return;
  check_slope(op, fused->activation.slope);
  if (fused->activation.function == Activation::leaky_relu && fused->activation.scale != 1)
    fail_op(op, "beside a pool leaky_relu has no scale: expected 1, found " + std::to_string(fused->activation.scale));
}

Shape pooled_shape(const Op& op, const Shape& x) {
  const PoolAttrs& a = pool_of(op);
  Shape y = x;
  for (int i = 0; i < 3; ++i) {
    if (a.kernel[i] < 1 || a.stride[i] < 1 || a.pad_low[i] < 0 || a.pad_high[i] < 0 || a.pad_low[i] >= a.kernel[i] ||
        a.pad_high[i] >= a.kernel[i])
      fail_op(op,
              "expected kernels and strides of 1 or more and paddings of 0 or more, smaller than the kernel, found " +
                  text_of("kernel", a.kernel) + ", " + text_of("stride", a.stride) + ", " +
                  text_of("pad_low", a.pad_low) + ", " + text_of("pad_high", a.pad_high));
    const int64_t room = x[i + 1] + a.pad_low[i] + a.pad_high[i] - a.kernel[i];
    if (room < 0)
      fail_op(op, "window of " + std::to_string(a.kernel[i]) + " exceeds the padded extent " +
                      std::to_string(room + a.kernel[i]) + " of " + x.str());
    y[i + 1] = room / a.stride[i] + 1;
  }
  return y;
}

Shape unpooled_shape(const Op& op, const Shape& y) {
  const Int3& size = pool_of(op).result_size;
  check_result_size(op, size);
  const Shape x(y.n(), size[0], size[1], size[2], y.c());
  if (!(pooled_shape(op, x) == y))
    fail_op(op, "an input of " + x.str() + " does not pool to the gradient's " + y.str());
  return x;
}

/// A byte tells which position of the window was the largest.
void check_window(const Op& op) {
  const Int3& k = pool_of(op).kernel;
  if (k[0] > 256 || k[1] > 256 || k[2] > 256 || k[0] * k[1] * k[2] > 256)
    fail_op(op, "window of " + std::to_string(k[0]) + "x" + std::to_string(k[1]) + "x" + std::to_string(k[2]) +
                    " positions, an arg-max byte counts 256");
}

std::vector<TensorDesc> infer_max(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  check_activation(op);
  const Shape y = pooled_shape(op, in[0].shape);
  check_window(op);
  return {TensorDesc(y, in[0].dtype), TensorDesc(y, DType::u8)};
}

std::vector<TensorDesc> infer_max_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in.first(1));
  check_window(op);
  if (in[1].dtype != DType::u8 || !(in[1].shape == in[0].shape))
    fail_op(op, "arg-max is " + in[1].str() + ", expected u8 of shape " + in[0].shape.str());
  return {TensorDesc(unpooled_shape(op, in[0].shape), in[0].dtype)};
}

std::vector<TensorDesc> infer_fused_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  check_same_float(op, in.first(2));
  check_activation(op);
  check_window(op);
  if (in[2].dtype != DType::u8 || !(in[2].shape == in[0].shape) || !(in[1].shape == in[0].shape))
    fail_op(op,
            "gradient, output and arg-max differ in shape: " + in[0].str() + ", " + in[1].str() + ", " + in[2].str());
  return {TensorDesc(unpooled_shape(op, in[0].shape), in[0].dtype)};
}

std::vector<TensorDesc> infer_avg(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {TensorDesc(pooled_shape(op, in[0].shape), in[0].dtype)};
}

std::vector<TensorDesc> infer_avg_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {TensorDesc(unpooled_shape(op, in[0].shape), in[0].dtype)};
}

PoolAttrs with_result(const PoolAttrs& attrs, const Shape& x) {
  PoolAttrs a = attrs;
  a.result_size = spatial(x);
  return a;
}

void gradient_max(GradientContext& g) {
  g.add(0, g.emit({OpKind::max_pool_backward, with_result(pool_of(g.op()), g.desc(g.in(0)).shape)}, "max_pool_backward",
                  {g.out_gradient(0), g.out(1)})[0]);
}

void gradient_avg(GradientContext& g) {
  g.add(0, g.emit({OpKind::avg_pool_backward, with_result(pool_of(g.op()), g.desc(g.in(0)).shape)}, "avg_pool_backward",
                  {g.out_gradient(0)})[0]);
}

void gradient_fused(GradientContext& g) {
  const auto& a = g.op().as<ActivationPoolAttrs>();
  const ActivationPoolAttrs attrs{a.activation, with_result(a.pool, g.desc(g.in(0)).shape)};
  g.add(0, g.emit({OpKind::activation_max_pool_backward, attrs}, "activation_max_pool_backward",
                  {g.out_gradient(0), g.out(0), g.out(1)})[0]);
}

void lower_fused(LoweringContext& l) {
  const auto& a = l.op().as<ActivationPoolAttrs>();
  const ValueId activated = l.emit({OpKind::activation, a.activation}, "activation", {l.in(0)});
  l.emit_final({OpKind::max_pool, a.pool}, "", {activated});
}

/// The slope is read off the sign of the pooled output, then one element per window receives the product: the same
/// bits as un-pooling first, with an eighth of the arithmetic.
void lower_fused_backward(LoweringContext& l) {
  const auto& a = l.op().as<ActivationPoolAttrs>();
  const ValueId scaled = l.emit({OpKind::activation_backward, a.activation}, "activation_backward", {l.in(0), l.in(1)});
  l.emit_final({OpKind::max_pool_backward, a.pool}, "", {scaled, l.in(2)});
}

int64_t window(const Op& op) {
  const Int3& k = pool_of(op).kernel;
  return k[0] * k[1] * k[2];
}
int64_t flops_window_forward(const Op& op, std::span<const TensorDesc>, std::span<const TensorDesc> out) {
  return window(op) * out[0].shape.elements();
}
int64_t flops_window_backward(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return window(op) * in[0].shape.elements();
}

/// Arg-max bytes must point inside the window and inside the image.
void fill_argmax(const PoolAttrs& a, const Tensor& t, const PhiloxStream& random) {
  uint64_t index = 0;
  for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const Int3 at{d, h, w};
    int64_t code = 0;
    for (int i = 0; i < 3; ++i) {
      const int64_t start = at[i] * a.stride[i] - a.pad_low[i];
      const int64_t lo = std::max<int64_t>(0, -start), hi = std::min(a.kernel[i], a.result_size[i] - start);
      code = code * a.kernel[i] + lo + static_cast<int64_t>(random.below(index++, static_cast<uint64_t>(hi - lo)));
    }
    t.set(n, d, h, w, c, static_cast<double>(code));
  });
}

bool special_max_backward(const Op& op, int index, std::span<const TensorDesc>, const Tensor& t,
                          const PhiloxStream& r) {
  if (index != 1) return false;
  fill_argmax(pool_of(op), t, r);
  return true;
}
bool special_fused_backward(const Op& op, int index, std::span<const TensorDesc>, const Tensor& t,
                            const PhiloxStream& r) {
  if (index != 2) return false;
  fill_argmax(pool_of(op), t, r);
  return true;
}

}  // namespace

std::vector<OpDef> pool_ops() {
  return {{.kind = OpKind::max_pool,
           .family = OpFamily::pool,
           .name = "max_pool",
           .default_attrs = PoolAttrs{},
           .infer = infer_max,
           .gradient = gradient_max,
           .flops = flops_window_forward},
          {.kind = OpKind::max_pool_backward,
           .family = OpFamily::pool,
           .name = "max_pool_backward",
           .default_attrs = PoolAttrs{},
           .infer = infer_max_backward,
           .flops = flops_window_backward,
           .special_input = special_max_backward},
          {.kind = OpKind::avg_pool,
           .family = OpFamily::pool,
           .name = "avg_pool",
           .default_attrs = PoolAttrs{},
           .infer = infer_avg,
           .gradient = gradient_avg,
           .flops = flops_window_forward},
          {.kind = OpKind::avg_pool_backward,
           .family = OpFamily::pool,
           .name = "avg_pool_backward",
           .default_attrs = PoolAttrs{},
           .infer = infer_avg_backward,
           .flops = flops_window_backward},
          {.kind = OpKind::activation_max_pool,
           .family = OpFamily::pool,
           .name = "activation_max_pool",
           .default_attrs = ActivationPoolAttrs{},
           .infer = infer_max,
           .gradient = gradient_fused,
           .flops = flops_window_forward,
           .lower = lower_fused},
          {.kind = OpKind::activation_max_pool_backward,
           .family = OpFamily::pool,
           .name = "activation_max_pool_backward",
           .default_attrs = ActivationPoolAttrs{},
           .infer = infer_fused_backward,
           .flops = flops_window_backward,
           .lower = lower_fused_backward,
           .special_input = special_fused_backward}};
}

}  // namespace convoy
