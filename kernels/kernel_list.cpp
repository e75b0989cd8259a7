// THE list. Order is preference: the first that supports a problem runs it, unless an override or the tuned table says
// otherwise. Every name is a function `std::vector<KernelPtr> name()` of namespace convoy at the end of a file. Nothing
// else declares it: one that is missing does not link, one that returns something else does. Adding a kernel:
// README.md, "Adding a kernel".
#include "kernels/kernel_list.h"

#include "kernels/function_kernel.h"
#include "kernels/plugin_list.h"

// Declares a function and appends what it lists. Those of files that a build leaves out are not asked.
#define APPEND(function)                                                     \
  {                                                                          \
    extern std::vector<KernelPtr> function();                                \
    for (KernelPtr & kernel : function()) list.push_back(std::move(kernel)); \
  }
#define CPU(function) APPEND(function)
#ifdef CONVOY_WITH_AVX2
#define AVX2(function) APPEND(function)
#else
#define AVX2(function)
#endif
#ifdef CONVOY_WITH_AVX512
#define AVX512(function) APPEND(function)
#else
#define AVX512(function)
#endif
#ifdef CONVOY_WITH_ONEDNN
#define ONEDNN(function) APPEND(function)
#else
#define ONEDNN(function)
#endif
#ifdef CONVOY_WITH_CUDA
#define CUDA(function) APPEND(function)
#else
#define CUDA(function)
#endif
#ifdef CONVOY_WITH_CUDNN
#define CUDNN(function) APPEND(function)
#else
#define CUDNN(function)
#endif

namespace convoy {

KernelList make_kernel_list() {
  KernelList list;
  // clang-format off
  AVX512(vector_avx512_kernels)
  AVX2(vector_avx2_kernels)
  CPU(copy_kernels)
  CPU(communication_kernels)
  CPU(norm_small_kernels)
  AVX512(direct_amx_kernels)
  AVX512(winograd_avx512_kernels)
  AVX2(winograd_avx2_kernels)
  AVX512(winograd_weights_avx512_kernels)
  AVX2(winograd_weights_avx2_kernels)
  AVX512(pool_sparse_avx512_kernels)
  AVX2(pool_sparse_avx2_kernels)
  AVX512(col2im_avx512_kernels)
  AVX2(col2im_avx2_kernels)
  AVX512(few_outputs_avx512_kernels)
  AVX2(few_outputs_avx2_kernels)
  AVX512(direct_fp16_kernels)
  AVX512(dense_avx512_kernels)
  AVX2(dense_avx2_kernels)
  ONEDNN(conv_onednn_kernels)
  ONEDNN(dense_onednn_kernels)
  ONEDNN(pool_onednn_kernels)
  AVX512(direct_bf16_kernels)
  AVX512(direct_avx512_kernels)
  AVX2(direct_avx2_kernels)
  CPU(widened_kernels)
  CPU(loss_scale_kernels)
  // Definitions.
  CPU(conv_reference_kernels)
  CPU(definition_reference_kernels)
  CPU(dense_reference_kernels)
  CPU(pool_reference_kernels)
  CPU(elementwise_reference_kernels)
  CPU(norm_reference_kernels)
  CPU(resize_reference_kernels)
  CPU(pixel_reference_kernels)
  CPU(optimizer_reference_kernels)
  CPU(loss_scale_reference_kernels)
  // Of CUDA devices.
  CUDA(communication_cuda_kernels)
  CUDA(elementwise_cuda_kernels)
  CUDA(cast_cuda_kernels)
  CUDA(channel_cuda_kernels)
  CUDA(norm_cuda_kernels)
  CUDA(norm_state_cuda_kernels)
  CUDA(resize_cuda_kernels)
  CUDA(pixel_cuda_kernels)
  CUDA(pool_cuda_kernels)
  CUDA(pool_windows_cuda_kernels)
  CUDA(dense_cuda_kernels)
  CUDA(optimizer_cuda_kernels)
  CUDA(conv_mma_kernels)
  CUDA(conv_few_tma_kernels)
  CUDA(conv_taps_kernels)
  CUDA(conv_rows_kernels)
  CUDA(conv_mma_positions_kernels)
  CUDA(conv_sparse_cuda_kernels)
  CUDA(depthwise_tma_kernels)
  CUDA(depthwise_cuda_kernels)
  CUDNN(conv_cudnn_kernels)
  CUDA(conv_tiled_cuda_kernels)
  CUDA(conv_plain_cuda_kernels)
  // clang-format on
  return with_plugins(std::move(list));
}

const KernelList& kernel_list() {
  static const KernelList list = make_kernel_list();
  return list;
}

}  // namespace convoy
