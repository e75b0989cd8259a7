// In place of all kernels that need AVX-512 where the build leaves them out (CONVOY_AVX512=OFF).
#include "kernels/conv/conv_kernels.h"
#include "kernels/dense/dense_kernels.h"
#include "kernels/elementwise/vector_kernels.h"

namespace convoy {

std::vector<KernelPtr> avx512_vector_kernels() {
  return {};
}
std::vector<KernelPtr> dense_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> direct_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> col2im_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> few_outputs_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> pool_sparse_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> winograd_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> winograd_weights_avx512_kernels() {
  return {};
}
std::vector<KernelPtr> direct_bf16_kernels() {
  return {};
}
std::vector<KernelPtr> direct_fp16_kernels() {
  return {};
}
std::vector<KernelPtr> emulated_fp16_kernels() {
  return {};
}
std::vector<KernelPtr> direct_amx_kernels() {
  return {};
}
std::vector<KernelPtr> emulated_amx_kernels() {
  return {};
}

}  // namespace convoy
