// CUDA kernels of the loss and the predicted class per pixel.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> pixel_cuda_kernels();

}  // namespace convoy
