#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> communication_kernels();
std::vector<KernelPtr> communication_cuda_kernels();

}  // namespace convoy
