// Wishes for kernels that came to nothing.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"
#include "core/select.h"

namespace convoy {

/// Whether an override speaks of a node. Nodes that pack weights choose no kernel: theirs is their reader's.
bool speaks_of(const KernelOverride& wish, const PlannedNode& node);

/// A line without its end for every pattern among the overrides whose kernel runs none of the nodes that it matches in
/// the plans: how many these are, and why the first one that the kernel knows does not run it. Full names are not among
/// them, since plans insist on these.
std::vector<std::string> idle_overrides(const std::vector<const Plan*>& plans, const Selection& selection,
                                        const KernelList& kernels);

}  // namespace convoy
