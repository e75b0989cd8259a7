#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// 3-D Winograd F(2x2x2, 3x3x3), forward and backward_data, one list per instruction set.
std::vector<KernelPtr> winograd_avx512_kernels();
std::vector<KernelPtr> winograd_avx2_kernels();
/// Weight gradient of convolution + LeakyReLU + 2x2x2 max-pool from the pooled gradient and the arg-max.
std::vector<KernelPtr> pool_sparse_avx512_kernels();
/// The three passes of any convolution as sums over taps.
std::vector<KernelPtr> direct_avx512_kernels();
std::vector<KernelPtr> direct_avx2_kernels();

}  // namespace convoy
