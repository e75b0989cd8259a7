// backward_data into few channels compiled for one instruction set; see col2im.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

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
#include "kernels/conv/col2im.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> col2im_avx2_kernels() {
  const auto prepare = [](const Problem& p) -> std::unique_ptr<Prepared> {
    return std::make_unique<set::PreparedCol2im>(p);
  };
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<IsaKernel>("col2im_avx2", Isa::avx2, OpKind::conv_backward_data, set::supports_col2im,
                                             prepare, set::col2im_is_measured_faster));
  return list;
}

}  // namespace convoy
