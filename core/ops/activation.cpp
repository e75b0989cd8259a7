// Activations and dropout.
#include <cmath>

#include "core/backward.h"
#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

void check_activation_attrs(const Op& op) {
  const auto& a = op.as<ActivationAttrs>();
  check_slope(op, a.slope);
  if (a.function == Activation::leaky_relu && !(a.scale > 0))
    fail_op(op, "expected a scale above 0, found " + std::to_string(a.scale) +
                    ": the sign of the output could not tell the input's");
  if (!std::isfinite(a.scale) || a.scale == 0)
    fail_op(op, "expected a finite scale other than 0, found " + std::to_string(a.scale));
}

std::vector<TensorDesc> infer_activation(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  check_activation_attrs(op);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

/// Inputs: gradient, output of the activation.
std::vector<TensorDesc> infer_activation_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in);
  check_same_shape(op, in);
  check_activation_attrs(op);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_activation(GradientContext& g) {
  g.add(0,
        g.emit({OpKind::activation_backward, g.op().attrs}, "activation_backward", {g.out_gradient(0), g.out(0)})[0]);
}

/// Inputs: x, step_state. The mask is recomputed in backward from the same counters, never stored.
std::vector<TensorDesc> infer_dropout(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in.first(1));
  const double rate = op.as<DropoutAttrs>().rate;
  if (!(rate >= 0 && rate < 1)) fail_op(op, "rate must be in [0, 1), found " + std::to_string(rate));
  check_step_state(op, "second", in[1]);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

/// What is kept depends on whole numbers.
bool special_dropout(const Op&, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream& random) {
  if (index != 1) return false;
  for (StepField field : {StepField::step, StepField::seed_low, StepField::seed_high, StepField::first_sample})
    t.data<double>()[int(field)] = double(random.word(static_cast<uint64_t>(field)) >> 8);
  return true;
}

void gradient_dropout(GradientContext& g) {
  g.add(0, g.emit(g.op(), "dropout_backward", {g.out_gradient(0), g.in(1)})[0]);
}

}  // namespace

std::vector<OpDef> activation_ops() {
  return {{.kind = OpKind::activation,
           .family = OpFamily::point_wise,
           .name = "activation",
           .default_attrs = ActivationAttrs{},
           .infer = infer_activation,
           .gradient = gradient_activation,
           .flops = element_flops<1>,
           .in_place_input = 0},
          {.kind = OpKind::activation_backward,
           .family = OpFamily::point_wise,
           .name = "activation_backward",
           .default_attrs = ActivationAttrs{},
           .infer = infer_activation_backward,
           .flops = element_flops<1>,
           .in_place_input = 0},
          {.kind = OpKind::dropout,
           .family = OpFamily::point_wise,
           .name = "dropout",
           .default_attrs = DropoutAttrs{},
           .infer = infer_dropout,
           .gradient = gradient_dropout,
           .flops = element_flops<1>,
           .special_input = special_dropout,
           .in_place_input = 0}};
}

}  // namespace convoy
