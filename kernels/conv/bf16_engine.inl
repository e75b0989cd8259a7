// The engine of direct.inl on VDPBF16PS. Included after pair_words.inl, for AVX512-BF16.

/// VDPBF16PS: two products per lane and instruction.
struct Bf16Dot {
  using Word = uint32_t;
  using Wide = __m512bh;
  static Wide load_words(const Word* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  /// `p` may point between two words: weight gradients start runs at odd positions.
  static Wide broadcast(const Word* p) {
    int pair;
    std::memcpy(&pair, p, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }
  static Vec multiply_add(Wide a, Wide b, Vec total) { return {_mm512_dpbf16_ps(total.v, a, b)}; }
};

struct Bf16Engine : PairWords<bf16> {
  static constexpr int64_t run_multiple = 1, spare_rows = 0;
  struct Scope {
    Scope() {}
  };
  template <class F>
  static void for_blocks(int64_t count, int64_t vectors, F&& f) {
    for_row_blocks(count, vectors, f);
  }
  static void block(int64_t rows, int64_t vectors, const BlockCall<Word>& call) { run_block<RegisterBlock<Bf16Dot, true>>(rows, vectors, call); }
};
