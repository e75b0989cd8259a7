// Whether a machine was as fast at the end of a run as at its start.
#pragma once

#include <string>
#include <vector>

#include "kernels/roofline/ceilings.h"

namespace convoy::bench {

/// Says which ceilings differ by more than a tenth between the start and the end of a run, whose shares of the ceiling
/// are off by as much then; empty where none does.
std::string changed_ceilings(const std::vector<Ceiling>& start, const std::vector<Ceiling>& end);

}  // namespace convoy::bench
