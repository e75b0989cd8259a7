// backward_data into few channels compiled for one instruction set; see col2im.inl.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx2_begin.inl"
#include "kernels/conv/col2im.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> col2im_avx2_kernels() {
  constexpr Isa isa = Isa::avx2;
#include "kernels/conv/col2im_list.inl"
}

}  // namespace convoy
