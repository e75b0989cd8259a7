// CUDA kernels of batch normalisation.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> norm_cuda_kernels();

}  // namespace convoy
