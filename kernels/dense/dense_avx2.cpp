// Fully connected layers compiled for one instruction set; see dense.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/dense/dense_kernels.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx2.inl"
#include "kernels/simd/common.inl"
#include "kernels/dense/dense.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> dense_avx2_kernels() {
  std::vector<KernelPtr> list;
  const auto add = [&](OpKind kind, FunctionKernel::Prepare prepare) {
    list.push_back(std::make_unique<IsaKernel>("dense_avx2", Isa::avx2, kind, set::supports_dense, prepare));
  };
  add(OpKind::dense_forward, set::prepare_dense<OpKind::dense_forward>);
  add(OpKind::dense_backward_data, set::prepare_dense<OpKind::dense_backward_data>);
  add(OpKind::dense_backward_weights, set::prepare_dense<OpKind::dense_backward_weights>);
  return list;
}

}  // namespace convoy
