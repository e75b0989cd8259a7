// The channels that depthwise.inl sums at a time.

/// What sums are kept of neighbouring channels: those of one vector, or n of them.
template <class T>
struct DepthwiseVector {
  using Sum = Vec;
  static constexpr int64_t channels = 0;  ///< a vector of them, or n
  static int64_t channel_at(int64_t i) { return i; }
  template <class N>
  static Sum input(const T* p, N n) { return get(p, n); }
  template <class N>
  static Sum weight(const float* p, N n) { return get(p, n); }
  template <class N>
  static Sum bias(const float* p, N n) { return p ? get(p, n) : Vec::all(0.0f); }
  static Sum add(Sum value, Sum weight, Sum total) { return fma(value, weight, total); }
  template <class N>
  static void write(T* p, Sum total, N n, bool streams) { put_output(p, total, n, streams); }
};

/// Whole cache lines of channels, where an instruction set has a better way with those; packed weights follow its order.
template <class T>
struct DepthwiseLine {
  static constexpr int64_t channels = 0;  ///< none
};

/// f(unit, first channel, n) for all channels.
template <class T, class F>
inline void for_depthwise(int64_t channels, F&& f) {
  int64_t c = 0;
  if constexpr (constexpr int64_t line = DepthwiseLine<T>::channels; line > 0)
    for (; c + line <= channels; c += line) f(DepthwiseLine<T>{}, c, std::integral_constant<int64_t, 0>{});
  for_vectors(c, channels, [&](int64_t at, auto n) { f(DepthwiseVector<T>{}, at, n); });
}
