// CUDA kernels along the channel axis: sums, scales, concatenation and slices.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> channel_cuda_kernels();

}  // namespace convoy
