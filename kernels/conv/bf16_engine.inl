// The engine of direct.inl on VDPBF16PS. Included after pair_words.inl, for AVX512-BF16.

/// VDPBF16PS: two products per lane and instruction. Like the products, the rounding of whole blocks without
/// activation flushes subnormal values.
struct Bf16Dot {
  static constexpr bool narrows = true;
  using Word = uint32_t;
  using Wide = __m512bh;
  static Wide load_words(const Word* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static Wide broadcast(const Word* p) { return reinterpret_cast<__m512bh>(broadcast_word(p)); }
  static void store_half(void* to, int64_t at, Vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<bf16*>(to) + at),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
  }
  static void store_line(void* to, int64_t at, Vec a, Vec next, bool streams) {
    auto* line = reinterpret_cast<__m512i*>(static_cast<bf16*>(to) + at);
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(next.v, a.v));
    if (streams)
      _mm512_stream_si512(line, rounded);
    else
      _mm512_storeu_si512(line, rounded);
  }
  static Vec multiply_add(Wide a, Wide b, Vec total) { return {_mm512_dpbf16_ps(total.v, a, b)}; }
};

using Bf16Engine = PairEngine<bf16, RegisterBlock<Bf16Dot, true>>;
