#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> optimizer_cuda_kernels();

}  // namespace convoy
