#include "models/idle_overrides.h"

#include <algorithm>

#include "core/passes/passes.h"

namespace convoy {
namespace {

struct Match {
  const Plan* plan;
  const PlannedNode* node;
};

std::vector<Match> matches_in(const std::vector<const Plan*>& plans, const KernelOverride& wish) {
  std::vector<Match> found;
  for (const Plan* plan : plans)
    for (const PlannedNode& node : plan->nodes)
      if (speaks_of(wish, node)) found.push_back({plan, &node});
  return found;
}

/// "conv1.forward: needs AVX-512"; of the first node where the kernel has more to say than that it is for others.
std::string first_reason(const std::vector<Match>& found, const KernelOverride& wish, const KernelList& kernels) {
  std::string first;
  for (const auto& [plan, node] : found) {
    const Support answer = full_answer_of(kernels, wish.kernel, plan->problem_of(*node));
    const std::string text =
        original_name(node->name) + ": " + (answer.ok ? "another --kernel goes before it" : answer.reason);
    if (answer.ok || !is_for_others(answer)) return text;
    if (first.empty()) first = text;
  }
  return first;
}

}  // namespace

bool speaks_of(const KernelOverride& wish, const PlannedNode& node) {
  return node.op.kind != OpKind::pack && matches(wish.node, original_name(node.name));
}

std::vector<std::string> idle_overrides(const std::vector<const Plan*>& plans, const Selection& selection,
                                        const KernelList& kernels) {
  std::vector<std::string> lines;
  for (const KernelOverride& wish : selection.overrides) {
    const std::vector<Match> found = insists(wish) ? std::vector<Match>{} : matches_in(plans, wish);
    const auto runs = [&](const Match& m) { return m.node->why == "override" && m.node->kernel == wish.kernel; };
    if (found.empty() || std::any_of(found.begin(), found.end(), runs)) continue;
    lines.push_back("--kernel " + wish.node + "=" + wish.kernel + ": runs none of " + std::to_string(found.size()) +
                    " matching nodes; " + first_reason(found, wish, kernels));
  }
  return lines;
}

}  // namespace convoy
