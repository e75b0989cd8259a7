// Pool-sparse weight gradients for AVX2; see pool_sparse.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx2_begin.inl"
#include "kernels/conv/pool_sparse.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> pool_sparse_avx2_kernels() {
  constexpr Isa isa = Isa::avx2;
#include "kernels/conv/pool_sparse_list.inl"
}

}  // namespace convoy
