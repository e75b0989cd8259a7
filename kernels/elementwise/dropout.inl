// Dropout: words of philox() by the element's place in its sample, whatever lies between pixels. As many of its blocks
// at a time as there are lanes, one in each: ten rounds take some hundred instructions for the words of all.

constexpr int64_t dropout_words = 4 * Vec::lanes;

/// What elements are multiplied by: `keep` where the word that philox() makes of the counters {first + i, sample, step,
/// stream}, block after block, is at least `rate` as uniform01(), else zero.
inline void draw_factors(uint32_t first, uint32_t sample, uint32_t step, uint32_t stream, uint64_t key, float rate,
                         float keep, float* factor) {
  // In the order in which turn_fours() leaves them side by side.
  constexpr int groups = Vec::lanes / 4;
  int32_t block[Vec::lanes];
  for (int m = 0; m < 4; ++m)
    for (int j = 0; j < groups; ++j) block[4 * j + m] = groups * m + j;
  const auto all = [](uint32_t word) { return Ints::all(static_cast<int>(word)); };
  Ints a = all(first) + load_ints(block), b = all(sample), c = all(step), d = all(stream);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const Ints factor0 = all(philox_factor[0]), factor1 = all(philox_factor[1]);
  for (int round = 0; round < philox_rounds; ++round) {
    Ints high0, low0, high1, low1;
    multiply_wide(a, factor0, high0, low0);
    multiply_wide(c, factor1, high1, low1);
    a = high1 ^ b ^ all(k0), b = low1;
    c = high0 ^ d ^ all(k1), d = low0;
    k0 += philox_step[0], k1 += philox_step[1];
  }
  const Vec least = Vec::all(rate * 0x1p24f), none = Vec::all(0.0f), kept = Vec::all(keep);
  Vec v[4];
  const Ints words[4] = {a, b, c, d};
  for (int k = 0; k < 4; ++k) v[k] = select(greater(least, upper_bits(words[k])), none, kept);
  turn_fours(v);
  for (int k = 0; k < 4; ++k) store(factor + k * Vec::lanes, v[k]);
}

/// y = x * factor where the factor is not zero, else zero, of the next `count` elements.
template <class T>
void multiply_kept(const T* x, const float* factor, T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += Vec::lanes) {
    const int64_t n = std::min<int64_t>(Vec::lanes, count - i);
    const Vec f = load(factor + i, n), zero = Vec::all(0.0f);
    if (n == Vec::lanes)
      store(y + i, select(greater(f, zero), load(x + i) * f, zero));
    else
      store(y + i, select(greater(f, zero), load(x + i, n) * f, zero), n);
  }
}

std::unique_ptr<Prepared> prepare_dropout(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const auto& a = p.op.as<DropoutAttrs>();
    const double* step = args.in[1].data<double>();
    const auto field = [&](StepField f) { return static_cast<uint32_t>(static_cast<int64_t>(step[int(f)])); };
    const uint64_t key = uint64_t(field(StepField::seed_high)) << 32 | field(StepField::seed_low);
    const uint32_t first = field(StepField::first_sample), number = field(StepField::step), stream = uint32_t(a.stream);
    const float keep = float(1 / (1 - a.rate)), rate = float(a.rate);
    const Shape& s = p.in[0].shape;
    const int64_t elements = s.elements() / s.n(), chunks = ceil_div(elements, dropout_words);
    const bool dense = p.in[0].dense() && p.out[0].dense();
    // Channels lie side by side, of dense tensors all elements of a sample.
    const int64_t run = dense ? elements : s.c(), pixels = elements / run, px = dense ? run : p.in[0].pixel_pitch(),
                  py = dense ? run : p.out[0].pixel_pitch();
    by_storage(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* x = args.in[0].data<T>();
      T* y = args.out[0].data<T>();
      parallel_ranges(s.n() * chunks, p.threads, grain / dropout_words, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          const int64_t sample = i / chunks, begin = i % chunks * dropout_words,
                        count = std::min(dropout_words, elements - begin);
          float factor[dropout_words];
          draw_factors(uint32_t(begin / 4), first + uint32_t(sample), number, stream, key, rate, keep, factor);
          int64_t pixel = sample * pixels + begin / run, c = begin % run;
          for (int64_t k = 0; k < count;) {
            const int64_t n = std::min(run - c, count - k);
            multiply_kept(x + pixel * px + c, factor + k, y + pixel * py + c, n);
            k += n, c = 0, ++pixel;
          }
        }
      });
    });
  });
}
