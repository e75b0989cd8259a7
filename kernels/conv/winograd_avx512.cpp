// Winograd convolution compiled for one instruction set; see winograd.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx512_begin.inl"
#include "kernels/conv/winograd_lines.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/winograd.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> winograd_avx512_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/conv/winograd_list.inl"
}

}  // namespace convoy
