// Everything at memory speed, compiled for one instruction set; the loops are in the .inl files.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "core/sweep.h"
#include "core/tape.h"
#include "kernels/simd/isa_kernel.h"

#include "kernels/simd/avx512_begin.inl"
#include "kernels/simd/exp.inl"
#include "kernels/elementwise/vector.inl"
#include "kernels/elementwise/dropout.inl"
#include "kernels/optimizer/updates.inl"
#include "kernels/norm/vector.inl"
#include "kernels/pool/vector.inl"
#include "kernels/resize/vector.inl"
#include "kernels/loss/vector.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> vector_avx512_kernels() {
  constexpr Isa isa = Isa::avx512;
#include "kernels/elementwise/vector_list.inl"
}

}  // namespace convoy
