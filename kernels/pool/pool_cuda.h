// CUDA kernels of pools.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> pool_cuda_kernels();          ///< max-pools of windows side by side
std::vector<KernelPtr> pool_windows_cuda_kernels();  ///< any windows, averages too

}  // namespace convoy
