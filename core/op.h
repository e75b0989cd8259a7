// An op is a kind plus attributes; what it means is one row of the op table (core/ops/).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/attrs.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace convoy {

/// Depth, height and width: of an activation its extents, of weights those of the kernel.
inline Int3 spatial(const Shape& s) {
  return {s.d(), s.h(), s.w()};
}

/// The class of every pixel, for logits of this shape.
inline TensorDesc label_desc(const Shape& logits) {
  return TensorDesc({logits.n(), logits.d(), logits.h(), logits.w(), 1}, DType::u8);
}

/// Kinds, with their inputs -> outputs, as kernels find them in Problem and KernelArgs; in any order, since texts,
/// tables and reports know kinds by name and family. x, y, dx, dy are activations and gradients (N, D, H, W, C), often
/// slices of wider ones, w weights (K, KD, KH, KW, C / groups); biases, factors and shifts of channels, running
/// statistics, gradients of weights and what is summed have the accumulation type (f32, of f64 f64); arg-max is a byte
/// per output: the position in its window, W fastest; of equal values the first wins, NaN over all. Behind a semicolon
/// stand states that the op rewrites: the last inputs, and once more behind the outputs. Attributes: core/attrs.h.
enum class OpKind : uint8_t {
  conv_forward,                    ///< x, w[, bias] -> y
  conv_backward_data,              ///< dy, w[, bias] -> dx (with a bias the forward pass of a transposed convolution)
  conv_backward_data_add,          ///< dy, w, a -> dx + a
  conv_backward_weights,           ///< x, dy -> dw, dbias
  conv_activation_forward,         ///< x, w[, bias] -> y behind a leaky_relu
  conv_pool_forward,               ///< x, w[, bias] -> pooled y behind a leaky_relu, arg-max
  conv_pool_backward_data,         ///< gradient of pooled y, pooled y, arg-max, w -> dx
  conv_pool_backward_weights,      ///< x, gradient of pooled y, pooled y, arg-max -> dw, dbias
  dense_forward,                   ///< x, w[, bias] -> y
  dense_backward_data,             ///< dy, w -> dx
  dense_backward_weights,          ///< x, dy -> dw, dbias
  max_pool,                        ///< x -> y, arg-max
  max_pool_backward,               ///< dy, arg-max -> dx
  avg_pool,                        ///< x -> y
  avg_pool_backward,               ///< dy -> dx
  activation,                      ///< x -> y
  activation_backward,             ///< dy, y -> dx
  activation_max_pool,             ///< x -> y, arg-max
  activation_max_pool_backward,    ///< dy, y, arg-max -> dx
  dropout,                         ///< x, step_state -> y (its gradient is the same op)
  loss,                            ///< prediction, target -> scalar
  loss_backward,                   ///< prediction, target, loss_scale -> gradient of the prediction
  log1p,                           ///< counts or floats -> floats
  divide_by_mean,                  ///< counts or floats -> floats
  cast,                            ///< x -> x in another type
  add,                             ///< a, b -> a + b
  add_scaled,                      ///< a, b, loss_scale -> a + alpha * scale * b
  sum_squares,                     ///< x -> alpha * sum of squares
  channel_sum,                     ///< x -> vector of C
  channel_dot,                     ///< a, b -> vector of C: sums of a * b
  channel_scale,                   ///< x, factors of C[, shifts of C] -> y
  channel_moments,                 ///< x -> moments: means, then mean squares, f64
  batch_norm,                      ///< x, gamma, beta, moments (or running mean, running variance) -> y
  batch_norm_sums,                 ///< dy, x, gamma, beta, moments -> sums: means of dy, then of dy * normalised x, f64
  batch_norm_backward_data,        ///< dy, x, gamma, beta, moments, sums -> dx
  batch_norm_backward_parameters,  ///< sums, gamma -> dgamma, dbeta
  batch_norm_update,               ///< moments; running mean, running variance
  resize,                          ///< x -> y
  resize_backward,                 ///< dy -> dx
  pixel_loss,                      ///< logits, labels (u8) -> scalar
  pixel_loss_backward,             ///< logits, labels, loss_scale -> gradient of the logits
  arg_max,                         ///< logits -> classes (u8)
  scale,                           ///< x -> alpha * x
  concat,                          ///< any number of x -> y with all their channels
  slice,                           ///< x -> some of its channels
  pad_channels,                    ///< x -> y with zeros around its channels
  bucket,                          ///< any number of tensors -> one vector
  unbucket,                        ///< the vector, tensors of the parts' shapes -> the parts
  all_reduce_start,                ///< bucket -> bucket
  all_reduce_wait,                 ///< bucket -> bucket, the mean over ranks
  all_reduce_later,                ///< bucket; the state that holds it until the next step
  all_finite,                      ///< any number of tensors -> 1 or 0, f32
  loss_scale_update,               ///< finite; loss_scale
  sgd_update,                      ///< gradient, step_state, loss_scale, finite; parameter, velocity
  adam_update,                     ///< gradient, step_state, loss_scale, finite; parameter, first and second moment
  lamb_update,    ///< gradient, step_state, loss_scale, finite, norm; parameter, first and second moment
  gradient_norm,  ///< any number of gradients, loss_scale -> scalar, f64
  accumulate,     ///< gradient, step_state; sum
  pack,           ///< placed by plans alone: w -> bytes in a kernel's own order
  count           ///< number of kinds, not an op
};

