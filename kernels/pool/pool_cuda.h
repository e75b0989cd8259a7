// CUDA kernels of pools, alone and with their activation.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> pool_cuda_kernels();

}  // namespace convoy
