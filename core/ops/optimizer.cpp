// State updates. All read the flag `finite` (all_finite over the gradients) and leave every state untouched where it is
// 0; all divide the gradient by the loss scale.
#include <cmath>
#include <cstdio>

#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

constexpr int common = 4;  // gradient, step_state, loss_scale, finite

void check_common(const Op& op, std::span<const TensorDesc> in) {
  check_step_state(op, "second", in[1]);
  check_loss_scale(op, "third", in[2]);
  if (const TensorDesc flag(Shape::vector(1), DType::f32); !(in[3] == flag))
    fail_op(op, "fourth input must be the finite flag, " + flag.str() + ", found " + in[3].str());
  for (size_t i = common; i < in.size(); ++i)
    if (!(in[i] == in[0]))
      fail_op(op, "state " + std::to_string(i - common) + " is " + in[i].str() + ", gradient " + in[0].str());
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}
/// Throws unless the option is above 0, also in f32, in which kernels have it.
void check_positive(const Op& op, const char* what, double found) {
  if (!(static_cast<float>(found) > 0) || !std::isfinite(found))
    fail_op(op, std::string("expected ") + what + " above 0, found " + number_text(found));
}
void check_not_negative(const Op& op, const char* what, double found) {
  if (!(found >= 0) || !std::isfinite(found))
    fail_op(op, std::string("expected ") + what + " of 0 or more, found " + number_text(found));
}

/// Throws unless `found`, the share of a sum that a step keeps, lets what it adds up fade.
void check_fades(const Op& op, const char* what, double found) {
  if (!(found >= 0 && found < 1))
    fail_op(op, std::string("expected ") + what + " from 0 to below 1, found " + std::to_string(found));
}
template <class Attrs>
void check_larc(const Op& op) {
  check_not_negative(op, "larc", op.as<Attrs>().larc);
  check_positive(op, "a larc_epsilon", op.as<Attrs>().larc_epsilon);
}

/// Inputs: gradient, step_state, loss_scale, finite, then parameter, velocity.
std::vector<TensorDesc> infer_sgd(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, common + 2, common + 2);
  check_fades(op, "a momentum", op.as<SgdAttrs>().momentum);
  check_larc<SgdAttrs>(op);
  check_common(op, in);
  return {};
}

/// What corrections of moments divide by is 1 - beta^step.
template <class Attrs>
void check_moments(const Op& op) {
  for (double beta : {op.as<Attrs>().beta1, op.as<Attrs>().beta2}) check_fades(op, "betas", beta);
  check_positive(op, "an epsilon", op.as<Attrs>().epsilon);
  check_not_negative(op, "a weight_decay", op.as<Attrs>().weight_decay);
}

/// Inputs: gradient, step_state, loss_scale, finite, then parameter, first moment, second moment.
std::vector<TensorDesc> infer_adam(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, common + 3, common + 3);
  check_moments<AdamAttrs>(op);
  check_not_negative(op, "l2", op.as<AdamAttrs>().l2);
  check_larc<AdamAttrs>(op);
  check_common(op, in);
  return {};
}

/// Inputs: gradient, step_state, loss_scale, finite, then (as updated states) parameter, first and second moment; ahead
/// of those the norm of all gradients.
std::vector<TensorDesc> infer_lamb(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, common + 4, common + 4);
  check_moments<LambAttrs>(op);
  check_not_negative(op, "max_grad_norm", op.as<LambAttrs>().max_grad_norm);
  if (!(in[common] == TensorDesc(Shape::vector(1), DType::f64)))
    fail_op(op, "fifth input must be the norm of the gradients, found " + in[common].str());
  std::vector<TensorDesc> rest(in.begin(), in.end());
  rest.erase(rest.begin() + common);
  check_common(op, rest);
  return {};
}

/// Inputs: any number of gradients, then loss_scale. Output: the root of the sum of all squares, without the scale.
std::vector<TensorDesc> infer_gradient_norm(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, SIZE_MAX);
  check_same_float(op, in.first(in.size() - 1));
  check_loss_scale(op, "last", in.back());
  return {TensorDesc(Shape::vector(1), DType::f64)};
}

/// Inputs: gradient, step_state, then the sum: sum += gradient; the first micro-step of a round starts it anew.
std::vector<TensorDesc> infer_accumulate(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  check_step_state(op, "second", in[1]);
  if (!(in[0] == in[2])) fail_op(op, "gradient is " + in[0].str() + ", sum " + in[2].str());
  return {};
}

