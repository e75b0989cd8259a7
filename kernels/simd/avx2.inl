// Eight f32 lanes. Included inside a namespace, after `#pragma GCC target` for AVX2, FMA, F16C.

struct Vec {
  static constexpr int lanes = 8;
  __m256 v;
  static Vec all(float x);
};
struct Mask {
  __m256 m;
};
struct Ints {
  __m256i v;
  static Ints all(int x);
};

inline Vec Vec::all(float x) { return {_mm256_set1_ps(x)}; }
inline Ints Ints::all(int x) { return {_mm256_set1_epi32(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
/// b where either is not a number.
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec round_nearest(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// 2^n for integral n in the normal range.
inline Vec exp2_integral(Vec n) {
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
inline Mask greater(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask is_nan(Vec a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
/// a is larger, or a NaN that b is not.
inline Mask passes(Vec a, Vec b) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_NLE_UQ), _mm256_cmp_ps(b.v, b.v, _CMP_ORD_Q))};
}
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }
inline Ints select(Mask m, Ints yes, Ints no) { return {_mm256_blendv_epi8(no.v, yes.v, _mm256_castps_si256(m.m))}; }
inline Mask equal(Ints a, Ints b) { return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))}; }
inline Vec as_floats(Ints a) { return {_mm256_castsi256_ps(a.v)}; }
inline Ints as_ints(Vec a) { return {_mm256_castps_si256(a.v)}; }
/// True when any lane is infinite or not a number.
inline bool any_not_finite(Vec a) {
  const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x7f800000));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(exponent, _mm256_set1_epi32(0x7f800000))) != 0;
}
inline float sum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  return {_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
}
/// Of 16 values those in even places, or in odd ones: each an operation less than widening 8 in a row.
inline Vec load_even(const bf16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16))};
}
inline Vec load_odd(const bf16* p) {
  return {_mm256_castsi256_ps(
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_set1_epi32(-65536)))};
}
inline Vec load(const f16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline Vec load(const int16_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
/// Tails go through a padded copy: AVX2 has no 16-bit masked loads.
template <class T>
inline Vec load(const T* p, int64_t n) {
  T padded[8] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(T));
  return load(padded);
}

inline __m128i narrow(__m256i words) {  // eight 32-bit values below 65536 to 16 bits
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08));
}
/// Rounds to nearest even, NaN kept quiet: bf16 in the upper halves of the lanes, anything in the lower ones.
inline __m256i round_to_upper(Vec a) {
  const __m256i u = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(a).m));
}
inline __m128i to_bf16(Vec a) { return narrow(_mm256_srli_epi32(round_to_upper(a), 16)); }
inline __m128i to_f16(Vec a) { return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// Values as they read back after a store of the type.
inline Vec rounded(float, Vec a) { return a; }
inline Vec rounded(bf16, Vec a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(round_to_upper(a), _mm256_set1_epi32(-65536)))};
}
inline Vec rounded(f16, Vec a) { return {_mm256_cvtph_ps(to_f16(a))}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline void fence() { _mm_sfence(); }
inline void store(bf16* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(a)); }
inline void store(f16* p, Vec a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16(a)); }
/// Part of an aligned cache line past the caches; the other parts must follow.
inline void store_line(float* p, Vec a) { _mm256_stream_ps(p, a.v); }
inline void store_line(bf16* p, Vec a) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_bf16(a)); }
inline void store_line(f16* p, Vec a) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_f16(a)); }
template <class T>
inline void store(T* p, Vec a, int64_t n) {
  T padded[8];
  store(padded, a);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(T));
}

inline Ints load_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints load_bytes(const uint8_t* p, int64_t n) {
  uint8_t padded[8] = {};
  std::memcpy(padded, p, static_cast<size_t>(n));
  return load_bytes(padded);
}
inline Ints load_ints(const int32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm256_xor_si256(a.v, b.v)}; }
/// Both halves of the products of unsigned numbers.
inline void multiply_wide(Ints a, Ints b, Ints& high, Ints& low) {
  const __m256i even = _mm256_mul_epu32(a.v, b.v),
                odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), _mm256_srli_epi64(b.v, 32));
  low = {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)};
  high = {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)};
}
/// The upper 24 bits as numbers.
inline Vec upper_bits(Ints a) { return {_mm256_cvtepi32_ps(_mm256_srli_epi32(a.v, 8))}; }
/// Turns rows of lanes into columns, four lanes by four: v[m] becomes lane 4j + m of each of the four, j after j.
inline void turn_fours(Vec (&v)[4]) {
  const __m256d ab = _mm256_castps_pd(_mm256_unpacklo_ps(v[0].v, v[1].v)),
                cd = _mm256_castps_pd(_mm256_unpacklo_ps(v[2].v, v[3].v)),
                ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(v[0].v, v[1].v)),
                cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(v[2].v, v[3].v));
  v[0] = {_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd))}, v[1] = {_mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd))};
  v[2] = {_mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high))};
  v[3] = {_mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high))};
}
/// table[lane]; all lanes must be below the number of lanes.
inline Ints look_up_lane(Ints table, Ints lane) { return {_mm256_permutevar8x32_epi32(table.v, lane.v)}; }
inline void store_bytes(uint8_t* p, Ints a) {
  const __m128i words = narrow(a.v);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
inline void store_bytes(uint8_t* p, Ints a, int64_t n) {
  uint8_t padded[8];
  store_bytes(padded, a);
  std::memcpy(p, padded, static_cast<size_t>(n));
}

/// Every lane's right neighbour, and `behind` in the last one.
inline Vec next_lanes(Vec a, Vec behind) {
  const __m256i right = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 7);
  return {_mm256_blend_ps(_mm256_permutevar8x32_ps(a.v, right), behind.v, 0x80)};
}

/// table[p[i]] with the counts read as unsigned 16-bit numbers.
inline Vec look_up(const float* table, const int16_t* p) {
  return {_mm256_i32gather_ps(table, _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 4)};
}
inline Vec look_up(const float* table, const int16_t* p, int64_t n) {
  int16_t padded[8] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(int16_t));
  return look_up(table, padded);
}

/// Rows and columns change places.
inline void turn(Vec (&m)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(m[i].v, m[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(m[i].v, m[i + 1].v);
  }
  // fours[4 g + j]: column j and 4 + j of rows 4 g to 4 g + 3.
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    m[j].v = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
    m[4 + j].v = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
  }
}
