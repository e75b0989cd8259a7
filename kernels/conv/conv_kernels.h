#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// 3-D Winograd F(2x2x2, 3x3x3), forward and backward_data, one list per instruction set.
std::vector<KernelPtr> winograd_avx512_kernels();
std::vector<KernelPtr> winograd_avx2_kernels();

}  // namespace convoy
