// The channels that depthwise.inl sums at a time.

/// What sums are kept of neighbouring channels: those of one vector, or n of them.
template <class T>
struct DepthwiseVector {
  using Sum = Vec;
  static constexpr int64_t channels = 0;  ///< a vector of them, or n
  static int64_t channel_at(int64_t i) { return i; }
  template <class N>
  static Sum input(const T* p, N n) {
    return get(p, n);
  }
  template <class N>
  static Sum weight(const float* p, N n) {
    return get(p, n);
  }
  template <class N>
  static Sum bias(const float* p, N n) {
    return p ? get(p, n) : Vec::all(0.0f);
  }
  template <class N>
  static void unpack(float* p, Sum total, N n) {
    put(p, total, n);
  }
  static Sum add(Sum value, Sum weight, Sum total) { return fma(value, weight, total); }
  static Sum plus(Sum a, Sum b) { return a + b; }
  template <class N>
  static void write(T* p, Sum total, N n, bool streams) {
    put_output(p, total, n, streams);
  }
};

/// Whole cache lines of channels, where an instruction set has a better way with those; packed weights follow its
/// order.
template <class T>
struct DepthwiseLine {
  static constexpr int64_t channels = 0;  ///< none
};

/// Channels of a whole unit.
template <class T>
constexpr int64_t depthwise_width = DepthwiseLine<T>::channels > 0 ? DepthwiseLine<T>::channels : Vec::lanes;

/// f(unit, units, first channel, n) for all channels: runs of `most` units, then one by one.
template <class T, int most = 1, class F>
inline void for_depthwise(int64_t channels, F&& f) {
  constexpr bool lines = DepthwiseLine<T>::channels > 0;
  using Unit = std::conditional_t<lines, DepthwiseLine<T>, DepthwiseVector<T>>;
  constexpr int64_t width = depthwise_width<T>;
  constexpr std::integral_constant<int64_t, 0> whole;
  int64_t c = 0;
  if constexpr (most > 1)
    for (; c + most * width <= channels; c += most * width) f(Unit{}, std::integral_constant<int, most>{}, c, whole);
  if constexpr (lines)
    for (; c + width <= channels; c += width) f(Unit{}, std::integral_constant<int, 1>{}, c, whole);
  for_vectors(c, channels,
              [&](int64_t at, auto n) { f(DepthwiseVector<T>{}, std::integral_constant<int, 1>{}, at, n); });
}
