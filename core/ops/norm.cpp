// Batch normalisation as plain nodes: moments of a batch, normalisation by them, and three gradient nodes. The moments
// and the gradient sums are vectors of means in f64, so that an all-reduce between two nodes turns the statistics of a
// rank into those of a group.
#include "core/backward.h"
#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

/// Two f64 numbers per channel: all first ones, then all second ones.
TensorDesc pair_desc(int64_t channels) {
  return TensorDesc(Shape::vector(2 * channels), DType::f64);
}

TensorDesc channel_desc(const TensorDesc& x) {
  return TensorDesc(Shape::vector(x.shape.c()), accumulation_type(x.dtype));
}

void expect(const Op& op, const char* what, const TensorDesc& found, const TensorDesc& expected) {
  if (!(found == expected)) fail_op(op, std::string(what) + " is " + found.str() + ", expected " + expected.str());
}

/// Input: x. Output: mean and mean square of every channel.
std::vector<TensorDesc> infer_moments(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  return {pair_desc(in[0].shape.c())};
}

/// Inputs: x, gamma, beta, then the moments (training) or running mean and running variance (evaluation).
std::vector<TensorDesc> infer_norm(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 4, 5);
  check_same_float(op, in.first(1));
  const double epsilon = op.as<BatchNormAttrs>().epsilon;
  if (!(epsilon > 0)) fail_op(op, "expected an epsilon above 0, found " + std::to_string(epsilon));
  expect(op, "gamma", in[1], channel_desc(in[0]));
  expect(op, "beta", in[2], channel_desc(in[0]));
  if (in.size() == 4) {
    expect(op, "the input of moments", in[3], pair_desc(in[0].shape.c()));
  } else {
    expect(op, "the running mean", in[3], channel_desc(in[0]));
    expect(op, "the running variance", in[4], channel_desc(in[0]));
  }
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

/// Inputs: dy, x, gamma, beta, moments. Output: per channel the means of dy and of dy * normalised x, where dy is zero
/// if relu clamped.
std::vector<TensorDesc> infer_sums(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 5, 5);
  check_same_float(op, in.first(2));
  expect(op, "the gradient", TensorDesc(in[0].shape, in[0].dtype), TensorDesc(in[1].shape, in[1].dtype));
  infer_norm({OpKind::batch_norm, op.attrs}, in.subspan(1, 4));
  return {pair_desc(in[0].shape.c())};
}

/// Inputs: those of batch_norm_sums, then its output.
std::vector<TensorDesc> infer_norm_backward_data(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 6, 6);
  infer_sums(op, in.first(5));
  expect(op, "the input of sums", in[5], pair_desc(in[0].shape.c()));
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

/// Inputs: the output of batch_norm_sums, gamma. Outputs: the gradients of gamma and beta.
std::vector<TensorDesc> infer_parameters(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  expect(op, "gamma", in[1], channel_desc(in[1]));
  expect(op, "the input of sums", in[0], pair_desc(in[1].shape.c()));
  return {in[1], in[1]};
}

/// Inputs: moments, then running mean and running variance. Moments of a diverged step leave those of their channel
/// alone.
std::vector<TensorDesc> infer_update(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  expect(op, "the running mean", in[1], channel_desc(in[1]));
  expect(op, "the input of moments", in[0], pair_desc(in[1].shape.c()));
  expect(op, "the running variance", in[2], in[1]);
  const auto& a = op.as<RunningAttrs>();
  if (a.count < 1) fail_op(op, "expected a count of 1 or more, found " + std::to_string(a.count));
  if (!(a.momentum >= 0 && a.momentum <= 1))
    fail_op(op, "expected a momentum from 0 to 1, found " + std::to_string(a.momentum));
  return {};
}

