// Direct, 1x1 and depthwise convolution compiled for one instruction set; see direct.inl, direct_weights.inl,
// pointwise.inl, pointwise_weights.inl, depthwise.inl, depthwise_weights.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx2_begin.inl"
#include "kernels/conv/register_block.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/unpooled_rows.inl"
#include "kernels/conv/direct_plan.inl"
#include "kernels/conv/direct_pack.inl"
#include "kernels/conv/direct.inl"
#include "kernels/conv/direct_weights.inl"
#include "kernels/conv/pointwise.inl"
#include "kernels/conv/pointwise_weights.inl"
#include "kernels/conv/depthwise_units.inl"
#include "kernels/conv/depthwise_pairs.inl"
#include "kernels/conv/depthwise.inl"
#include "kernels/conv/depthwise_weights.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> direct_avx2_kernels() {
  std::vector<KernelPtr> list;
  const auto add = [&](std::string_view name, OpKind kind, FunctionKernel::Supports supports,
                       FunctionKernel::Prepare prepare, IsaKernel::Prefers prefers = direct_avx2_is_measured_faster) {
    list.push_back(std::make_unique<IsaKernel>(name, Isa::avx2, kind, supports, prepare, prefers));
  };
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add})
    add("depthwise_avx2", kind, set::supports_depthwise, set::prepare_depthwise);
  add("depthwise_avx2", OpKind::conv_backward_weights, set::supports_depthwise, set::prepare_depthwise_weights);
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add,
                      OpKind::conv_activation_forward})
    add("pointwise_avx2", kind, set::supports_pointwise, set::prepare_pointwise, pointwise_avx2_is_measured_faster);
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add,
                      OpKind::conv_activation_forward, OpKind::conv_pool_forward, OpKind::conv_pool_backward_data})
    add("direct_avx2", kind, set::supports_direct, set::prepare_direct_with<set::F32Engine>);
  add("direct_avx2", OpKind::conv_backward_weights, set::supports_direct_weights, set::prepare_direct_weights,
      [](const Problem& p) { return direct_avx2_is_measured_faster(p) && !pointwise_avx2_is_measured_faster(p); });
  add("pointwise_avx2", OpKind::conv_backward_weights, set::supports_pointwise_weights, set::prepare_pointwise_weights,
      pointwise_avx2_is_measured_faster);
  return list;
}

}  // namespace convoy
