#include "core/backward.h"

#include <algorithm>

namespace convoy {

std::string layer_of(const std::string& node_name) {
  return node_name.substr(0, node_name.rfind('.'));
}

std::vector<ValueId> GradientContext::emit(const Op& op, const std::string& what, std::vector<ValueId> in) {
  return tape_.add(op, layer_of(node_.name) + "." + what, std::move(in)).out;
}

ValueId GradientContext::as(ValueId gradient, DType type) {
  return desc(gradient).dtype == type ? gradient
                                      : emit({OpKind::cast, CastAttrs{type}}, "cast_gradient", {gradient})[0];
}

ValueId GradientContext::out_gradient(size_t i) {
  ValueId& gradient = gradients_.at(out(i));
  if (gradient != no_value && op().kind != OpKind::cast) gradient = as(gradient, desc(out(i)).dtype);
  return gradient;
}

void GradientContext::add(size_t i, ValueId gradient) {
  ValueId& slot = gradients_.at(in(i));
  if (slot == no_value) {
    slot = gradient;
    return;
  }
  const DType a = desc(slot).dtype, b = desc(gradient).dtype, wider = size_of(a) >= size_of(b) ? a : b;
  slot = emit({OpKind::add, NoAttrs{}}, "add_gradients", {as(slot, wider), as(gradient, wider)})[0];
}

std::vector<ValueId> differentiate(Tape& tape, ValueId loss, ValueId loss_scale, std::span<const ValueId> wanted) {
  const std::vector<Node> forward = tape.nodes();
  // Other gradients need one from behind their node.
  const bool is_loss = std::any_of(forward.begin(), forward.end(), [&](const Node& node) {
    const bool kind = node.op.kind == OpKind::loss || node.op.kind == OpKind::pixel_loss;
    return kind && node.out.at(0) == loss;
  });
  if (!is_loss) fail_usage("differentiate: expected the output of a loss node, found " + tape.value(loss).name);
  // Both tables are of the forward pass: nobody asks for gradients of gradients.
  ByValue<bool> needed(tape.values().size());
  ByValue<ValueId> gradients(tape.values().size(), no_value);
  for (ValueId id : wanted) needed.at(id) = true;
  ByValue<bool> leads(tape.values().size());  // to the loss
  leads.at(loss) = true;
  for (auto node = forward.rbegin(); node != forward.rend(); ++node)
    if (std::any_of(node->out.begin(), node->out.end(), [&](ValueId id) { return leads[id]; }))
      for (ValueId id : node->in) leads[id] = true;
  for (const Node& node : forward) {
    if (std::none_of(node.in.begin(), node.in.end(), [&](ValueId id) { return needed[id]; })) continue;
    const OpDef& def = op_def(node.op.kind);
    if (!def.gradient && !def.gradient_in_readers &&
        std::any_of(node.out.begin(), node.out.end(), [&](ValueId id) { return leads[id]; }))
      fail_usage("differentiate: the loss depends on " + node.name + ", but no gradient flows through " +
                 std::string(def.name));
    if (def.gradient)
      for (ValueId id : node.out) needed[id] = true;
  }

  for (auto node = forward.rbegin(); node != forward.rend(); ++node) {
    const bool is_root = std::find(node->out.begin(), node->out.end(), loss) != node->out.end();
    const bool reached =
        std::any_of(node->out.begin(), node->out.end(), [&](ValueId id) { return gradients[id] != no_value; });
    const bool leads_on = std::any_of(node->in.begin(), node->in.end(), [&](ValueId id) { return needed[id]; });
    if (!op_def(node->op.kind).gradient || !leads_on || (!is_root && !reached)) continue;
    GradientContext context(tape, *node, gradients, needed, loss_scale);
    op_def(node->op.kind).gradient(context);
  }

  std::vector<ValueId> result;
  for (ValueId id : wanted) {
    if (gradients[id] == no_value) fail_usage("the loss does not depend on " + tape.value(id).name);
    result.push_back(gradients[id]);
  }
  return result;
}

}  // namespace convoy
