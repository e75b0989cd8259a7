#include "models/tuned_share.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace convoy {

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
  if (tuned == 0)
    fail_usage(path + ": expected problems of this run, found none among " + std::to_string(table.size()) +
               ": tune with its model, size, batch, type and threads");
  return "tuned table " + path + ": decides " + std::to_string(tuned) + " of " + std::to_string(nodes) +
         " nodes with " + std::to_string(std::lround(100 * tuned_flops / std::max(1.0, flops))) +
         " % of the operations";
}

}  // namespace convoy
