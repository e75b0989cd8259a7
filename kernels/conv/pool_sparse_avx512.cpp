// Pool-sparse weight gradients for AVX-512; see pool_sparse.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx512_begin.inl"
#include "kernels/conv/pool_sparse.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> pool_sparse_avx512_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/conv/pool_sparse_list.inl"
}

}  // namespace convoy
