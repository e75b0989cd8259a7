// Activation alone, or with a 2-wide max-pool, at the end of a convolution: what the ops of that name do to a stored
// map, on values that are still in registers, rounding where the stored map would have rounded.

/// The running maximum of a window with the code of its position; a NaN wins and stays.
struct WindowMaximum {
  Vec best;
  Ints winner;
};

/// leaky_relu of what a stored map would hold.
template <class T>
inline Vec leaky(Vec value, Vec slope) {
  value = rounded_to<T>(value);
  return select(greater(value, Vec::all(0.0f)), value, rounded_to<T>(slope * value));
}

template <class T>
inline void take(WindowMaximum& m, Vec value, Vec slope, int code) {
  value = leaky<T>(value, slope);
  if (code == 0) {
    m.best = value, m.winner = Ints::all(0);
    return;
  }
  const Mask wins = either(greater(value, m.best), both(is_nan(value), negate(is_nan(m.best))));
  m.best = select(wins, value, m.best);
  m.winner = select(wins, Ints::all(code), m.winner);
}

/// Which pools a convolution can end in: 2 wide without overlap or padding along H and W, 2 or 1 along D; leaky_relu.
inline Support supports_window(const ConvPoolAttrs& a) {
  const PoolAttrs& pool = a.pool.pool;
  const Int3 zero{0, 0, 0}, cube{2, 2, 2}, square{1, 2, 2};
  if ((pool.kernel != cube && pool.kernel != square) || pool.stride != pool.kernel || pool.pad_low != zero || pool.pad_high != zero)
    return Support::no("ends in 2x2x2 or 1x2x2 pools without overlap or padding");
  if (a.pool.activation.function != Activation::leaky_relu) return Support::no("fuses leaky_relu only");
  return Support::yes();
}
