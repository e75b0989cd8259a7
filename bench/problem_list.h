// The problems that bench_layers times: of a model's training step, of problem files, or one from the command line.
#pragma once

#include <string>
#include <vector>

#include "bench/arguments.h"
#include "core/kernel.h"

namespace convoy::bench {

struct NamedProblem {
  std::string name, pass;
  Problem problem;
};

/// The flags that say which: those of a network, --problem, --problems, --pass, --dtype, --match.
std::vector<Arguments::Flag> problem_flags();

/// Each problem once. Those of a model are what its planned step runs: with this machine's fused kernels and strided
/// slices, so that a tuned table finds them again. Throws Error(usage) for flags that say nothing, or nothing here, and
/// where no problem is left; Error(data) for a file that cannot be opened.
std::vector<NamedProblem> wanted_problems(const Arguments& flags, int threads, DeviceKind device = DeviceKind::cpu);

}  // namespace convoy::bench
