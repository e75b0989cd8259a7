// What the open CUDA device can do at best, measured by kernels that do nothing else.
#pragma once

#include <vector>

#include "core/dtype.h"
#include "kernels/roofline/ceilings.h"

namespace convoy {

/// f32_fma; bf16_mma, f16_mma (mma.sync); bf16_wgmma, f16_wgmma (9.0's warpgroup products); copy (read and written):
/// the best of several runs of some milliseconds each; empty without an open device.
std::vector<Ceiling> probe_device();

namespace cuda {
/// Of bf16 or f16 on a device of compute capability 9.0, in GFLOP/s (wgmma_probe.cu).
double wgmma_rate(DType type, int rounds);
}  // namespace cuda

}  // namespace convoy
