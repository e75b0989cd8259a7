#include "core/backward.h"

#include <algorithm>

namespace convoy {

std::string layer_of(const std::string& node_name) {
  return node_name.substr(0, node_name.rfind('.'));
}

std::vector<ValueId> GradientContext::emit(const Op& op, const std::string& what, std::vector<ValueId> in) {
  return tape_.add(op, layer_of(node_.name) + "." + what, std::move(in)).out;
}

void GradientContext::add(size_t i, ValueId gradient) {
  ValueId& slot = gradients_.at(static_cast<size_t>(in(i)));
  slot = slot == no_value ? gradient : emit(Op{OpKind::add, NoAttrs{}}, "add_gradients", {slot, gradient}).at(0);
  gradients_.resize(tape_.values().size(), no_value);
}

std::vector<ValueId> differentiate(Tape& tape, ValueId loss, ValueId loss_scale, std::span<const ValueId> wanted) {
  const std::vector<Node> forward = tape.nodes();
  // Other gradients need one from behind their node.
  const bool is_loss = std::any_of(forward.begin(), forward.end(), [&](const Node& node) {
    const bool kind = node.op.kind == OpKind::loss || node.op.kind == OpKind::pixel_loss;
    return kind && node.out.at(0) == loss;
  });
  if (!is_loss) fail_usage("differentiate: expected the output of a loss node, found " + tape.value(loss).name);
  std::vector<bool> needed(tape.values().size());
  for (ValueId id : wanted) needed.at(static_cast<size_t>(id)) = true;
  for (const Node& node : forward) {
    const bool any = op_def(node.op.kind).gradient && std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) {
                       return needed[static_cast<size_t>(id)];
                     });
    for (ValueId id : node.out) needed[static_cast<size_t>(id)] = any;
  }

  std::vector<ValueId> gradients(tape.values().size(), no_value);
  for (auto node = forward.rbegin(); node != forward.rend(); ++node) {
    const bool is_root = std::find(node->out.begin(), node->out.end(), loss) != node->out.end();
    const bool reached = std::any_of(node->out.begin(), node->out.end(),
                                     [&](ValueId id) { return gradients[static_cast<size_t>(id)] != no_value; });
    if (!op_def(node->op.kind).gradient || !needed[static_cast<size_t>(node->out.at(0))] || (!is_root && !reached))
      continue;
    GradientContext context(tape, *node, gradients, needed, loss_scale);
    op_def(node->op.kind).gradient(context);
    gradients.resize(tape.values().size(), no_value);
  }

  std::vector<ValueId> result;
  for (ValueId id : wanted) {
    if (gradients[static_cast<size_t>(id)] == no_value)
      fail_usage("the loss does not depend on " + tape.value(id).name);
    result.push_back(gradients[static_cast<size_t>(id)]);
  }
  return result;
}

}  // namespace convoy
