// What the open CUDA device can do at best, measured by kernels that do nothing else.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"

namespace convoy {

struct DeviceProbe {
  std::string name;  ///< f32_fma; bf16_mma, f16_mma (mma.sync); bf16_wgmma, f16_wgmma (9.0's warpgroup products); copy
  double value = 0;  ///< GFLOP/s; GB/s read and written for copy
  std::string unit;
};

/// The best of several runs of some milliseconds each; empty without an open device.
std::vector<DeviceProbe> probe_device();

namespace cuda {
/// Of bf16 or f16 on a device of compute capability 9.0, in GFLOP/s (wgmma_probe.cu).
double wgmma_rate(DType type, int rounds);
}  // namespace cuda

}  // namespace convoy
