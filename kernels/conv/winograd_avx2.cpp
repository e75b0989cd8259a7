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
#pragma GCC target("avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx2.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/winograd_lines.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/winograd.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> winograd_avx2_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_activation_forward,
                      OpKind::conv_pool_forward, OpKind::conv_pool_backward_data}) {
    const auto add = [&](std::string_view name, auto supports, auto prepare, IsaKernel::Prefers prefers = nullptr) {
      list.push_back(std::make_unique<IsaKernel>(name, Isa::avx2, kind, supports, prepare, prefers));
    };
    add("winograd4_avx2", set::supports_winograd<4>, set::prepare_winograd<4>);
    add("winograd_avx2", set::supports_winograd<2>, set::prepare_winograd<2>, set::prefers_winograd);
  }
  return list;
}

}  // namespace convoy
