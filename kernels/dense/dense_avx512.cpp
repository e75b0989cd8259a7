// Fully connected layers compiled for one instruction set; see dense.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx512_begin.inl"
#include "kernels/dense/dense.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> dense_avx512_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/dense/dense_list.inl"
}

}  // namespace convoy
