// The operands of pointwise_weights.inl with two positions in a word: bf16, products of pairs (VDPBF16PS, which takes
// denormals for zero, in the bias sums too). Included after bf16_engine.inl.

struct Bf16Positions {
  using Dot = Bf16Dot;
  static constexpr int64_t positions = 2;
  static constexpr uint32_t one = 0x3f803f80;
  /// The second is null past the last position.
  template <class N>
  static Vec words(const bf16* const* at, int64_t channel, N n) {
    return {_mm512_castsi512_ps(at[1] ? pair_positions(at[0] + channel, at[1] + channel, n)
                                      : low_halves(at[0] + channel, n))};
  }
};

inline std::unique_ptr<Prepared> prepare_pointwise_bf16(const Problem& p) {
  return prepare_pointwise_sums<Bf16Positions>(p, [](DType, auto f) { f(bf16{}); });
}
