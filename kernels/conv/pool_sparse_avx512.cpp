// Pool-sparse weight gradients for AVX-512; see pool_sparse.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/conv_kernels.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx512.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/pool_sparse.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {
namespace {

/// In bf16 with AMX tiles, which come first in the list: four channels fill a quarter of a step, and maps of few
/// positions less than one.
bool sparse_is_measured_faster(const Problem& p) {
  const Shape& x = p.in[0].shape;
  return p.in[0].dtype == DType::bf16 && (x.c() == 4 || x.elements() / x.c() < 16384);
}

}  // namespace

std::vector<KernelPtr> pool_sparse_avx512_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<IsaKernel>("pool_sparse_avx512", Isa::avx512, OpKind::conv_pool_backward_weights,
                                             set::supports_pool_sparse, set::prepare_pool_sparse,
                                             sparse_is_measured_faster));
  return list;
}

}  // namespace convoy
