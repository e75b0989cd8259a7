#include "core/ops/families.h"

#include "core/tape.h"

namespace convoy {

void fail_op(const Op& op, const std::string& message) {
  fail_usage(std::string(name_of(op.kind)) + ": " + message);
}

void check_inputs(const Op& op, std::span<const TensorDesc> in, size_t lo, size_t hi) {
  if (in.size() < lo || in.size() > hi)
    fail_op(op, "expects " + std::to_string(lo) +
                    (hi == SIZE_MAX ? " or more"
                     : hi > lo      ? " to " + std::to_string(hi)
                                    : "") +
                    " inputs, found " + std::to_string(in.size()));
}

void check_same_shape(const Op& op, std::span<const TensorDesc> in) {
  if (!(in[0].shape == in[1].shape)) fail_op(op, in[0].str() + " and " + in[1].str() + " differ in shape");
}

void check_bias(const Op& op, const TensorDesc& bias, const TensorDesc& x, int64_t channels) {
  const TensorDesc expected(Shape::vector(channels), accumulation_type(x.dtype));
  if (!(bias == expected)) fail_op(op, "bias is " + bias.str() + ", expected " + expected.str());
}

void check_slope(const Op& op, double slope) {
  if (!(slope >= 0))
    fail_op(op, "expected a slope of 0 or more, found " + std::to_string(slope) +
                    ": the sign of the output could not tell the input's");
}

std::string text_of(const char* key, const Int3& values) {
  return std::string(key) + " " + std::to_string(values[0]) + "," + std::to_string(values[1]) + "," +
         std::to_string(values[2]);
}

void check_result_size(const Op& op, const Int3& size) {
  if (size[0] < 1 || size[1] < 1 || size[2] < 1)
    fail_op(op, "expected extents of 1 or more, found " + text_of("result_size", size));
}

void check_step_state(const Op& op, const char* which, const TensorDesc& found) {
  if (!(found == step_state_desc()))
    fail_op(op, std::string(which) + " input must be the step state, found " + found.str());
}

void check_loss_scale(const Op& op, const char* which, const TensorDesc& found) {
  if (!(found == scale_state_desc()))
    fail_op(op, std::string(which) + " input must be the loss-scale state, found " + found.str());
}

void check_same_float(const Op& op, std::span<const TensorDesc> in) {
  const std::string expected = is_float(in[0].dtype) ? std::string(name_of(in[0].dtype)) : "a floating-point type";
  for (size_t i = 0; i < in.size(); ++i)
    if (!is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
      fail_op(op, "input " + std::to_string(i) + " has type " + std::string(name_of(in[i].dtype)) + ", expected " +
                      expected);
}

}  // namespace convoy
