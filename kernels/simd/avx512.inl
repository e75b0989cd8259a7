// Sixteen f32 lanes. Included inside a namespace, after `#pragma GCC target` for AVX-512 F. Foundation instructions
// only (no BW, DQ, VL): Knights Landing runs every kernel built on this file; tests/isa_rules.sh reads the objects.

struct Vec {
  static constexpr int lanes = 16;
  __m512 v;
  static Vec all(float x);
};
using Mask = __mmask16;
struct Ints {
  __m512i v;
  static Ints all(int x);
};

inline Vec Vec::all(float x) { return {_mm512_set1_ps(x)}; }
inline Ints Ints::all(int x) { return {_mm512_set1_epi32(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
/// b where either is not a number.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec round_nearest(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// 2^n for integral n in the normal range.
inline Vec exp2_integral(Vec n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline Mask greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline Mask is_nan(Vec a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
/// a is larger, or a NaN that b is not.
inline Mask passes(Vec a, Vec b) {
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(b.v, b.v, _CMP_ORD_Q), a.v, b.v, _CMP_NLE_UQ);
}
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m, no.v, yes.v)}; }
inline Ints select(Mask m, Ints yes, Ints no) { return {_mm512_mask_blend_epi32(m, no.v, yes.v)}; }
inline Mask equal(Ints a, Ints b) { return _mm512_cmpeq_epi32_mask(a.v, b.v); }
inline Vec as_floats(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
inline Ints as_ints(Vec a) { return {_mm512_castps_si512(a.v)}; }
/// True when any lane is infinite or not a number.
inline bool any_not_finite(Vec a) {
  const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7f800000));
  return _mm512_cmpeq_epi32_mask(exponent, _mm512_set1_epi32(0x7f800000)) != 0;
}
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }

inline Mask first_lanes(int64_t n) { return static_cast<Mask>((1u << n) - 1u); }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
/// The first n <= 32 16-bit values and zeros. Masked loads of 16 bits are not Foundation: pairs, then an odd last one.
inline __m512i padded_pairs(const void* p, int64_t n) {
  __m512i pairs = _mm512_maskz_loadu_epi32(first_lanes(n / 2), p);
  if (n % 2) {
    uint16_t last;
    std::memcpy(&last, static_cast<const std::byte*>(p) + 2 * (n - 1), sizeof last);
    pairs = _mm512_mask_set1_epi32(pairs, static_cast<Mask>(1u << n / 2), last);
  }
  return pairs;
}
/// Sixteen 16-bit values, or the first n and zeros.
inline __m256i load_halves(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i load_halves(const void* p, int64_t n) { return _mm512_castsi512_si256(padded_pairs(p, n)); }
inline Vec widened(bf16, __m256i halves) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
/// Of 32 values those in even places, or in odd ones: each an operation less than widening 16 in a row.
inline Vec load_even(const bf16* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
inline Vec load_odd(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)))};
}
inline Vec widened(f16, __m256i halves) { return {_mm512_cvtph_ps(halves)}; }
inline Vec widened(int16_t, __m256i halves) { return {_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(halves))}; }
template <class T>
inline Vec load(const T* p) {
  return widened(T{}, load_halves(p));
}
template <class T>
inline Vec load(const T* p, int64_t n) {
  return widened(T{}, load_halves(p, n));
}

/// Rounds to nearest even, NaN kept quiet: bf16 in the upper halves of the lanes, anything in the lower ones.
inline __m512i round_to_upper(Vec a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_or_epi32(rounded, is_nan(a), u, _mm512_set1_epi32(0x400000));
}
/// The same in the lower halves.
inline __m512i to_bf16(Vec a) { return _mm512_srli_epi32(round_to_upper(a), 16); }
inline __m256i to_f16(Vec a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/// Values as they read back after a store of the type.
inline Vec rounded(float, Vec a) { return a; }
inline Vec rounded(bf16, Vec a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(round_to_upper(a), _mm512_set1_epi32(-65536)))};
}
inline Vec rounded(f16, Vec a) { return {_mm512_cvtph_ps(to_f16(a))}; }

inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
/// A whole, aligned cache line past the caches, for lines that stand far apart; `fence` before others read them.
inline void store_line(float* p, Vec a) { _mm512_stream_ps(p, a.v); }
inline void fence() { _mm_sfence(); }
inline void store(bf16* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(to_bf16(a)));
}
inline void store(f16* p, Vec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(a)); }
/// Half a line of 16-bit values; the other half must follow.
inline void store_line(bf16* p, Vec a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(to_bf16(a)));
}
inline void store_line(f16* p, Vec a) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_f16(a)); }
inline void store(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline void store(bf16* p, Vec a, int64_t n) { _mm512_mask_cvtepi32_storeu_epi16(p, first_lanes(n), to_bf16(a)); }
inline void store(f16* p, Vec a, int64_t n) {
  _mm512_mask_cvtepi32_storeu_epi16(p, first_lanes(n), _mm512_cvtepu16_epi32(to_f16(a)));
}

inline Ints load_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints load_bytes(const uint8_t* p, int64_t n) {
  uint8_t padded[16] = {};
  std::memcpy(padded, p, static_cast<size_t>(n));
  return load_bytes(padded);
}
inline Ints load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
/// Both halves of the products of unsigned numbers.
inline void multiply_wide(Ints a, Ints b, Ints& high, Ints& low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v),
                odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  low = {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))};
  high = {_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
}
/// The upper 24 bits as numbers.
inline Vec upper_bits(Ints a) { return {_mm512_cvtepi32_ps(_mm512_srli_epi32(a.v, 8))}; }
/// Turns rows of lanes into columns, four lanes by four: v[m] becomes lane 4j + m of each of the four, j after j.
inline void turn_fours(Vec (&v)[4]) {
  const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(v[0].v, v[1].v)),
                cd = _mm512_castps_pd(_mm512_unpacklo_ps(v[2].v, v[3].v)),
                ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(v[0].v, v[1].v)),
                cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(v[2].v, v[3].v));
  v[0] = {_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd))}, v[1] = {_mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd))};
  v[2] = {_mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high))};
  v[3] = {_mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high))};
}
/// table[lane]; all lanes must be below the number of lanes.
inline Ints look_up_lane(Ints table, Ints lane) { return {_mm512_permutexvar_epi32(lane.v, table.v)}; }
inline void store_bytes(uint8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline void store_bytes(uint8_t* p, Ints a, int64_t n) { _mm512_mask_cvtepi32_storeu_epi8(p, first_lanes(n), a.v); }

/// Every lane's right neighbour, and `behind` in the last one.
inline Vec next_lanes(Vec a, Vec behind) {
  return {_mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(behind.v), _mm512_castps_si512(a.v), 1))};
}

/// table[p[i]] with the counts read as unsigned 16-bit numbers.
inline Vec look_up(const float* table, const int16_t* p) {
  return {_mm512_i32gather_ps(_mm512_cvtepu16_epi32(load_halves(p)), table, 4)};
}
inline Vec look_up(const float* table, const int16_t* p, int64_t n) {
  return {_mm512_i32gather_ps(_mm512_cvtepu16_epi32(load_halves(p, n)), table, 4)};
}

/// Rows and columns change places.
inline void turn_words(__m512i (&m)[16]) {
  __m512i a[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(m[i], m[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(m[i], m[i + 1]);
  }
  // m[4 g + j]: column 4 L + j of rows 4 g to 4 g + 3 in the L-th quarter.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    m[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    m[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    m[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    m[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even = _mm512_shuffle_i32x4(m[j], m[4 + j], 0x88), odd = _mm512_shuffle_i32x4(m[j], m[4 + j], 0xdd);
    const __m512i even_below = _mm512_shuffle_i32x4(m[8 + j], m[12 + j], 0x88),
                  odd_below = _mm512_shuffle_i32x4(m[8 + j], m[12 + j], 0xdd);
    m[j] = _mm512_shuffle_i32x4(even, even_below, 0x88);
    m[4 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
    m[8 + j] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
    m[12 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
  }
}
inline void turn(Vec (&m)[16]) {
  __m512i words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) words[i] = _mm512_castps_si512(m[i].v);
  turn_words(words);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) m[i].v = _mm512_castsi512_ps(words[i]);
}
