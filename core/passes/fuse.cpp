#include "core/passes/fuse.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/by_value.h"
#include "core/passes/passes.h"

namespace convoy {
namespace {

ByValue<int> count_readers(const Tape& tape) {
  ByValue<int> readers(tape.values().size());
  for (const Node& node : tape.nodes())
    for (ValueId id : node.in) ++readers[id];
  return readers;
}

/// Whether one node alone reads the value, and nobody keeps it.
bool is_read_once(const Tape& tape, const ByValue<int>& readers, ValueId id) {
  return readers[id] == 1 && !tape.value(id).keep;
}

/// Of two nodes that become one: whose place it takes.
enum class Place : uint8_t { first, second };

/// Where the first input of a node is the first output of another, which nobody else reads or keeps,
/// `merge(first, second)` may give the node that stands for both.
template <class Merge>
void merge_pairs(Tape& tape, Place place, const Merge& merge) {
  const ByValue<int> readers = count_readers(tape);
  std::map<ValueId, const Node*> writer;
  std::map<const Node*, std::optional<Node>> changes;  // nodes that become another one, or go
  for (const Node& node : tape.nodes()) {
    const auto found = node.in.empty() ? writer.end() : writer.find(node.in[0]);
    if (found != writer.end() && is_read_once(tape, readers, node.in[0]) && !changes.contains(found->second))
      if (std::optional<Node> both = merge(*found->second, node)) {
        changes[place == Place::first ? &node : found->second] = std::nullopt;
        changes[place == Place::first ? found->second : &node] = std::move(both);
      }
    if (!node.out.empty()) writer[node.out[0]] = &node;
  }
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

bool is_unscaled_leaky_relu(const ActivationAttrs& a) {
  return a.function == Activation::leaky_relu && a.scale == 1;
}
bool is_unscaled_leaky_relu(const Node& node) {
  return node.op.kind == OpKind::activation && is_unscaled_leaky_relu(node.op.as<ActivationAttrs>());
}

std::optional<Node> norm_and_relu(const Node& norm, const Node& relu) {
  if (norm.op.kind != OpKind::batch_norm || relu.op != Op{OpKind::activation, ActivationAttrs{}}) return {};
  auto attrs = norm.op.as<BatchNormAttrs>();
  attrs.relu = 1;
  return Node{norm.name, {OpKind::batch_norm, attrs}, norm.in, relu.out};
}

/// A factor above 0 may as well follow the activation.
std::optional<Node> scale_and_activation(const Node& scale, const Node& activation) {
  if (scale.op.kind != OpKind::scale || !is_unscaled_leaky_relu(activation)) return {};
  auto attrs = activation.op.as<ActivationAttrs>();
  attrs.scale = scale.op.as<ScaleAttrs>().alpha;
  if (!(attrs.scale > 0)) return {};
  return Node{activation.name, {OpKind::activation, attrs}, scale.in, activation.out};
}

std::optional<Node> activation_and_pool(const Node& activation, const Node& pool) {
  if (!is_unscaled_leaky_relu(activation) || pool.op.kind != OpKind::max_pool) return {};
  const ActivationPoolAttrs attrs{activation.op.as<ActivationAttrs>(), pool.op.as<PoolAttrs>()};
  return Node{pool.name, {OpKind::activation_max_pool, attrs}, activation.in, pool.out};
}

std::optional<Node> convolution_and_more(const Node& conv, const Node& behind) {
  if (conv.op.kind != OpKind::conv_forward) return {};
  auto attrs = conv.op.as<ConvAttrs>();
  if (behind.op.kind == OpKind::activation_max_pool) {
    const auto& pool = behind.op.as<ActivationPoolAttrs>();
    if (!is_unscaled_leaky_relu(pool.activation)) return {};
    return Node{conv.name, {OpKind::conv_pool_forward, ConvPoolAttrs{attrs, pool}}, conv.in, behind.out};
  }
  if (!is_unscaled_leaky_relu(behind) || attrs.groups != 1) return {};
  attrs.slope = behind.op.as<ActivationAttrs>().slope;
  return Node{conv.name, {OpKind::conv_activation_forward, attrs}, conv.in, behind.out};
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
  merge_pairs(tape, Place::first, norm_and_relu);
  merge_pairs(tape, Place::second, activation_and_pool);
  merge_pairs(tape, Place::second, scale_and_activation);
}

void fuse_convolutions(Tape& tape) {
  merge_pairs(tape, Place::first, convolution_and_more);
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
    if (node.op.kind == OpKind::activation_max_pool_backward &&
        is_unscaled_leaky_relu(node.op.as<ActivationPoolAttrs>().activation))
      unpooled.emplace(node.out[0], node);
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
  const ByValue<int> readers = count_readers(tape);
  ByValue<size_t> writer(tape.values().size());  // node + 1 that writes a value, 0 for inputs and states
  std::vector<Node> nodes = tape.nodes();
  std::vector<bool> dropped(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (ValueId id : nodes[i].out) writer[id] = i + 1;
    if (nodes[i].op.kind != OpKind::add) continue;
    for (size_t which : {1, 0}) {
      const ValueId gradient = nodes[i].in[which], other = nodes[i].in[1 - which];
      const size_t at = writer[gradient];
      if (at == 0 || !is_read_once(tape, readers, gradient)) continue;
      Node& conv = nodes[at - 1];
      // What it adds to must be there already: a later place of the convolution would keep its inputs alive.
      if (conv.op.kind != OpKind::conv_backward_data || conv.in.size() != 2 || writer[other] >= at) continue;
      conv.op.kind = OpKind::conv_backward_data_add;
      conv.in.push_back(other);
      conv.out = nodes[i].out;
      writer[conv.out[0]] = at;
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
  ByValue<bool> live(tape.values().size());
  for (ValueId id : ids_of(tape.values())) live[id] = tape.value(id).keep;
  std::vector<Node> kept;
  for (auto node = tape.nodes().rbegin(); node != tape.nodes().rend(); ++node) {
    const bool root = !node->updated().empty();
    if (!root && std::none_of(node->out.begin(), node->out.end(), [&](ValueId id) { return live[id]; })) continue;
    for (ValueId id : node->in) live[id] = true;
    kept.push_back(*node);
  }
  std::reverse(kept.begin(), kept.end());
  tape.set_nodes(std::move(kept));
}

void merge_equal_nodes(Tape& tape) {
  ByValue<ValueId> replacement(tape.values().size());
  for (ValueId id : ids_of(tape.values())) replacement[id] = id;
  std::vector<Node> kept;
  for (Node node : tape.nodes()) {
    for (ValueId& id : node.in) id = replacement[id];
    const bool pure = node.updated().empty() &&
                      std::none_of(node.out.begin(), node.out.end(), [&](ValueId id) { return tape.value(id).keep; });
    const auto twin = std::find_if(kept.begin(), kept.end(), [&](const Node& other) {
      return pure && other.op == node.op && other.in == node.in;
    });
    if (twin == kept.end()) {
      kept.push_back(std::move(node));
      continue;
    }
    for (size_t i = 0; i < node.out.size(); ++i) replacement[node.out[i]] = twin->out[i];
  }
  tape.set_nodes(std::move(kept));
}

}  // namespace convoy
