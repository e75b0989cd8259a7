#include "core/passes/fuse.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/passes/passes.h"

namespace convoy {
namespace {

std::vector<int> count_readers(const Tape& tape) {
  std::vector<int> readers(tape.values().size());
  for (const Node& node : tape.nodes())
    for (ValueId id : node.in) ++readers[static_cast<size_t>(id)];
  return readers;
}

/// Whether one node alone reads the value, and nobody keeps it.
bool is_read_once(const Tape& tape, const std::vector<int>& readers, ValueId id) {
  return readers[static_cast<size_t>(id)] == 1 && !tape.value(id).keep;
}

/// What becomes of nodes: another one, or nothing where another absorbed them.
using Changes = std::map<const Node*, std::optional<Node>>;

void carry_out(Tape& tape, const Changes& changes) {
  std::vector<Node> result;
  for (const Node& node : tape.nodes()) {
    const auto found = changes.find(&node);
    if (found == changes.end())
      result.push_back(node);
    else if (found->second)
      result.push_back(*found->second);
  }
  tape.set_nodes(std::move(result));
}

void fuse_batch_norms(Tape& tape) {
  const std::vector<int> readers = count_readers(tape);
  std::map<ValueId, const Node*> norms;
  Changes changes;
  for (const Node& node : tape.nodes()) {
    if (node.op.kind == OpKind::batch_norm && is_read_once(tape, readers, node.out[0])) norms[node.out[0]] = &node;
    if (node.op != Op{OpKind::activation, ActivationAttrs{}}) continue;  // leaky_relu of slope 0
    const auto found = norms.find(node.in[0]);
    if (found == norms.end()) continue;
    const Node& norm = *found->second;
    BatchNormAttrs attrs = norm.op.as<BatchNormAttrs>();
    attrs.relu = 1;
    changes[&norm] = Node{norm.name, {OpKind::batch_norm, attrs}, norm.in, node.out};
    changes[&node] = std::nullopt;
  }
  carry_out(tape, changes);
}

/// leaky_relu without a scale.
bool is_unscaled_leaky_relu(const Node& node) {
  if (node.op.kind != OpKind::activation) return false;
  const auto& a = node.op.as<ActivationAttrs>();
  return a.function == Activation::leaky_relu && a.scale == 1;
}

/// A factor above 0 may as well follow the activation.
void fuse_scales(Tape& tape) {
  const std::vector<int> readers = count_readers(tape);
  std::map<ValueId, const Node*> scales;
  Changes changes;
  for (const Node& node : tape.nodes()) {
    if (node.op.kind == OpKind::scale && node.op.as<ScaleAttrs>().alpha > 0 && is_read_once(tape, readers, node.out[0]))
      scales[node.out[0]] = &node;
    if (!is_unscaled_leaky_relu(node)) continue;
    const auto found = scales.find(node.in[0]);
    if (found == scales.end()) continue;
    auto attrs = node.op.as<ActivationAttrs>();
    attrs.scale = found->second->op.as<ScaleAttrs>().alpha;
    changes[&node] = Node{node.name, {OpKind::activation, attrs}, found->second->in, node.out};
    changes[found->second] = std::nullopt;
  }
  carry_out(tape, changes);
}

}  // namespace

ValueId LoweringContext::emit(const Op& op, const std::string& what, std::vector<ValueId> in) {
  Node node{name(what), op, std::move(in), {}};
  const auto out = infer(op, tape_.descs(node.in));
  for (size_t i = 0; i < out.size(); ++i)
    node.out.push_back(tape_.temporary(i ? node.name + ":" + std::to_string(i) : node.name, out[i]));
  result_.push_back(node);
  return node.out[0];
}

void LoweringContext::emit_final(const Op& op, const std::string& what, std::vector<ValueId> in) {
  Node node{name(what), op, std::move(in), node_.out};
  if (infer(op, tape_.descs(node.in)) != tape_.descs(node.out))
    fail_runtime(node_.name + ": the lowered definition writes other shapes than the fused op");
  result_.push_back(std::move(node));
}

void fuse(Tape& tape) {
  fuse_batch_norms(tape);
  const std::vector<int> readers = count_readers(tape);
  std::map<ValueId, const Node*> activations;
  for (const Node& node : tape.nodes())
    if (is_unscaled_leaky_relu(node) && is_read_once(tape, readers, node.out[0])) activations[node.out[0]] = &node;

  Changes changes;
  for (const Node& node : tape.nodes()) {
    if (node.op.kind != OpKind::max_pool) continue;
    const auto found = activations.find(node.in[0]);
    if (found == activations.end()) continue;
    const Op op{OpKind::activation_max_pool,
                ActivationPoolAttrs{found->second->op.as<ActivationAttrs>(), node.op.as<PoolAttrs>()}};
    changes[&node] = Node{node.name, op, found->second->in, node.out};
    changes[found->second] = std::nullopt;
  }
  carry_out(tape, changes);
  fuse_scales(tape);
}

void fuse_convolutions(Tape& tape) {
  const std::vector<int> readers = count_readers(tape);
  std::map<ValueId, const Node*> convolutions;
  for (const Node& node : tape.nodes())
    if (node.op.kind == OpKind::conv_forward && is_read_once(tape, readers, node.out[0]))
      convolutions[node.out[0]] = &node;
  Changes changes;
  for (const Node& node : tape.nodes()) {
    const auto found = node.in.empty() ? convolutions.end() : convolutions.find(node.in[0]);
    if (found == convolutions.end()) continue;
    const Node& conv = *found->second;
    auto attrs = conv.op.as<ConvAttrs>();
    if (node.op.kind == OpKind::activation_max_pool) {
      const Op op{OpKind::conv_pool_forward, ConvPoolAttrs{attrs, node.op.as<ActivationPoolAttrs>()}};
      changes[&conv] = Node{conv.name, op, conv.in, node.out};
    } else if (is_unscaled_leaky_relu(node) && attrs.groups == 1) {
      attrs.slope = node.op.as<ActivationAttrs>().slope;
      changes[&conv] = Node{conv.name, {OpKind::conv_activation_forward, attrs}, conv.in, node.out};
    } else {
      continue;
    }
    changes[&node] = std::nullopt;
  }
  carry_out(tape, changes);
}

void forget_dropped(Tape& tape) {
  std::map<ValueId, Node> forward, gradients;  // dropouts by what they read and by what they write
  std::vector<Node> nodes = tape.nodes();
  for (Node& node : nodes) {
    if (node.op.kind == OpKind::dropout) forward.emplace(node.in[0], node), gradients.emplace(node.out[0], node);
    if (node.op.kind != OpKind::activation_backward) continue;
    const auto& a = node.op.as<ActivationAttrs>();
    const auto left = forward.find(node.in[1]), gradient = gradients.find(node.in[0]);
    // Both draw the same words.
    if (left == forward.end() || gradient == gradients.end() || left->second.op != gradient->second.op ||
        left->second.in[1] != gradient->second.in[1])
      continue;
    if (a.function == Activation::leaky_relu && a.slope >= 0 && a.scale > 0) node.in[1] = left->second.out[0];
  }
  tape.set_nodes(std::move(nodes));
}

void fuse_backward(Tape& tape) {
  std::map<ValueId, Node> unpooled;
  std::vector<Node> result;
  for (Node node : tape.nodes()) {
    if (node.op.kind == OpKind::activation_max_pool_backward) unpooled.emplace(node.out[0], node);
    if (node.op.kind == OpKind::conv_backward_data && node.in.size() == 2) {
      if (const auto found = unpooled.find(node.in[0]); found != unpooled.end()) {
        const Node& pool = found->second;
        node.op = {OpKind::conv_pool_backward_data,
                   ConvPoolAttrs{node.op.as<ConvAttrs>(), pool.op.as<ActivationPoolAttrs>()}};
        node.in = {pool.in[0], pool.in[1], pool.in[2], node.in[1]};
      }
    }
    if (node.op.kind == OpKind::conv_backward_weights) {
      if (const auto found = unpooled.find(node.in[1]); found != unpooled.end()) {
        const Node& pool = found->second;
        node.op = {OpKind::conv_pool_backward_weights,
                   ConvPoolAttrs{node.op.as<ConvAttrs>(), pool.op.as<ActivationPoolAttrs>()}};
        node.in = {node.in[0], pool.in[0], pool.in[1], pool.in[2]};
      }
    }
    result.push_back(std::move(node));
  }
  tape.set_nodes(std::move(result));
}

void fuse_gradient_sums(Tape& tape) {
  const std::vector<int> readers = count_readers(tape);
  std::vector<size_t> writer(tape.values().size());  // node + 1 that writes a value, 0 for inputs and states
  std::vector<Node> nodes = tape.nodes();
  std::vector<bool> dropped(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (ValueId id : nodes[i].out) writer[static_cast<size_t>(id)] = i + 1;
    if (nodes[i].op.kind != OpKind::add) continue;
    for (size_t which : {1, 0}) {
      const ValueId gradient = nodes[i].in[which], other = nodes[i].in[1 - which];
      const size_t at = writer[static_cast<size_t>(gradient)];
      if (at == 0 || !is_read_once(tape, readers, gradient)) continue;
      Node& conv = nodes[at - 1];
      // What it adds to must be there already: a later place of the convolution would keep its inputs alive.
      if (conv.op.kind != OpKind::conv_backward_data || conv.in.size() != 2 || writer[static_cast<size_t>(other)] >= at)
        continue;
      conv.op.kind = OpKind::conv_backward_data_add;
      conv.in.push_back(other);
      conv.out = nodes[i].out;
      writer[static_cast<size_t>(conv.out[0])] = at;
      dropped[i] = true;
      break;
    }
  }
  std::vector<Node> kept;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!dropped[i]) kept.push_back(std::move(nodes[i]));
  tape.set_nodes(std::move(kept));
}

