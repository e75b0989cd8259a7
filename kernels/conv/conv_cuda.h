// CUDA kernels of convolutions: tensor cores, pool sparsity, cuDNN, and a plain one.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> conv_mma_kernels();          ///< tensor cores (conv_mma.cu)
std::vector<KernelPtr> conv_sparse_cuda_kernels();  ///< weight gradients in f32 from pooled gradients
std::vector<KernelPtr> conv_cudnn_kernels();        ///< cuDNN (conv_cudnn.cpp)
std::vector<KernelPtr> conv_plain_cuda_kernels();   ///< any geometry

}  // namespace convoy
