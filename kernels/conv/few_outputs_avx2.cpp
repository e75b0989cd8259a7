// 1x1 convolutions into few channels compiled for one instruction set; see few_outputs.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx2_begin.inl"
#include "kernels/conv/few_outputs.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> few_outputs_avx2_kernels() {
  constexpr Isa isa = Isa::avx2;
#include "kernels/conv/few_outputs_list.inl"
}

}  // namespace convoy
