// Gradients behind a pool, un-pooled while rows of them are copied: the full map is never stored. For the kernels whose
// patches hold copies of rows: tile_direct.inl, tile_weights.inl, direct.inl. Included after pool_window.inl.

/// Row `row` of the map that the pool of `p` read, columns [first, first + columns), as its gradient: zero but for the
/// position of every window that won. Gradient, pooled map and arg-max are the inputs from `input` on, in T; `To` is T,
/// with an odd last channel filled up by a zero, or f32.
template <class T, class To>
void copy_unpooled(const Problem& p, const KernelArgs& args, size_t input, const Shape& map, int64_t row, int64_t first,
                   int64_t columns, int64_t channel, int64_t channels, To* to) {
  constexpr bool widens = std::is_same_v<To, float>;
  const auto& pool = p.op.as<ConvPoolAttrs>().pool;
  const Int3& window = pool.pool.kernel;
  const TensorDesc& cells = p.in[input];
  const int64_t d = row / map.h() % map.d(), h = row % map.h(), n = row / (map.h() * map.d());
  const int64_t cell_d = d / window[0], cell_h = h / 2, pitch = widens ? channels : (channels + 1) / 2 * 2;
  const auto code = static_cast<int>(d % window[0] * 4 + h % 2 * 2);
  const Vec slope = Vec::all(static_cast<float>(pool.activation.slope));
  const bool inside = cell_d < cells.shape.d() && cell_h < cells.shape.h();
  const int64_t low = std::clamp<int64_t>(-first, 0, columns),
                high = inside ? std::clamp<int64_t>(2 * cells.shape.w() - first, low, columns) : low;
  std::fill(to, to + low * pitch, To{});
  std::fill(to + high * pitch, to + columns * pitch, To{});
  for (int64_t c = low; c < high;) {
    const int64_t w = first + c, half = w % 2, count = std::min<int64_t>(2 - half, high - c);  // columns of this cell
    const int64_t at = cells.offset(n, cell_d, cell_h, w / 2) + channel;
    const T *dy = args.in[input].data<T>() + at,
            *y = args.in[input + 1].data<T>() + p.in[input + 1].offset(n, cell_d, cell_h, w / 2) + channel;
    const uint8_t* arg =
        args.in[input + 2].data<uint8_t>() + p.in[input + 2].offset(n, cell_d, cell_h, w / 2) + channel;
    To* row_to = to + c * pitch;
    for_vectors(0, channels, [&](int64_t k, auto lanes) {
      const Vec g = leaky_gradient(get(dy + k, lanes), get(y + k, lanes), slope);
      const Ints winner = get_bytes(arg + k, lanes);
      const auto won = [&](int64_t q) { return equal(winner, Ints::all(code + static_cast<int>(half + q))); };
      if constexpr (widens) {
        const Vec value = rounded(T{}, g);
        for (int64_t q = 0; q < count; ++q) put(row_to + q * pitch + k, select(won(q), value, Vec::all(0.0f)), lanes);
      } else {
        const Ints value = as_halves(T{}, g), nothing = Ints::all(0);
        for (int64_t q = 0; q < count; ++q) store_halves(row_to + q * pitch + k, select(won(q), value, nothing), lanes);
      }
    });
    if (!widens && channels % 2)
      for (int64_t q = 0; q < count; ++q) row_to[q * pitch + channels] = To{};
    c += count;
  }
}
