// Element-wise and pooling kernels compiled for one instruction set; see vector.inl and pool/vector.inl for the loops.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "core/tape.h"
#include "kernels/elementwise/vector_kernels.h"
#include "kernels/simd/isa_kernel.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx512.inl"
#include "kernels/simd/common.inl"
#include "kernels/elementwise/vector.inl"
#include "kernels/pool/vector.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> avx512_vector_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/elementwise/vector_list.inl"
}

}  // namespace convoy
