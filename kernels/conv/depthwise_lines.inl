// Cache lines of bf16 channels for depthwise_units.inl, AVX-512: even and odd channels apart, which are an instruction
// each to widen, and two to put together again; vectors of 16 neighbours take several times as many.

template <>
struct DepthwiseLine<bf16> {
  static constexpr int64_t channels = 32;
  static int64_t channel_at(int64_t i) { return i < 16 ? 2 * i : 2 * i - 31; }
  struct Sum {
    Vec even, odd;
  };
  using Whole = std::integral_constant<int64_t, 0>;

  static Sum input(const bf16* p, Whole) {
    const __m512i both = _mm512_loadu_si512(p);
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))}};
  }
  static Sum weight(const float* p, Whole) { return {load(p), load(p + 16)}; }
  static Sum bias(const float* p, Whole) {
    if (!p) return {Vec::all(0.0f), Vec::all(0.0f)};
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 low = load(p).v, high = load(p + 16).v;
    return {{_mm512_permutex2var_ps(low, even, high)},
            {_mm512_permutex2var_ps(low, _mm512_or_si512(even, _mm512_set1_epi32(1)), high)}};
  }
  /// Back in the order of the channels.
  static void unpack(float* p, const Sum& total, Whole) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    store(p, {_mm512_permutex2var_ps(total.even.v, low, total.odd.v)});
    store(p + 16, {_mm512_permutex2var_ps(total.even.v, _mm512_add_epi32(low, _mm512_set1_epi32(8)), total.odd.v)});
  }
  static Sum add(const Sum& value, const Sum& weight, const Sum& total) {
    return {fma(value.even, weight.even, total.even), fma(value.odd, weight.odd, total.odd)};
  }
  static Sum plus(const Sum& a, const Sum& b) { return {a.even + b.even, a.odd + b.odd}; }
  static void write(bf16* p, const Sum& total, Whole, bool streams) {
    const __m512i even = _mm512_srli_epi32(round_to_upper(total.even), 16), odd = round_to_upper(total.odd);
    const __m512i line = _mm512_ternarylogic_epi32(_mm512_set1_epi32(-65536), odd, even, 0xca);  // mask ? odd : even
    if (streams)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(p), line);
    else
      _mm512_storeu_si512(p, line);
  }
};