bool special_accumulate(const Op&, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream&) {
  if (index != 1) return false;
  t.data<double>()[int(StepField::micro_step)] = 1;
  return true;
}

/// Inputs: finite, then loss_scale.
std::vector<TensorDesc> infer_loss_scale(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  if (const TensorDesc flag(Shape::vector(1), DType::f32); !(in[0] == flag))
    fail_op(op, "first input must be the finite flag, " + flag.str() + ", found " + in[0].str());
  check_loss_scale(op, "second", in[1]);
  const auto& a = op.as<LossScaleAttrs>();
  check_positive(op, "an interval", double(a.interval));
  check_positive(op, "a growth", a.growth), check_positive(op, "a backoff", a.backoff);
  return {};
}

bool special_update(const Op& op, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream& random) {
  if (index == 1) {
    t.data<double>()[int(StepField::learning_rate)] = 0.125;
  } else if (index == 2) {
    t.data<double>()[int(ScaleField::scale)] = 8;
    t.data<double>()[int(ScaleField::applied)] = 3;
  } else if (index == 3) {
    t.data<float>()[0] = 1;
  } else if (op.kind == OpKind::lamb_update && index == common) {
    t.data<double>()[0] = 2.5;
  } else if ((op.kind == OpKind::adam_update && index == 6) ||
             (op.kind == OpKind::lamb_update && index == 7)) {  // a second moment is never negative
    uint64_t i = 0;
    for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
      t.set(n, d, h, w, c, random.uniform(i++));
    });
  } else {
    return false;
  }
  return true;
}

bool special_gradient_norm(const Op&, int index, std::span<const TensorDesc> in, const Tensor& t, const PhiloxStream&) {
  if (index + 1 < static_cast<int>(in.size())) return false;
  t.data<double>()[int(ScaleField::scale)] = 8;
  return true;
}

bool special_loss_scale(const Op&, int index, std::span<const TensorDesc>, const Tensor& t, const PhiloxStream&) {
  if (index == 0) {
    t.data<float>()[0] = 1;
  } else {
    t.data<double>()[int(ScaleField::scale)] = 8;
    t.data<double>()[int(ScaleField::good_steps)] = 999;
  }
  return true;
}

int64_t flops_gradient_norm(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  int64_t total = 0;
  for (const TensorDesc& desc : in.first(in.size() - 1)) total += 2 * desc.shape.elements();
  return total;
}

/// LARC and LAMB take norms of the whole tensor.
template <class A>
Division division_of(const Op& op) {
  return op.as<A>().larc > 0 ? Division::whole : Division::by_element;
}
Division division_of_lamb(const Op&) {
  return Division::whole;
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {{.kind = OpKind::sgd_update,
           .family = OpFamily::update,
           .name = "sgd_update",
           .default_attrs = SgdAttrs{},
           .infer = infer_sgd,
           .flops = element_flops<5>,
           .special_input = special_update,
           .updated_inputs = 2,
           .division = division_of<SgdAttrs>},
          {.kind = OpKind::adam_update,
           .family = OpFamily::update,
           .name = "adam_update",
           .default_attrs = AdamAttrs{},
           .infer = infer_adam,
           .flops = element_flops<14>,
           .special_input = special_update,
           .updated_inputs = 3,
           .division = division_of<AdamAttrs>},
          {.kind = OpKind::lamb_update,
           .family = OpFamily::update,
           .name = "lamb_update",
           .default_attrs = LambAttrs{},
           .infer = infer_lamb,
           .flops = element_flops<24>,
           .special_input = special_update,
           .updated_inputs = 3,
           .division = division_of_lamb},
          {.kind = OpKind::gradient_norm,
           .family = OpFamily::update,
           .name = "gradient_norm",
           .default_attrs = NoAttrs{},
           .infer = infer_gradient_norm,
           .flops = flops_gradient_norm,
           .special_input = special_gradient_norm},
          {.kind = OpKind::accumulate,
           .family = OpFamily::update,
           .name = "accumulate",
           .default_attrs = NoAttrs{},
           .infer = infer_accumulate,
           .flops = element_flops<1>,
           .special_input = special_accumulate,
           .updated_inputs = 1},
          {.kind = OpKind::loss_scale_update,
           .family = OpFamily::update,
           .name = "loss_scale_update",
           .default_attrs = LossScaleAttrs{},
           .infer = infer_loss_scale,
           .special_input = special_loss_scale,
           .updated_inputs = 1}};
}

}  // namespace convoy
