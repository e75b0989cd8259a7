// Regression losses: the mean over samples and outputs of squared or absolute differences.
#include "core/backward.h"
#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

void check_pair(const Op& op, std::span<const TensorDesc> in) {
  check_same_float(op, in.first(2));
  if (accumulation_type(in[0].dtype) != in[0].dtype) fail_op(op, "is computed in f32 or f64, found " + in[0].str());
  if (!(in[0].shape == in[1].shape))
    fail_op(op, "prediction is " + in[0].shape.str() + ", target " + in[1].shape.str());
}

std::vector<TensorDesc> infer_loss(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_pair(op, in);
  return {TensorDesc(Shape::vector(1), in[0].dtype)};
}

/// Inputs: prediction, target, loss_scale state. Output: scale * d(loss)/d(prediction); |x| has slope 0 at 0.
std::vector<TensorDesc> infer_loss_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  check_pair(op, in);
  check_loss_scale(op, "third", in[2]);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_loss(GradientContext& g) {
  if (g.needs(1)) fail_op(g.op(), "has no gradient with respect to the target");
  g.add(0, g.emit({OpKind::loss_backward, g.op().attrs}, "loss_backward", {g.in(0), g.in(1), g.loss_scale()})[0]);
}

bool special_scale(const Op&, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream&) {
  if (index != 2) return false;
  t.data<double>()[int(ScaleField::scale)] = 4.0;
  return true;
}

}  // namespace

std::vector<OpDef> loss_ops() {
  return {{.kind = OpKind::loss,
           .family = OpFamily::loss,
           .name = "loss",
           .default_attrs = LossAttrs{},
           .infer = infer_loss,
           .gradient = gradient_loss,
           .flops = element_flops<3>},
          {.kind = OpKind::loss_backward,
           .family = OpFamily::loss,
           .name = "loss_backward",
           .default_attrs = LossAttrs{},
           .infer = infer_loss_backward,
           .flops = element_flops<3>,
           .special_input = special_scale}};
}

}  // namespace convoy
