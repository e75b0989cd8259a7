// Bilinear resizing of images. Depth stays.
#include "core/backward.h"
#include "core/ops/families.h"

namespace convoy {
namespace {

/// One check for both directions; output: the input's batch and channels at the size asked for.
std::vector<TensorDesc> infer_resize(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  const Int3& size = op.as<ResizeAttrs>().result_size;
  const Shape& x = in[0].shape;
  if (size[0] != x.d() || size[1] < 1 || size[2] < 1)
    fail_op(op, "cannot resize " + x.str() + " to " + std::to_string(size[0]) + "x" + std::to_string(size[1]) + "x" +
                    std::to_string(size[2]));
  return {TensorDesc({x.n(), size[0], size[1], size[2], x.c()}, in[0].dtype)};
}

void gradient_resize(GradientContext& g) {
  ResizeAttrs a = g.op().as<ResizeAttrs>();
  a.result_size = spatial(g.desc(g.in(0)).shape);
  g.add(0, g.emit({OpKind::resize_backward, a}, "resize_backward", {g.out_gradient(0)})[0]);
}

/// Eleven per resized value, as the climate benchmark counts them.
int64_t flops_resize(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  return 11 * (op.kind == OpKind::resize ? out[0] : in[0]).shape.elements();
}

}  // namespace

std::vector<OpDef> resize_ops() {
  return {{.kind = OpKind::resize,
           .family = OpFamily::pool,
           .name = "resize",
           .default_attrs = ResizeAttrs{},
           .infer = infer_resize,
           .gradient = gradient_resize,
           .flops = flops_resize},
          {.kind = OpKind::resize_backward,
           .family = OpFamily::pool,
           .name = "resize_backward",
           .default_attrs = ResizeAttrs{},
           .infer = infer_resize,
           .flops = flops_resize}};
}

}  // namespace convoy
