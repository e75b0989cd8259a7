// An accelerator pays for every launch; nodes that touch a few numbers are little else.
#include <algorithm>
#include <set>

#include "core/passes/passes.h"

namespace convoy {
namespace {

// Kernels join nodes of equal attributes, so these are sorted by them.

/// Takes the nodes that `wanted` says yes to out of the list.
template <class Wanted>
std::vector<Node> take(std::vector<Node>& nodes, Wanted&& wanted) {
  std::vector<Node> taken, kept;
  for (Node& node : nodes) (wanted(node) ? taken : kept).push_back(std::move(node));
  nodes = std::move(kept);
  return taken;
}

bool is_gradient(const Node& node) {
  return node.op.kind == OpKind::batch_norm_backward_parameters;
}

/// To where the first of them is read, if that is behind the last (with accumulation each is read where it is written).
void gather_gradients(std::vector<Node>& nodes) {
  std::set<ValueId> written;
  auto last = nodes.begin();
  for (auto node = nodes.begin(); node != nodes.end(); ++node)
    if (is_gradient(*node)) written.insert(node->out.begin(), node->out.end()), last = node;
  const auto reader = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) {
    return std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) { return written.count(id) > 0; });
  });
  if (written.empty() || reader < last) return;
  std::stable_partition(nodes.begin(), reader, [](const Node& node) { return !is_gradient(node); });
  const auto first = std::find_if(nodes.begin(), reader, is_gradient);
  std::stable_sort(first, reader, [](const Node& a, const Node& b) {
    return a.op.as<ScaleAttrs>().alpha < b.op.as<ScaleAttrs>().alpha;
  });
}

}  // namespace

void gather(const std::vector<Value>& values, std::vector<Node>& nodes) {
  std::vector<Node> casts = take(nodes, [&](const Node& node) {
    return node.op.kind == OpKind::cast && values[static_cast<size_t>(node.in[0])].kind == ValueKind::state;
  });
  nodes.insert(nodes.begin(), std::make_move_iterator(casts.begin()), std::make_move_iterator(casts.end()));

  gather_gradients(nodes);

  std::vector<Node> statistics =
      take(nodes, [](const Node& node) { return node.op.kind == OpKind::batch_norm_update; });
  std::stable_sort(statistics.begin(), statistics.end(), [](const Node& a, const Node& b) {
    return a.op.as<RunningAttrs>().count < b.op.as<RunningAttrs>().count;
  });
  nodes.insert(nodes.end(), std::make_move_iterator(statistics.begin()), std::make_move_iterator(statistics.end()));
}

}  // namespace convoy
