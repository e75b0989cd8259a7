// CUDA kernels of element-wise ops, losses and sums.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> elementwise_cuda_kernels();
std::vector<KernelPtr> cast_cuda_kernels();

}  // namespace convoy
