// The engine of direct.inl on VDPBF16PS. Included after pair_words.inl, for AVX512-BF16.

/// VDPBF16PS: two products per lane and instruction.
struct Bf16Dot {
  using Word = uint32_t;
  using Wide = __m512bh;
  static Wide load_words(const Word* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static Wide broadcast(const Word* p) { return reinterpret_cast<__m512bh>(broadcast_word(p)); }
  static Vec multiply_add(Wide a, Wide b, Vec total) { return {_mm512_dpbf16_ps(total.v, a, b)}; }
};

using Bf16Engine = PairEngine<bf16, RegisterBlock<Bf16Dot, true>>;
