// Activation alone, or with a 2-wide max-pool, at the end of a convolution: what the ops of that name do to a stored
// map, on values that are still in registers, rounding where the stored map would have rounded.

/// The maximum of a window with the code of its position; a NaN wins.
struct WindowMaximum {
  Vec best;
  Ints winner;
};

/// leaky_relu of what a stored map would hold.
template <class T>
[[gnu::always_inline]] inline Vec leaky(Vec value, Vec slope) {
  value = rounded(T{}, value);
  return select(greater(value, Vec::all(0.0f)), value, rounded(T{}, slope * value));
}

/// Of the values [first, first + count) the largest, the earliest of equal ones. As a tree: one after the other would
/// wait for compares.
template <int first, int count>
[[gnu::always_inline]] inline WindowMaximum window_maximum(const Vec* values) {
  if constexpr (count == 1) {
    return {values[first], Ints::all(first)};
  } else {
    const WindowMaximum a = window_maximum<first, count / 2>(values),
                        b = window_maximum<first + count / 2, count / 2>(values);
    const Mask wins = passes(b.best, a.best);
    return {select(wins, b.best, a.best), select(wins, b.winner, a.winner)};
  }
}
/// The activated maximum of a window of 4 or 8 values; value(q) is the one of code q before its activation.
template <class T, int size, class F>
[[gnu::always_inline]] inline WindowMaximum pooled(Vec slope, F&& value) {
  Vec values[size];
#pragma GCC unroll 8
  for (int q = 0; q < size; ++q) values[q] = leaky<T>(value(q), slope);
  return window_maximum<0, size>(values);
}
template <class T, class F>
[[gnu::always_inline]] inline WindowMaximum pooled(int64_t size, Vec slope, F&& value) {
  return size == 8 ? pooled<T, 8>(slope, value) : pooled<T, 4>(slope, value);
}

/// Which pools a convolution can end in: 2 wide without overlap or padding along H and W, 2 or 1 along D; leaky_relu.
inline Support supports_window(const ConvPoolAttrs& a) {
  const PoolAttrs& pool = a.pool.pool;
  const Int3 zero{0, 0, 0}, cube{2, 2, 2}, square{1, 2, 2};
  if ((pool.kernel != cube && pool.kernel != square) || pool.stride != pool.kernel || pool.pad_low != zero ||
      pool.pad_high != zero)
    return Support::no("ends in 2x2x2 or 1x2x2 pools without overlap or padding");
  if (a.pool.activation.function != Activation::leaky_relu) return Support::no("fuses leaky_relu only");
  return Support::yes();
}
