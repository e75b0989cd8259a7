// Where the time of a step goes by family of ops: convolutions by extent, stride and dilation, norms, updates and the
// rest.
#pragma once

#include <string>
#include <vector>

#include "core/executor.h"

namespace convoy::apps {

struct FamilyTime {
  std::string name;    ///< "convolution 3x3 dilated", "batch norm", ...
  double seconds = 0;  ///< per run
  double flops = 0;    ///< dense count
  double bytes = 0;    ///< operands once
  int nodes = 0;
};

/// Families of the nodes that ran, longest first.
std::vector<FamilyTime> family_times(const Executor& executor);
/// A line per family: milliseconds per run, share, GFLOP/s, GB/s and FLOP per byte. Many FLOP per byte are bound by
/// arithmetic, few by memory: the knee is the FMA rate over the bandwidth of bench_layers' ceilings.
std::string family_table(const Executor& executor);

}  // namespace convoy::apps
