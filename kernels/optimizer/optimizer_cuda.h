// CUDA kernels of updates, of the loss scale and of the check for finite gradients.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> optimizer_cuda_kernels();

}  // namespace convoy
