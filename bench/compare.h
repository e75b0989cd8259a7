// Two runs of bench_layers, problem by problem.
#pragma once

#include <string>

namespace convoy::bench {

/// Which differences count.
struct Judgement {
  /// The share of false ones that is put up with among those that are called: a bound for q, see false_discovery.
  double significance = 0.05;
  /// Medians have to differ by this share at least: processes differ by some percent among themselves (where their
  /// memory lies, who else is there), which the samples inside each cannot tell.
  double least = 0.05;
  bool slower_fails = false;  ///< ends with 1, as wrong results do; of kernels that take 10 microseconds or more
};

/// Prints the commits of both and warns where machine, threads, CONVOY_MAX_ISA or --cold differ, as far as both say
/// them; the ceilings of both, with a warning where they differ by more than a tenth; the times of each problem and
/// kernel in both, slower or faster by how much, and whether chance explains it; how far the library's own times moved;
/// what only one of them holds; what is wrong or refused in the new run and was not in the old one. Returns the exit
/// code: 1 where the new run has wrong results or, where that fails, slower kernels of our own. Throws Error(data)
/// where they have no time in common.
int compare(const std::string& old_path, const std::string& new_path, const Judgement& judgement);

}  // namespace convoy::bench
