// Direct convolution on bf16 pairs with VDPBF16PS; see direct.inl and bf16_engine.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/conv/pair_kernels.h"

#pragma GCC push_options
#pragma GCC target("avx512bf16")
#include "kernels/simd/avx512_begin.inl"
#include "kernels/simd/avx512_words.inl"
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/bf16_engine.inl"
#include "kernels/conv/pointwise_weights.inl"
#include "kernels/conv/pointwise_pairs.inl"
#include "kernels/simd/set_end.inl"
#pragma GCC pop_options

namespace convoy {
namespace {

Support at_full_rate(const Support& support) {
  if (support.ok && !cpu_features().fast_bf16_dot)
    return Support::no("VDPBF16PS runs at half the f32 rate on this CPU");
  return support;
}

Support supports_bf16(const Problem& p) {
  return at_full_rate(set::supports_pairs<set::Bf16Engine>(p));
}

Support supports_pointwise_bf16(const Problem& p) {
  const Support support = set::supports_pairs<set::Bf16Engine>(p);
  return at_full_rate(support.ok ? set::supports_pointwise_weights(p) : support);
}

}  // namespace

std::vector<KernelPtr> direct_bf16_kernels() {
  std::vector<KernelPtr> list =
      pair_kernels("direct_bf16", Isa::avx512_bf16, supports_bf16, set::prepare_direct_with<set::Bf16Engine>,
                   set::prepare_pair_weights<set::Bf16Engine>, direct_bf16_is_measured_faster);
  list.insert(list.begin(),
              std::make_unique<IsaKernel>("pointwise_bf16", Isa::avx512_bf16, OpKind::conv_backward_weights,
                                          supports_pointwise_bf16, set::prepare_pointwise_bf16,
                                          pointwise_bf16_is_measured_faster));
  return list;
}

}  // namespace convoy
