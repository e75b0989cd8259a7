// Lanes as words of two 16-bit values. Included after avx512.inl; Foundation instructions only, too.

/// Sixteen words of 32 bits, in which kernels of 16-bit types keep two values.
using WordVec = __m512i;
inline WordVec no_words() { return _mm512_setzero_si512(); }
inline void store_words(uint32_t* p, WordVec a) { _mm512_storeu_si512(p, a); }
/// Values of a 16-bit type in the lower halves of the lanes.
inline Ints as_halves(bf16, Vec a) { return {to_bf16(a)}; }
inline Ints as_halves(f16, Vec a) { return {_mm512_cvtepu16_epi32(to_f16(a))}; }
template <class T>
inline void store_halves(T* p, Ints a, std::integral_constant<int64_t, 0>) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
template <class T>
inline void store_halves(T* p, Ints a, int64_t n) {
  _mm512_mask_cvtepi32_storeu_epi16(p, first_lanes(n), a.v);
}

/// 16 neighbouring values of a 16-bit type, each in the lower half of a lane; a tail of n is filled up with zeros.
template <class T>
inline WordVec low_halves(const T* p, std::integral_constant<int64_t, 0>) {
  return _mm512_cvtepu16_epi32(load_halves(p));
}
template <class T>
inline WordVec low_halves(const T* p, int64_t n) {
  return _mm512_cvtepu16_epi32(load_halves(p, n));
}

/// Neighbouring values of a 16-bit type, two in a lane, filled up with zeros behind the first n.
template <class T>
inline WordVec load_pairs(const T* p, int64_t n) {
  return n == 2 * Vec::lanes ? _mm512_loadu_si512(p) : padded_pairs(p, n);
}

/// The lower halves of one vector's lanes and the upper halves of another's.
inline WordVec blend_halves(WordVec lower, WordVec upper) {
  constexpr int lower_where_set = 0xe4;  // of (lower, upper, mask)
  return _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi32(0xffff), lower_where_set);
}

/// Words of two positions for 32 channels, every other one: those of even channels, then those of odd ones. A pair of
/// vectors in the order of WovenWords.
inline void store_woven(WordVec first, WordVec second, uint32_t* to) {
  _mm512_storeu_si512(to, blend_halves(first, _mm512_slli_epi32(second, 16)));
  _mm512_storeu_si512(to + Vec::lanes, blend_halves(_mm512_srli_epi32(first, 16), second));
}

/// Words of two positions for neighbouring channels; of one alone: low_halves.
template <class T, class N>
inline WordVec pair_positions(const T* first, const T* second, N n) {
  return _mm512_or_si512(low_halves(first, n), _mm512_slli_epi32(low_halves(second, n), 16));
}

/// A word in every lane; `p` may point between two words: weight gradients start runs at odd positions.
inline WordVec broadcast_word(const uint32_t* p) {
  int word;
  std::memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}
