// Cache lines of f32 channels for depthwise_units.inl, AVX2: two vectors, so that a line's halves are written one after
// the other and can go past the caches.

template <>
struct DepthwiseLine<float> {
  static constexpr int64_t channels = 16;
  static int64_t channel_at(int64_t i) { return i; }
  struct Sum {
    Vec low, high;
  };
  using Whole = std::integral_constant<int64_t, 0>;

  static Sum input(const float* p, Whole) { return {load(p), load(p + 8)}; }
  static Sum weight(const float* p, Whole n) { return input(p, n); }
  static Sum bias(const float* p, Whole n) { return p ? input(p, n) : Sum{Vec::all(0.0f), Vec::all(0.0f)}; }
  static void unpack(float* p, const Sum& total, Whole) { store(p, total.low), store(p + 8, total.high); }
  static Sum add(const Sum& value, const Sum& weight, const Sum& total) {
    return {fma(value.low, weight.low, total.low), fma(value.high, weight.high, total.high)};
  }
  static Sum plus(const Sum& a, const Sum& b) { return {a.low + b.low, a.high + b.high}; }
  static void write(float* p, const Sum& total, Whole n, bool streams) {
    put_output(p, total.low, n, streams), put_output(p + 8, total.high, n, streams);
  }
};
