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

/// In any order: texts, tables and reports know kinds by their names and families.
enum class OpKind : uint8_t {
  conv_forward,
  conv_backward_data,
  conv_backward_data_add,
  conv_backward_weights,
  conv_activation_forward,
  conv_pool_forward,
  conv_pool_backward_data,
  conv_pool_backward_weights,
  dense_forward,
  dense_backward_data,
  dense_backward_weights,
  max_pool,
  max_pool_backward,
  avg_pool,
  avg_pool_backward,
  activation,
  activation_backward,
  activation_max_pool,
  activation_max_pool_backward,
  dropout,
  loss,
  loss_backward,
  log1p,
  divide_by_mean,
  cast,
  add,
  add_scaled,
  sum_squares,
  channel_sum,
  channel_dot,
  channel_scale,
  channel_moments,
  batch_norm,
  batch_norm_sums,
  batch_norm_backward_data,
  batch_norm_backward_parameters,
  batch_norm_update,
  resize,
  resize_backward,
  pixel_loss,
  pixel_loss_backward,
  arg_max,
  scale,
  concat,
  slice,
  pad_channels,
  bucket,
  unbucket,
  all_reduce_start,
  all_reduce_wait,
  all_reduce_later,
  all_finite,
  loss_scale_update,
  sgd_update,
  adam_update,
  lamb_update,
  gradient_norm,
  accumulate,
  pack,
  count  ///< number of kinds, not an op
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
