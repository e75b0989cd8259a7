// What a table of measured kernels does to a run.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"
#include "core/select.h"

namespace convoy {

/// How many nodes of the plans the table, read from `path`, decides and how much of the work, as a line without its
/// end, and how many of its entries fit but for kernels that this machine refuses. Throws Error(usage) where it decides
/// none, and says why, or names kernels that the list lacks.
std::string describe_tuned(const std::vector<const Plan*>& plans, const TunedTable& table, const KernelList& kernels,
                           const std::string& path);

}  // namespace convoy
