// What this machine can do at best, measured: the roofs that kernels are compared with.
#pragma once

#include <string>
#include <vector>

namespace convoy::bench {

struct Ceiling {
  std::string name;  ///< f32_fma, bf16_dot, f16_fma, amx_bf16, triad
  double value = 0;  ///< GFLOP/s, or GB/s for triad
  std::string unit;
};

/// Runs every probe the CPU supports on `threads` threads for `seconds` each; the best of several short runs.
std::vector<Ceiling> measure_ceilings(int threads, double seconds);

/// Says which ceilings differ by more than a tenth between the start and the end of a run, whose shares of the ceiling
/// are off by as much then; empty where none does.
std::string changed_ceilings(const std::vector<Ceiling>& start, const std::vector<Ceiling>& end);

}  // namespace convoy::bench