struct Op {
  OpKind kind{};
  Attrs attrs;
  template <class A>
  const A& as() const {
    return std::get<A>(attrs);
  }
  bool operator==(const Op&) const = default;
};

using ValueId = int32_t;
inline constexpr ValueId no_value = -1;

class GradientContext;  // core/backward.h
class LoweringContext;  // core/passes/fuse.h

/// What profiles count together, and what kind of work an op is: FLOPs of a network are those of convolutions and dense
/// layers; communication moves bytes between ranks; updates are what a step does behind its gradients.
enum class OpFamily : uint8_t {
  none,  ///< of no op
  convolution,
  dense,
  pool,  ///< and resizing
  point_wise,
  batch_norm,
  channel_sum,
  loss,
  copy,  ///< and casts
  communication,
  update,
  pack
};

/// How ranks that hold a parameter once divide its update: one of them runs it, or each updates elements of its own.
enum class Division : uint8_t { whole, by_element };

/// Everything the framework knows about one op kind.
struct OpDef {
  OpKind kind{};
  OpFamily family = OpFamily::none;
  std::string_view name;
  Attrs default_attrs;  ///< fixes which struct the op carries
  /// Output descriptors; throws Error(usage) naming the offending numbers.
  std::vector<TensorDesc> (*infer)(const Op&, std::span<const TensorDesc> in) = nullptr;
  /// Emits gradient nodes; null where no gradient flows.
  void (*gradient)(GradientContext&) = nullptr;
  /// Without a gradient of its own: those of the nodes that read it take it into account.
  bool gradient_in_readers = false;
  /// Floating-point operations of the dense definition (2 per multiply-add, border taps included).
  int64_t (*flops)(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc> out) = nullptr;
  /// Emits the plain nodes that define a fused op; null for plain ops.
  void (*lower)(LoweringContext&) = nullptr;
  /// Fills input `index` with values that are valid for the op where "any finite number" is not (arg-max bytes, ...);
  /// null where it is. Returns false for inputs that need nothing special.
  bool (*special_input)(const Op&, int index, std::span<const TensorDesc> in, const Tensor& tensor,
                        const PhiloxStream& random) = nullptr;
  /// Input whose storage output 0 may take over, or -1.
  int in_place_input = -1;
  /// How many trailing inputs are updated in place (state).
  int updated_inputs = 0;
  /// For updates of parameters, which all ranks make alike; null for everything else.
  Division (*division)(const Op&) = nullptr;
};

const OpDef& op_def(OpKind kind);
std::span<const OpDef> all_op_defs();
inline std::string_view name_of(OpKind kind) {
  return op_def(kind).name;
}
inline OpFamily family_of(OpKind kind) {
  return op_def(kind).family;
}

/// Checks the inputs and returns the descriptors of the outputs.
std::vector<TensorDesc> infer(const Op& op, std::span<const TensorDesc> in);
/// Dense-definition FLOPs, and bytes of all inputs and outputs touched once.
int64_t flops_of(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc> out);
int64_t bytes_of(std::span<const TensorDesc> in, std::span<const TensorDesc> out);

/// "conv_forward{stride=1,1,1;...}"; only attributes that differ from the default are printed.
std::string to_text(const Op& op);
/// Inverse of to_text; throws Error(usage) naming the unknown op, attribute or value.
Op parse_op(std::string_view text);

}  // namespace convoy
