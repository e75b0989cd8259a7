// The operands of pointwise_weights.inl with two positions in a word: bf16, products of pairs (VDPBF16PS, which takes
// denormals for zero, in the bias sums too). Included after bf16_engine.inl.

struct Bf16Positions {
  using Dot = Bf16Dot;
  static constexpr int64_t positions = 2;
  static constexpr uint32_t one = 0x3f803f80;
  /// A bf16 widened to f32 is its bits and 16 zeros: the first position moves to the lower half. The second is null past
  /// the last position.
  template <class N>
  static Vec words(const bf16* const* at, int64_t channel, N n) {
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(get(at[0] + channel, n).v), 16);
    if (!at[1]) return {_mm512_castsi512_ps(first)};
    return {_mm512_castsi512_ps(_mm512_or_si512(first, _mm512_castps_si512(get(at[1] + channel, n).v)))};
  }
};

inline std::unique_ptr<Prepared> prepare_pointwise_bf16(const Problem& p) {
  return prepare_pointwise<Bf16Positions>(p, [](DType, auto f) { f(bf16{}); });
}
