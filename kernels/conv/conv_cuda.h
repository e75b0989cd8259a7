// CUDA kernels of convolutions: tensor cores, pool sparsity, depthwise, cuDNN, and a plain one.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> conv_mma_kernels();  ///< tensor cores (conv_mma.cu)
/// Weight gradients of any geometry on tensor cores (conv_mma_positions.cu).
std::vector<KernelPtr> conv_mma_positions_kernels();
/// Those of images with a stride of at most 2 across on Hopper (conv_taps.cu).
std::vector<KernelPtr> conv_taps_cuda_kernels();
/// Images to at most 32 channels on Hopper (conv_rows.cu).
std::vector<KernelPtr> conv_rows_cuda_kernels();
/// Images whose windows of inputs are few numbers, on Hopper (conv_few_tma.cu).
std::vector<KernelPtr> conv_few_cuda_kernels();
std::vector<KernelPtr> conv_sparse_cuda_kernels();  ///< weight gradients in f32 from pooled gradients
std::vector<KernelPtr> depthwise_cuda_kernels();    ///< 3x3, a filter per channel
/// The same in 16 bits on Hopper (depthwise_tma.cu).
std::vector<KernelPtr> depthwise_tma_cuda_kernels();
std::vector<KernelPtr> conv_cudnn_kernels();       ///< cuDNN (conv_cudnn.cpp)
std::vector<KernelPtr> conv_tiled_cuda_kernels();  ///< weight gradients in f32 sums
std::vector<KernelPtr> conv_plain_cuda_kernels();  ///< any geometry

}  // namespace convoy
