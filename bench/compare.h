// Two runs of bench_layers, problem by problem.
#pragma once

#include <string>

namespace convoy::bench {

/// Prints the ceilings of both and warns where they differ by more than a tenth; the times of each problem and kernel
/// in both, slower or faster by how much, and whether chance explains it; what only one of them holds; what is wrong or
/// refused in the new run and was not in the old one. Returns the exit code: 1 where the new run has wrong results.
/// Throws Error(data) where they have no time in common.
int compare(const std::string& old_path, const std::string& new_path, double significance);

}  // namespace convoy::bench
