// What this machine can do at best, measured: the roofs that kernels are compared with.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"

namespace convoy {

struct Ceiling {
  std::string name;  ///< of a CPU f32_fma, bf16_dot, f16_fma, amx_bf16, memory; of a device see probe_device
  double value = 0;  ///< GFLOP/s, or GB/s for memory and copy
  std::string unit;
};

/// Runs every probe the CPU supports on `threads` threads for `seconds` each; the best of several short runs. memory
/// takes 96 MiB a thread (192 for one) and is left out where not twice as much is free. On a device that is
/// open: probe_device().
std::vector<Ceiling> measure_ceilings(DeviceKind device, int threads, double seconds);

}  // namespace convoy
