// What the open CUDA device can do at best, measured by kernels that do nothing else.
#pragma once

#include <string>
#include <vector>

namespace convoy {

struct DeviceProbe {
  std::string name;  ///< f32_fma, bf16_mma, f16_mma (as our kernels issue them: mma.sync), copy
  double value = 0;  ///< GFLOP/s; GB/s read and written for copy
  std::string unit;
};

/// The best of several runs of some milliseconds each; empty without an open device.
std::vector<DeviceProbe> probe_device();

}  // namespace convoy
