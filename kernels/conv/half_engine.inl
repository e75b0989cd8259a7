// The engine of direct.inl on f16 arithmetic: twice the multiply-adds per instruction of f32. Included after
// pair_words.inl.
//
// A word holds two neighbouring channels, so a vector of 32 halves sums 16 outputs over even and odd channels apart,
// and the broadcast of a word needs a load port alone (that of 16 bits would take a shuffle too). After `half_run`
// steps the halves are added up, widened and added to f32 sums in the first cache. Vectors go in pairs, one for the
// even outputs of 32, one for the odd ones: lower halves of the first blend with upper halves of the second, the others
// likewise, and one addition leaves 32 sums in order, ready to be widened: 6.5 operations a vector, by itself 9.
//
// Error: a product of a run is rounded at most half_run + 1 times to 11 bits, so a sum errs by (half_run + 1) * 2^-11
// of its terms' magnitudes at most, typically by 2^-10 of the result, like its storage; and by (half_run + 1) * 2^-25
// per run, the spacing of f16 near zero: gradients need their loss scale. A run whose sum passes 65504 becomes
// infinite: in a backward pass the loss scale falls, in a forward pass the run ends as diverged, and `--kernel
// '*=direct_avx512'` sums in f32.
//
// Limit: the f16 FMA rate.

constexpr int64_t half_run = 32;

/// Register block on `Halves`, the CPU's or the emulated f16 vectors.
template <class Halves>
struct HalfBlock {
  using Word = uint32_t;
  static constexpr bool narrows = false;

  template <int rows, int vectors>
  static void run(const BlockCall<Word>& call) {
    typename Halves::Wide total[rows][vectors];
    clear(total);
    const float* sums = call.init;  // then what has been written
    int64_t pitch = call.init_pitch, left = half_run;
    for (int64_t s = 0; s < call.count; ++s) {
      const Segment<Word>& segment = call.segments[s];
      if (call.position >= segment.high || call.position + rows <= segment.low) continue;
      const Word* a = segment.a + call.a_shift;
      const Word* b = segment.b;
      for (int64_t rest = segment.length; rest > 0;) {
        const int64_t steps = std::min(rest, left);
        for (int64_t i = 0; i < steps; ++i, ++a, b += call.width) {
          typename Halves::Wide weight[vectors];
#pragma GCC unroll 4
          for (int q = 0; q < vectors; ++q) weight[q] = Halves::load_words(b + q * Vec::lanes);
#pragma GCC unroll 12
          for (int r = 0; r < rows; ++r) {
            const typename Halves::Wide value = Halves::broadcast(a + r * call.row_step);
#pragma GCC unroll 4
            for (int q = 0; q < vectors; ++q) total[r][q] = Halves::multiply_add(value, weight[q], total[r][q]);
          }
        }
        rest -= steps;
        if ((left -= steps) > 0) continue;
        add(total, sums, pitch, call);
        clear(total);
        sums = call.to, pitch = call.to_pitch, left = half_run;
      }
    }
    add(total, sums, pitch, call);
  }

 private:
  template <int rows, int vectors>
  [[gnu::always_inline]] static void clear(typename Halves::Wide (&total)[rows][vectors]) {
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) total[r][q] = Halves::zero();
  }
  template <int rows, int vectors>
  [[gnu::always_inline]] static void add(const typename Halves::Wide (&total)[rows][vectors], const float* sums,
                                         int64_t pitch, const BlockCall<Word>& call) {
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const auto add_to = [&](int q, __m256i halves) __attribute__((always_inline)) {
        store(call.to + r * call.to_pitch + q * Vec::lanes,
              load(sums + r * pitch + q * Vec::lanes) + widened(f16{}, halves));
      };
#pragma GCC unroll 2
      for (int q = 0; q + 1 < vectors; q += 2) {
        const __m512i both = sums_of_pairs(Halves::bits(total[r][q]), Halves::bits(total[r][q + 1]));
        add_to(q, _mm512_castsi512_si256(both));
        add_to(q + 1, _mm512_extracti64x4_epi64(both, 1));
      }
      if constexpr (vectors % 2 == 1) add_to(vectors - 1, sum_of_pairs(Halves::bits(total[r][vectors - 1])));
    }
  }
  /// The sum of a word's halves.
  static __m256i sum_of_pairs(__m512i total) {
    return _mm512_cvtepi32_epi16(Halves::add(total, _mm512_srli_epi32(total, 16)));
  }
  /// Of two vectors: the first one's in the lower halves, the second one's in the upper.
  static __m512i sums_of_pairs(__m512i first, __m512i second) {
    return Halves::add(blend_halves(first, second), _mm512_rol_epi32(blend_halves(second, first), 16));
  }
};

template <class Halves>
using HalfEngine = PairEngine<f16, HalfBlock<Halves>, WovenWords<f16>>;
