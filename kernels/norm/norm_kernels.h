// Batch normalisation. The passes over images are in the vector kernels (norm/vector.inl).
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> norm_small_kernels();  ///< running statistics, gradients of gamma and beta

}  // namespace convoy
