// 1x1 convolutions into few channels compiled for one instruction set; see few_outputs.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/conv/conv_kernels.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx512.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/few_outputs.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> few_outputs_avx512_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(
      std::make_unique<IsaKernel>("few_outputs_avx512", Isa::avx512, OpKind::conv_forward, set::supports_few_outputs,
                                  set::prepare_few_outputs<set::PreparedFewOutputs>, few_outputs_is_measured_faster));
  list.push_back(std::make_unique<IsaKernel>(
      "few_outputs_avx512", Isa::avx512, OpKind::conv_backward_weights, set::supports_few_outputs,
      set::prepare_few_outputs<set::PreparedFewOutputsWeights>, few_outputs_is_measured_faster));
  return list;
}

}  // namespace convoy
