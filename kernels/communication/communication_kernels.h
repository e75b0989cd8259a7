#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> communication_kernels();

}  // namespace convoy
