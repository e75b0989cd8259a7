// Reverse-mode differentiation of a tape: appends gradient nodes, one rule per op (OpDef::gradient).
#pragma once

#include "core/by_value.h"
#include "core/tape.h"

namespace convoy {

/// What a gradient rule sees: its node, the gradients of the node's outputs, and where to put those of its inputs.
class GradientContext {
 public:
  GradientContext(Tape& tape, Node node, ByValue<ValueId>& gradients, const ByValue<bool>& needed, ValueId loss_scale)
      : tape_(tape), node_(std::move(node)), gradients_(gradients), needed_(needed), loss_scale_(loss_scale) {}

  const Node& node() const { return node_; }
  const Op& op() const { return node_.op; }
  size_t inputs() const { return node_.in.size(); }
  ValueId in(size_t i) const { return node_.in.at(i); }
  ValueId out(size_t i) const { return node_.out.at(i); }
  const TensorDesc& desc(ValueId id) const { return tape_.desc(id); }
  /// Gradient of output i, in the output's type, or no_value when nothing flowed there. A wider sum (the gradient of
  /// weights that this op computes) is cast, except for cast ops, whose rule does it.
  ValueId out_gradient(size_t i);
  /// Whether anybody wants the gradient of input i.
  bool needs(size_t i) const { return needed_.at(in(i)); }
  /// State holding the factor on the loss.
  ValueId loss_scale() const { return loss_scale_; }
  /// Emits a node named "<layer>.<what>" and returns its outputs.
  std::vector<ValueId> emit(const Op& op, const std::string& what, std::vector<ValueId> in);
  /// Adds a contribution to the gradient of input i.
  void add(size_t i, ValueId gradient);

 private:
  ValueId as(ValueId gradient, DType type);
  Tape& tape_;
  Node node_;  // a copy: the tape's node list grows while the rule runs
  ByValue<ValueId>& gradients_;
  const ByValue<bool>& needed_;
  ValueId loss_scale_;
};

/// "conv1.forward" -> "conv1".
std::string layer_of(const std::string& node_name);

/// Appends the gradients of the scalar `loss` (the output of a loss node), multiplied by the state `loss_scale`, with
/// respect to `wanted`. Returns one gradient per wanted value, of parameters in the type of their sums; throws
/// Error(usage) when no path leads to one of them, or one is the loss itself.
std::vector<ValueId> differentiate(Tape& tape, ValueId loss, ValueId loss_scale, std::span<const ValueId> wanted);

}  // namespace convoy
