#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// Fully connected layers, one list per instruction set.
std::vector<KernelPtr> dense_avx512_kernels();
std::vector<KernelPtr> dense_avx2_kernels();

}  // namespace convoy
