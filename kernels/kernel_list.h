// The one ordered list of kernels.
#pragma once

#include "core/kernel.h"

namespace convoy {

/// Best first, the plain reference last of the CPU's; those for CUDA devices follow. Built once, on first use.
const KernelList& kernel_list();

}  // namespace convoy
