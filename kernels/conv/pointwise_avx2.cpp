// 1x1 convolutions as products, compiled for one instruction set; see pointwise.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/conv_kernels.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx2.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/register_block.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/pointwise.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> pointwise_avx2_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_activation_forward})
    list.push_back(std::make_unique<IsaKernel>("pointwise_avx2", Isa::avx2, kind, set::supports_pointwise,
                                               set::prepare_pointwise, pointwise_avx2_is_measured_faster));
  return list;
}

}  // namespace convoy
