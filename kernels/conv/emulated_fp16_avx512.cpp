// The loop nests of direct_fp16 on f16 arithmetic emulated by AVX-512 Foundation, for tests on CPUs without
// AVX512-FP16.
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

#include "kernels/simd/avx512_begin.inl"
#include "kernels/simd/avx512_words.inl"
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/half_engine.inl"

/// Every operation in f32 and rounded to f16. Products are exact in f32; a sum is rounded twice, which differs from the
/// instruction's one rounding only where the first lands on a tie.
struct EmulatedHalves {
  using Wide = __m512i;
  static Wide zero() { return _mm512_setzero_si512(); }
  static Wide load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static Wide broadcast(const uint32_t* p) { return broadcast_word(p); }
  static Wide multiply_add(Wide a, Wide b, Wide total) {
    return words(fma(even(a), even(b), even(total)), fma(odd(a), odd(b), odd(total)));
  }
  static __m512i bits(Wide a) { return a; }
  static Wide add(Wide a, Wide b) { return words(even(a) + even(b), odd(a) + odd(b)); }

 private:
  static Vec even(Wide a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a))}; }
  static Vec odd(Wide a) { return even(_mm512_srli_epi32(a, 16)); }
  static Wide words(Vec even, Vec odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(to_f16(even)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(to_f16(odd)), 16));
  }
};

#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> emulated_fp16_kernels() {
  using Engine = set::HalfEngine<set::EmulatedHalves>;
  return pair_kernels("emulated_fp16", Isa::avx512, set::supports_pairs<Engine>, set::prepare_direct_with<Engine>,
                      set::prepare_pair_weights<Engine>);
}

}  // namespace convoy
