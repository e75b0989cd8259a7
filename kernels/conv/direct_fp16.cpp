// Direct convolution in f16 arithmetic on AVX512-FP16; see direct.inl and half_engine.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/conv/pair_kernels.h"

#pragma GCC push_options
#pragma GCC target("avx512fp16")
#include "kernels/simd/avx512_begin.inl"
#include "kernels/simd/avx512_words.inl"
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/half_engine.inl"

/// Vectors of 32 halves in registers.
struct HardwareHalves {
  using Wide = __m512h;
  static Wide zero() { return _mm512_setzero_ph(); }
  static Wide load_words(const uint32_t* p) { return _mm512_loadu_ph(p); }
  static Wide broadcast(const uint32_t* p) { return _mm512_castsi512_ph(broadcast_word(p)); }
  static Wide multiply_add(Wide a, Wide b, Wide total) { return _mm512_fmadd_ph(a, b, total); }
  static __m512i bits(Wide a) { return _mm512_castph_si512(a); }
  static __m512i add(__m512i a, __m512i b) {
    return _mm512_castph_si512(_mm512_add_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)));
  }
};

#include "kernels/simd/set_end.inl"
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> direct_fp16_kernels() {
  using Engine = set::HalfEngine<set::HardwareHalves>;
  return pair_kernels("direct_fp16", Isa::avx512_fp16, set::supports_pairs<Engine>, set::prepare_direct_with<Engine>,
                      set::prepare_pair_weights<Engine>);
}

}  // namespace convoy
