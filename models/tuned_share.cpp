#include "models/tuned_share.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/conv_shapes.h"
#include "core/error.h"

namespace convoy {
namespace {

/// Entries of a table for problems of the plans that decide no node.
struct Undecided {
  std::set<std::string> entries;               ///< all of them, as text
  std::map<std::string, std::string> refused;  ///< those whose kernel refuses, and why
};

Undecided undecided_entries(const std::vector<const Plan*>& plans, const TunedTable& table, const KernelList& kernels) {
  Undecided found;
  for (const Plan* plan : plans)
    for (const PlannedNode& node : plan->nodes) {
      if (node.op.kind == OpKind::pack || node.why == "tuned") continue;
      const Problem problem = without_addend(plan->problem_of(node));  // as the plan asks the table
      const std::string kernel = table.find(problem);
      if (kernel.empty()) continue;
      found.entries.insert(problem.text());
      if (const Support answer = answer_of(kernels, kernel, problem); !answer.ok)
        found.refused[problem.text()] = kernel + ": " + answer.reason;
    }
  return found;
}

std::string entries(size_t count) {
  return std::to_string(count) + (count == 1 ? " entry" : " entries");
}

/// " matches problems of this run, but this machine refuses its kernel (direct_avx512: needs AVX-512 F)"
std::string refusal_text(const Undecided& found) {
  const bool one = found.refused.size() == 1;
  return std::string(one ? " matches" : " match") + " problems of this run, but this machine refuses " +
         (one ? "its kernel (" : "their kernels (") + found.refused.begin()->second + ")";
}

/// Why a table, whose path begins the text, decides nothing.
std::string nothing_decided(const TunedTable& table, const Undecided& found) {
  if (!found.refused.empty()) return entries(found.refused.size()) + refusal_text(found);
  if (!found.entries.empty()) return "--kernel and --no-winograd leave it nothing to decide";
  return "expected problems of this run, found none among " + std::to_string(table.size()) +
         ": tune with its model, size, batch, type and threads";
}

}  // namespace

std::string describe_tuned(const std::vector<const Plan*>& plans, const TunedTable& table, const KernelList& kernels,
                           const std::string& path) {
  table.require_kernels(kernels, path);
  int tuned = 0, nodes = 0;
  double tuned_flops = 0, flops = 0;
  for (const Plan* plan : plans)
    for (const PlannedNode& node : plan->nodes) {
      const bool decided = node.why == "tuned";
      nodes += node.op.kind != OpKind::pack, tuned += decided;
      flops += double(node.flops), tuned_flops += decided ? double(node.flops) : 0;
    }
  const Undecided rest = undecided_entries(plans, table, kernels);
  if (tuned == 0) fail_usage(path + ": " + nothing_decided(table, rest));
  return "tuned table " + path + ": decides " + std::to_string(tuned) + " of " + std::to_string(nodes) +
         " nodes with " + std::to_string(std::lround(100 * tuned_flops / std::max(1.0, flops))) +
         " % of the operations" +
         (rest.refused.empty() ? "" : "; " + entries(rest.refused.size()) + " more" + refusal_text(rest));
}

}  // namespace convoy
