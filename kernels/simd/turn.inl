// Included after avx512.inl: matrices of words in AVX-512 registers.

/// Rows and columns of a 16 x 16 matrix of words change places.
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
    const __m512i even_below = _mm512_shuffle_i32x4(m[8 + j], m[12 + j], 0x88), odd_below = _mm512_shuffle_i32x4(m[8 + j], m[12 + j], 0xdd);
    m[j] = _mm512_shuffle_i32x4(even, even_below, 0x88);
    m[4 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
    m[8 + j] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
    m[12 + j] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
  }
}
