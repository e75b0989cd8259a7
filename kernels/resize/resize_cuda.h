// CUDA kernels of bilinear resizing.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> resize_cuda_kernels();

}  // namespace convoy
