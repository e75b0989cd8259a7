// CUDA kernels of batch normalisation.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> norm_cuda_kernels();
std::vector<KernelPtr> norm_state_cuda_kernels();  ///< gradients of gamma and beta, running statistics

}  // namespace convoy
