// Winograd weight gradients compiled for one instruction set; see winograd_weights.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "core/conv_shapes.h"
#include "kernels/conv/conv_kernels.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx2.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/register_block.inl"
#include "kernels/conv/winograd_lines.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/winograd.inl"
#include "kernels/conv/winograd_weights.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> winograd_weights_avx2_kernels() {
  std::vector<KernelPtr> list;
  const auto add = [&](std::string_view name, FunctionKernel::Supports supports, FunctionKernel::Prepare prepare) {
    list.push_back(std::make_unique<IsaKernel>(name, Isa::avx2, OpKind::conv_backward_weights, supports, prepare,
                                               set::prefers_winograd_weights));
  };
  add("winograd4_avx2", set::supports_winograd_weights<4>, set::prepare_winograd_weights<4>);
  add("winograd_avx2", set::supports_winograd_weights<2>, set::prepare_winograd_weights<2>);
  return list;
}

}  // namespace convoy
