#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// Convolutions in both layouts, dense layers and pooling through oneDNN. Empty when built without it.
std::vector<KernelPtr> onednn_conv_kernels();
std::vector<KernelPtr> onednn_dense_kernels();
std::vector<KernelPtr> onednn_pool_kernels();

}  // namespace convoy
