// Winograd convolution compiled for one instruction set; see winograd.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
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
#include "kernels/conv/winograd_lines.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/winograd.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> winograd_avx512_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_activation_forward,
                      OpKind::conv_pool_forward, OpKind::conv_pool_backward_data}) {
    list.push_back(std::make_unique<IsaKernel>("winograd4_avx512", Isa::avx512, kind, set::supports_winograd<true>,
                                               set::prepare_winograd<true>));
    list.push_back(std::make_unique<IsaKernel>("winograd_avx512", Isa::avx512, kind, set::supports_winograd<false>,
                                               set::prepare_winograd<false>, set::prefers_winograd));
  }
  return list;
}

}  // namespace convoy
