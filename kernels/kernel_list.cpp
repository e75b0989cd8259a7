// THE list. Order is preference: the first that supports a problem runs it, unless an override or the tuned table says
// otherwise. Adding a kernel: README.md, "Adding a kernel".
#include "kernels/kernel_list.h"

#include "kernels/communication/communication_kernels.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/conv_kernels.h"
#include "kernels/dense/dense_cuda.h"
#include "kernels/dense/dense_kernels.h"
#include "kernels/elementwise/channel_cuda.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/vector_kernels.h"
#include "kernels/loss/pixel_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_kernels.h"
#include "kernels/onednn/kernels.h"
#include "kernels/optimizer/optimizer_cuda.h"
#include "kernels/optimizer/optimizer_kernels.h"
#include "kernels/pool/pool_cuda.h"
#include "kernels/reference.h"
#include "kernels/resize/resize_cuda.h"
#include "kernels/widened.h"

namespace convoy {

KernelList make_kernel_list() {
  KernelList list;
  const auto add = [&](std::vector<KernelPtr> kernels) {
    for (KernelPtr& kernel : kernels) list.push_back(std::move(kernel));
  };
  add(avx512_vector_kernels());
  add(avx2_vector_kernels());
  add(copy_kernels());
  add(communication_kernels());
  add(norm_small_kernels());
  add(direct_amx_kernels());
  add(winograd_avx512_kernels());
  add(winograd_avx2_kernels());
  add(winograd_weights_avx512_kernels());
  add(winograd_weights_avx2_kernels());
  add(pool_sparse_avx512_kernels());
  add(pool_sparse_avx2_kernels());
  add(col2im_avx512_kernels());
  add(col2im_avx2_kernels());
  add(few_outputs_avx512_kernels());
  add(few_outputs_avx2_kernels());
  add(direct_fp16_kernels());
  add(dense_avx512_kernels());
  add(dense_avx2_kernels());
#ifdef CONVOY_WITH_ONEDNN
  add(onednn_conv_kernels());
  add(onednn_dense_kernels());
  add(onednn_pool_kernels());
#endif
  add(direct_bf16_kernels());
  add(direct_avx512_kernels());
  add(direct_avx2_kernels());
  add(widened_kernels());
  list.push_back(make_loss_scale_kernel());
  add(conv_reference_kernels());
  add(definition_reference_kernels());
  add(dense_reference_kernels());
  add(pool_reference_kernels());
  add(elementwise_reference_kernels());
  add(norm_reference_kernels());
  add(resize_reference_kernels());
  add(pixel_reference_kernels());
  add(optimizer_reference_kernels());
  list.push_back(make_loss_scale_reference());
#ifdef CONVOY_WITH_CUDA
  add(communication_cuda_kernels());
  add(elementwise_cuda_kernels());
  add(cast_cuda_kernels());
  add(channel_cuda_kernels());
  add(norm_cuda_kernels());
  add(norm_state_cuda_kernels());
  add(resize_cuda_kernels());
  add(pixel_cuda_kernels());
  add(pool_cuda_kernels());
  add(pool_windows_cuda_kernels());
  add(dense_cuda_kernels());
  add(optimizer_cuda_kernels());
  add(conv_mma_kernels());
  add(conv_few_cuda_kernels());
  add(conv_taps_cuda_kernels());
  add(conv_rows_cuda_kernels());
  add(conv_mma_positions_kernels());
  add(conv_sparse_cuda_kernels());
  add(depthwise_tma_cuda_kernels());
  add(depthwise_cuda_kernels());
#ifdef CONVOY_WITH_CUDNN
  add(conv_cudnn_kernels());
#endif
  add(conv_tiled_cuda_kernels());
  add(conv_plain_cuda_kernels());
#endif
  return list;
}

const KernelList& kernel_list() {
  static const KernelList list = make_kernel_list();
  return list;
}

}  // namespace convoy
