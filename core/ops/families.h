// The op table, one function per family. Each family is one source file in this folder.
#pragma once

#include "core/op.h"

namespace convoy {

std::vector<OpDef> conv_ops();
std::vector<OpDef> dense_ops();
std::vector<OpDef> pool_ops();
std::vector<OpDef> activation_ops();
std::vector<OpDef> loss_ops();
std::vector<OpDef> elementwise_ops();
std::vector<OpDef> channel_ops();
std::vector<OpDef> norm_ops();
std::vector<OpDef> resize_ops();
std::vector<OpDef> pixel_ops();
std::vector<OpDef> optimizer_ops();
std::vector<OpDef> communication_ops();

/// Throws unless lo <= count <= hi (SIZE_MAX: any number); the message names the op and the numbers.
void check_inputs(const Op& op, std::span<const TensorDesc> in, size_t lo, size_t hi);
/// Throws unless all inputs have the same floating-point type.
void check_same_float(const Op& op, std::span<const TensorDesc> in);
/// Throws unless inputs 0 and 1 have the same shape.
void check_same_shape(const Op& op, std::span<const TensorDesc> in);
/// Throws unless `bias` has one value per output channel, in the type that x's sums have.
void check_bias(const Op& op, const TensorDesc& bias, const TensorDesc& x, int64_t channels);
/// Throws unless `found` is the step state, the loss-scale state; `which` ("second") names the input.
void check_step_state(const Op& op, const char* which, const TensorDesc& found);
void check_loss_scale(const Op& op, const char* which, const TensorDesc& found);
/// Throws for a slope of leaky_relu below 0, or NaN.
void check_slope(const Op& op, double slope);
/// "result_size 4,0,4": the values of an attribute with one for each axis, for messages.
std::string text_of(const char* key, const Int3& values);
/// Throws unless result_size has extents of 1 or more.
void check_result_size(const Op& op, const Int3& size);
/// OpDef::flops of ops that take a fixed number of operations for each element of input 0.
template <int per_element>
int64_t element_flops(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return per_element * in[0].shape.elements();
}
/// Throws with "op: message".
[[noreturn]] void fail_op(const Op& op, const std::string& message);

}  // namespace convoy
