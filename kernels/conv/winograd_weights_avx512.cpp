// Winograd weight gradients compiled for one instruction set; see winograd_weights.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "core/conv_shapes.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx512_begin.inl"
#include "kernels/conv/register_block.inl"
#include "kernels/conv/winograd_lines.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/winograd.inl"
#include "kernels/conv/winograd_weights.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> winograd_weights_avx512_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/conv/winograd_weights_list.inl"
}

}  // namespace convoy
