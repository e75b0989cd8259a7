// How far a kernel's result may lie from the definition's, by op.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "tests/kernel_check.h"
#include "tests/worse.h"

namespace convoy::testing {

/// Ops whose result depends on comparisons and copies alone: exact on any data.
inline bool always_exact(OpKind kind) {
  static const std::set<OpKind> kinds{OpKind::max_pool,
                                      OpKind::cast,
                                      OpKind::concat,
                                      OpKind::slice,
                                      OpKind::pad_channels,
                                      OpKind::all_finite,
                                      OpKind::loss_scale_update,
                                      OpKind::arg_max};
  return kinds.count(kind) > 0;
}
/// Activation and pool: exact where slope times input rounds once, as it does for small integers. Sums over their
/// gradients: where it does not round at all, for slopes of 0 and powers of two.
inline bool exact_on_integers(const Problem& p) {
  const OpKind kind = p.op.kind;
  if (kind == OpKind::conv_pool_backward_data || kind == OpKind::conv_pool_backward_weights) {
    int exponent = 0;
    const double mantissa = std::frexp(std::abs(p.op.as<ConvPoolAttrs>().pool.activation.slope), &exponent);
    return mantissa == 0 || mantissa == 0.5;
  }
  return kind == OpKind::activation_max_pool || kind == OpKind::conv_pool_forward ||
         kind == OpKind::conv_activation_forward;
}
/// Sums of products: exact on small integers, bounded by K * eps * sum|a||b| on others.
inline bool linear(OpKind kind) {
  static const std::set<OpKind> kinds{
      OpKind::conv_forward,  OpKind::conv_backward_data,  OpKind::conv_backward_data_add, OpKind::conv_backward_weights,
      OpKind::dense_forward, OpKind::dense_backward_data, OpKind::dense_backward_weights, OpKind::channel_sum,
      OpKind::add,           OpKind::channel_dot,         OpKind::max_pool_backward};
  return kinds.count(kind) > 0;
}
/// Sums of few terms whose error is measured against the sum of magnitudes.
inline bool cancels(OpKind kind) {
  return linear(kind) || kind == OpKind::conv_activation_forward || kind == OpKind::conv_pool_backward_weights ||
         kind == OpKind::conv_pool_forward || kind == OpKind::conv_pool_backward_data ||
         kind == OpKind::activation_max_pool_backward || kind == OpKind::avg_pool ||
         kind == OpKind::avg_pool_backward || kind == OpKind::channel_scale || kind == OpKind::resize ||
         kind == OpKind::resize_backward;
}

/// The values of `inputs` in f64, ready for the reference of in_double(p); `magnitude`: their absolute values, where
/// the op cancels.
inline Run widened(const Problem& p, const Run& inputs, bool magnitude) {
  Run run = allocate_run(in_double(p));
  copy_inputs(inputs, run);
  for (const Tensor& t : run.in)
    if (magnitude && cancels(p.op.kind) && t.dtype() == DType::f64)
      for (double& v : t.span<double>()) v = std::abs(v);
  return run;
}

/// What a bound is made of beyond the op and its types.
struct Slack {
  double inside = 0;     ///< relative, of roundings inside a kernel
  bool largest = false;  ///< errs with the largest magnitude of all elements
};

/// Products that an element of output `index` sums up, in the mean; a bias gradient sums the gradient's positions.
inline double terms_of(const Problem& p, size_t index) {
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights || p.op.kind == OpKind::dense_backward_weights ||
                            p.op.kind == OpKind::conv_pool_backward_weights;
  if (sums_weights && index == 1) return double(p.in[1].shape.elements() / p.out[1].shape.elements());
  return double(p.flops()) / 2 / double(std::max<int64_t>(1, p.out[index].shape.elements()));
}

/// Largest error of output `index` over its bound: the number of terms and the sum of their magnitudes; smooth
/// functions get a few units in the last place of f32 and one rounding to the storage type. Above 1, or NaN:
/// wrong. `exact` and `magnitude` are dense f64.
inline double worst_error(const Problem& p, size_t index, const Tensor& found, const Tensor& exact,
                          const Tensor& magnitude, const Slack& slack = {}) {
  const double terms = std::max(8.0, terms_of(p, index));
  // An intermediate (the activated pool gradient) may be rounded to the storage type before the result is.
  const bool narrow = p.op.kind == OpKind::conv_pool_backward_weights || p.op.kind == OpKind::conv_pool_backward_data;
  const double storage = 2 * std::max(epsilon_of(p.out[index].dtype), narrow ? epsilon_of(p.in[1].dtype) : 0.0);
  const std::span<const double> expected = exact.span<double>(), magnitudes = magnitude.span<double>();
  const double largest = slack.largest ? *std::max_element(magnitudes.begin(), magnitudes.end()) : 0;
  const double relative = terms * epsilon_of(DType::f32) + storage + slack.inside;
  double worst = 0;
  for_each_value(found, [&](size_t e, double result) {
    const double size = std::max({std::abs(expected[e]), magnitudes[e], largest});
    const double bound = relative * size + 16 * epsilon_of(DType::f32);
    worst = worse(worst, std::abs(result - expected[e]) / bound);
  });
  return worst;
}

}  // namespace convoy::testing
