#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// Element-wise, pooling, loss, sum and optimizer kernels, one list per instruction set.
std::vector<KernelPtr> avx512_vector_kernels();
std::vector<KernelPtr> avx2_vector_kernels();
/// concat, slice, pad_channels: row copies, the same on every CPU.
std::vector<KernelPtr> copy_kernels();

}  // namespace convoy
