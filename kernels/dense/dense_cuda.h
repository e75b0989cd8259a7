// CUDA kernels of fully connected layers.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> dense_cuda_kernels();

}  // namespace convoy