void lower(Tape& tape, const std::function<bool(const Node&)>& keep_fused) {
  // A definition may hold fused ops itself.
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<Node> before = tape.nodes();
    std::vector<Node> result;
    for (const Node& node : before) {
      const OpDef& def = op_def(node.op.kind);
      if (!def.lower || keep_fused(node)) {
        result.push_back(node);
        continue;
      }
      LoweringContext context(tape, node, result);
      def.lower(context);
      changed = true;
    }
    tape.set_nodes(std::move(result));
  }
}

Definition definition_of(const Op& op, std::span<const TensorDesc> in) {
  Definition d;
  for (size_t i = 0; i < in.size(); ++i) d.in.push_back(d.tape.input("in" + std::to_string(i), in[i]));
  d.out = d.tape.add(op, "fused", d.in).out;
  lower(d.tape, [](const Node&) { return false; });
  return d;
}

void drop_dead_nodes(Tape& tape) {
  std::vector<bool> live(tape.values().size());
  for (size_t i = 0; i < live.size(); ++i) live[i] = tape.values()[i].keep;
  std::vector<Node> kept;
  for (auto node = tape.nodes().rbegin(); node != tape.nodes().rend(); ++node) {
    const bool root = !node->updated().empty();
    if (!root &&
        std::none_of(node->out.begin(), node->out.end(), [&](ValueId id) { return live[static_cast<size_t>(id)]; }))
      continue;
    for (ValueId id : node->in) live[static_cast<size_t>(id)] = true;
    kept.push_back(*node);
  }
  std::reverse(kept.begin(), kept.end());
  tape.set_nodes(std::move(kept));
}

void merge_equal_nodes(Tape& tape) {
  std::vector<ValueId> replacement(tape.values().size());
  for (size_t i = 0; i < replacement.size(); ++i) replacement[i] = static_cast<ValueId>(i);
  std::vector<Node> kept;
  for (Node node : tape.nodes()) {
    for (ValueId& id : node.in) id = replacement[static_cast<size_t>(id)];
    const bool pure = node.updated().empty() &&
                      std::none_of(node.out.begin(), node.out.end(), [&](ValueId id) { return tape.value(id).keep; });
    const auto twin = std::find_if(kept.begin(), kept.end(), [&](const Node& other) {
      return pure && other.op == node.op && other.in == node.in;
    });
    if (twin == kept.end()) {
      kept.push_back(std::move(node));
      continue;
    }
    for (size_t i = 0; i < node.out.size(); ++i) replacement[static_cast<size_t>(node.out[i])] = twin->out[i];
  }
  tape.set_nodes(std::move(kept));
}

}  // namespace convoy
