// Where the time of a step goes by family of ops: convolutions by extent, stride and dilation, norms, updates and the
// rest.
#pragma once

#include <string>
#include <vector>

#include "core/executor.h"
#include "kernels/roofline/roofs.h"

namespace convoy::apps {

struct FamilyTime {
  std::string name;    ///< "convolution 3x3 dilated", "batch norm", ...
  double seconds = 0;  ///< per run
  double bound = 0;    ///< seconds that its nodes take at least under the roofs
  double flops = 0;    ///< dense count
  double bytes = 0;    ///< operands once
  int nodes = 0;
};

/// Families of the nodes that ran, longest first.
std::vector<FamilyTime> family_times(const Executor& executor, const Roofs& roofs);
/// A line per family: milliseconds per run, share of the run, share of the roofs, GFLOP/s, GB/s and FLOP per byte. Many
/// FLOP per byte are bound by arithmetic, few by memory: the knee is the FMA rate over the bandwidth.
std::string family_table(const Executor& executor, const Roofs& roofs);

}  // namespace convoy::apps
