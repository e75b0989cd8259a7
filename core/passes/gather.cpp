// An accelerator pays for every launch; nodes that touch a few numbers are little else.
#include <algorithm>

#include "core/passes/passes.h"

namespace convoy {
namespace {

/// Takes the nodes that `wanted` says yes to out of the list.
template <class Wanted>
std::vector<Node> take(std::vector<Node>& nodes, Wanted&& wanted) {
  std::vector<Node> taken, kept;
  for (Node& node : nodes) (wanted(node) ? taken : kept).push_back(std::move(node));
  nodes = std::move(kept);
  return taken;
}

/// Kernels join nodes of equal attributes.
template <class Key>
void sort_by(std::vector<Node>& nodes, Key&& key) {
  std::stable_sort(nodes.begin(), nodes.end(), [&](const Node& a, const Node& b) { return key(a) < key(b); });
}

bool reads_any(const Node& node, const std::vector<Node>& writers) {
  return std::any_of(writers.begin(), writers.end(), [&](const Node& writer) {
    return std::any_of(writer.out.begin(), writer.out.end(),
                       [&](ValueId id) { return std::count(node.in.begin(), node.in.end(), id) > 0; });
  });
}

}  // namespace

void gather(const std::vector<Value>& values, std::vector<Node>& nodes) {
  std::vector<Node> casts = take(nodes, [&](const Node& node) {
    return node.op.kind == OpKind::cast && values[static_cast<size_t>(node.in[0])].kind == ValueKind::state;
  });
  nodes.insert(nodes.begin(), std::make_move_iterator(casts.begin()), std::make_move_iterator(casts.end()));

  std::vector<Node> gradients =
      take(nodes, [](const Node& node) { return node.op.kind == OpKind::batch_norm_backward_parameters; });
  sort_by(gradients, [](const Node& node) { return node.op.as<ScaleAttrs>().alpha; });
  const auto reader =
      std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return reads_any(node, gradients); });
  nodes.insert(reader, std::make_move_iterator(gradients.begin()), std::make_move_iterator(gradients.end()));

  std::vector<Node> statistics =
      take(nodes, [](const Node& node) { return node.op.kind == OpKind::batch_norm_update; });
  sort_by(statistics, [](const Node& node) { return node.op.as<RunningAttrs>().count; });
  nodes.insert(nodes.end(), std::make_move_iterator(statistics.begin()), std::make_move_iterator(statistics.end()));
}

}  // namespace convoy
