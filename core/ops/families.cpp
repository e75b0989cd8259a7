#include "core/ops/families.h"

namespace convoy {

void fail_op(const Op& op, const std::string& message) {
  fail_usage(std::string(name_of(op.kind)) + ": " + message);
}

void check_inputs(const Op& op, std::span<const TensorDesc> in, size_t lo, size_t hi) {
  if (in.size() < lo || in.size() > hi)
    fail_op(op, "expects " + std::to_string(lo) + (hi > lo ? " to " + std::to_string(hi) : "") + " inputs, found " +
                    std::to_string(in.size()));
}

void check_same_float(const Op& op, std::span<const TensorDesc> in, size_t first) {
  for (size_t i = first; i < in.size(); ++i)
    if (!is_float(in[i].dtype) || in[i].dtype != in[first].dtype)
      fail_op(op, "input " + std::to_string(i) + " has type " + std::string(name_of(in[i].dtype)) + ", expected " +
                      std::string(name_of(in[first].dtype)));
}

}  // namespace convoy
