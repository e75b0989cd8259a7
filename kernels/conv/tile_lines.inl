// Lines of 32 channels between tiles and memory, in instructions that every CPU with AMX has (AVX512-BW, -VL, -BF16),
// and CPUs without it, too: the emulated tiles use them as the hardware's do. Included for AVX512-BF16.

struct TileLines {
  /// Words of the values of two positions (zeros where null) for 16 < n <= 32 channels, in the order of woven_column.
  static void weave(const bf16* first, const bf16* second, int64_t n, uint32_t* low, uint32_t* high) {
    const auto lanes = static_cast<__mmask32>((uint64_t{1} << n) - 1);
    const __m512i a = first ? _mm512_maskz_loadu_epi16(lanes, first) : _mm512_setzero_si512(),
                  b = second ? _mm512_maskz_loadu_epi16(lanes, second) : _mm512_setzero_si512();
    _mm512_storeu_si512(low, _mm512_unpacklo_epi16(a, b));
    _mm512_storeu_si512(high, _mm512_unpackhi_epi16(a, b));
  }
  /// The first n <= 32 values, filled up with zeros.
  static void copy_line(const bf16* from, int64_t n, bf16* to) {
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), from));
  }
  /// 16 positions of four channels, one behind the other, to rows of channels.
  static void turn_four(const bf16* from, bf16* to, int64_t pitch) {
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14),
                  odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 32);
    // A 64-bit lane holds the channels of a position; pairs of positions meet in words of a channel.
    const __m512i first = _mm512_permutex2var_epi64(a, even, b), second = _mm512_permutex2var_epi64(a, odd, b);
    const __m512i low_mask = _mm512_set1_epi32(0xffff);
    const __m512i low = _mm512_or_si512(_mm512_and_si512(first, low_mask), _mm512_slli_epi32(second, 16));
    const __m512i high = _mm512_or_si512(_mm512_srli_epi32(first, 16), _mm512_andnot_si512(low_mask, second));
    // low: words of channels 0, 2, 0, 2, ...; high: 1, 3, ...
    const auto put_words = [&](int64_t c, __m512i lanes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c * pitch), _mm512_cvtepi64_epi32(lanes));
    };
    put_words(0, low), put_words(1, high), put_words(2, _mm512_srli_epi64(low, 32)),
        put_words(3, _mm512_srli_epi64(high, 32));
  }
  /// The first and the second values of 16 words.
  static Vec first_halves(const uint32_t* words) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(words), 16))};
  }
  static Vec second_halves(const uint32_t* words) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(-65536)))};
  }
  /// 32 rounded sums, subnormal ones as zero.
  static void store_line(bf16* to, Vec low, Vec high, bool streams) {
    const auto line = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v));
    if (streams)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    else
      _mm512_storeu_si512(to, line);
  }
  /// LeakyReLU and maximum of `size` (4 or 8) positions, 32 channels at once as 16-bit integers in the order of the
  /// values: the bits of pool_window.inl, but that subnormal values and -0 become 0. The positions of code q stand at
  /// corner + (q / 2) * row + (q % 2) * column. False, and nothing done, where a value is not a number.
  static constexpr int64_t channels = 32;
  static bool pool_line(const float* corner, int64_t row, int64_t column, int64_t size, const Vec& slope, bf16* y,
                        uint8_t* arg) {
    return size == 8 ? pool_window<8>(corner, row, column, slope, y, arg)
                     : pool_window<4>(corner, row, column, slope, y, arg);
  }
  template <int size>
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), noinline)) static bool pool_window(
      const float* corner, int64_t row, int64_t column, const Vec& slope, bf16* y, uint8_t* arg) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7f80),
                  none = _mm512_setzero_si512();
    // Sign and magnitude to two's complement and back; -0 becomes 0.
    const auto flip = [&](__m512i bits, __m512i sign) { return _mm512_sub_epi16(_mm512_xor_si512(bits, sign), sign); };
    const auto round = [&](__m512 low, __m512 high) {  // not convertible to a function without these instructions
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    };
    // Products of the upper and lower 16 bits of every word, back in their places.
    const auto scaled = [&](__m512i v) {
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                   odd = _mm512_castsi512_ps(_mm512_maskz_mov_epi16(0xaaaaaaaa, v));
      const auto e = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_mul_ps(even, slope.v))),
                 o = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_mul_ps(odd, slope.v)));
      return _mm512_or_si512(_mm512_cvtepu16_epi32(e), _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16));
    };
    __m512i value[size], best = _mm512_set1_epi16(-0x7fff), least = magnitude;
#pragma GCC unroll 8
    for (int q = 0; q < size; ++q) {
      const float* from = corner + q / 2 * row + q % 2 * column;
      const __m512i v = round(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16));
      const __mmask32 negative = _mm512_movepi16_mask(v);
      const __m512i leaky = negative ? _mm512_mask_mov_epi16(v, negative, scaled(v)) : v;
      value[q] = flip(_mm512_and_si512(leaky, magnitude), _mm512_srai_epi16(leaky, 15));
      best = _mm512_max_epi16(best, value[q]), least = _mm512_min_epi16(least, value[q]);
    }
    if (_mm512_cmpgt_epi16_mask(best, infinity) | _mm512_cmplt_epi16_mask(least, _mm512_sub_epi16(none, infinity)))
      return false;
    __m256i winner = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int q = size - 1; q > 0; --q)
      winner =
          _mm256_mask_mov_epi8(winner, _mm512_cmpeq_epi16_mask(value[q], best), _mm256_set1_epi8(static_cast<char>(q)));
    winner = _mm256_mask_mov_epi8(winner, _mm512_cmpeq_epi16_mask(value[0], best), _mm256_setzero_si256());
    const __m512i sign = _mm512_srai_epi16(best, 15);
    _mm512_storeu_si512(y, _mm512_or_si512(flip(best, sign), _mm512_andnot_si512(magnitude, sign)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(arg), winner);
    return true;
  }
};