void gradient_norm(GradientContext& g) {
  if (g.inputs() == 5) fail_op(g.op(), "with running statistics is for evaluation and has no gradient");
  const ValueId dy = g.out_gradient(0);
  const ValueId sums =
      g.emit({OpKind::batch_norm_sums, g.op().attrs}, "gradient_sums", {dy, g.in(0), g.in(1), g.in(2), g.in(3)})[0];
  if (g.needs(1) || g.needs(2)) {
    const double count = double(g.desc(g.in(0)).shape.rows());
    const auto parameters =
        g.emit({OpKind::batch_norm_backward_parameters, ScaleAttrs{count}}, "parameter_gradients", {sums, g.in(1)});
    for (size_t i = 0; i < 2; ++i)
      if (g.needs(i + 1)) g.add(i + 1, parameters[i]);
  }
  if (g.needs(0))
    g.add(0, g.emit({OpKind::batch_norm_backward_data, g.op().attrs}, "backward_data",
                    {dy, g.in(0), g.in(1), g.in(2), g.in(3), sums})[0]);
}

/// Moments of random numbers would give negative variances; gammas and variances must be positive.
bool special_norm(const Op& op, int index, std::span<const TensorDesc> in, const Tensor& t,
                  const PhiloxStream& random) {
  const int first = op.kind == OpKind::batch_norm ? 0 : op.kind == OpKind::batch_norm_update ? -3 : 1;
  const int moments = first + 3;
  const bool running_variance = (op.kind == OpKind::batch_norm && in.size() == 5 && index == 4) ||
                                (op.kind == OpKind::batch_norm_update && index == 2);
  if (running_variance) {
    for (int64_t c = 0; c < t.shape().c(); ++c) t.set(0, 0, 0, 0, c, 0.5 + random.uniform(static_cast<uint64_t>(c)));
    return true;
  }
  if (index != moments || in[static_cast<size_t>(index)].dtype != DType::f64 ||
      (op.kind == OpKind::batch_norm && in.size() == 5))
    return false;
  const int64_t channels = t.shape().c() / 2;
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = random.uniform(static_cast<uint64_t>(2 * c)) - 0.5;
    t.data<double>()[c] = mean;
    t.data<double>()[channels + c] = mean * mean + 0.5 + random.uniform(static_cast<uint64_t>(2 * c + 1));
  }
  return true;
}

}  // namespace

std::vector<OpDef> norm_ops() {
  return {{.kind = OpKind::channel_moments,
           .family = OpFamily::batch_norm,
           .name = "channel_moments",
           .default_attrs = NoAttrs{},
           .infer = infer_moments,
           .gradient_in_readers = true,
           .flops = element_flops<3>},
          {.kind = OpKind::batch_norm,
           .family = OpFamily::batch_norm,
           .name = "batch_norm",
           .default_attrs = BatchNormAttrs{},
           .infer = infer_norm,
           .gradient = gradient_norm,
           .flops = element_flops<2>,
           .special_input = special_norm,
           .in_place_input = 0},
          {.kind = OpKind::batch_norm_sums,
           .family = OpFamily::batch_norm,
           .name = "batch_norm_sums",
           .default_attrs = BatchNormAttrs{},
           .infer = infer_sums,
           .flops = element_flops<4>,
           .special_input = special_norm},
          {.kind = OpKind::batch_norm_backward_data,
           .family = OpFamily::batch_norm,
           .name = "batch_norm_backward_data",
           .default_attrs = BatchNormAttrs{},
           .infer = infer_norm_backward_data,
           .flops = element_flops<6>,
           .special_input = special_norm,
           .in_place_input = 0},
          {.kind = OpKind::batch_norm_backward_parameters,
           .family = OpFamily::batch_norm,
           .name = "batch_norm_backward_parameters",
           .default_attrs = ScaleAttrs{},
           .infer = infer_parameters},
          {.kind = OpKind::batch_norm_update,
           .family = OpFamily::batch_norm,
           .name = "batch_norm_update",
           .default_attrs = RunningAttrs{},
           .infer = infer_update,
           .special_input = special_norm,
           .updated_inputs = 2}};
}

}  // namespace convoy
