// How a Winograd convolution is cut into tiles, blocks and shares of threads. Included by winograd.inl.

constexpr int64_t point_pad = 16;  // floats between points, so that their streams do not meet in one cache set
constexpr int64_t winograd_cache = 700 << 10;  // bytes of V and M of a block
constexpr int64_t weights_stream = 16 << 20;   // from so many bytes on no second-level cache holds U
constexpr int64_t most_shared = 48 << 20;      // bytes of V and M that threads share

/// A scheme's numbers along D, H, W: points p, outputs m, taps k. What is done once per convolution takes these, and is
/// compiled once, not for each scheme.
struct SchemeNumbers {
  std::array<int, 3> p{}, m{}, k{};
  int points = 0, weights = 0;  ///< of a tile
  bool splits = false, goes_up = false;
};

/// Axes D, H, W: points p, outputs m, taps k, inputs n, weights u.
template <class D, class H, class W>
struct Scheme {
  using Depth = D;
  using Height = H;
  using Width = W;
  static constexpr int p[3] = {D::points, H::points, W::points};
  static constexpr int m[3] = {D::outputs, H::outputs, W::outputs};
  static constexpr int k[3] = {D::taps, H::taps, W::taps};
  static constexpr int n[3] = {D::inputs, H::inputs, W::inputs};
  static constexpr int u[3] = {D::weights, H::weights, W::weights};
  static constexpr int points = p[0] * p[1] * p[2], weights = u[0] * u[1] * u[2];
  static constexpr bool goes_up = W::up > 1;
  static constexpr bool takes_four = !W::splits && m[2] < 6;  ///< input channels: winograd_four.inl
  static constexpr SchemeNumbers numbers{
      {p[0], p[1], p[2]}, {m[0], m[1], m[2]}, {k[0], k[1], k[2]}, points, weights, W::splits, goes_up};
  /// Which transformed weights a point is multiplied by.
  static constexpr int weights_of(int point) {
    const int at[3] = {point / (p[1] * p[2]), point / p[2] % p[1], point % p[2]};
    return (std::min(at[0], u[0] - 1) * u[1] + std::min(at[1], u[1] - 1)) * u[2] + std::min(at[2], u[2] - 1);
  }
};

struct WinogradShape {
  SchemeNumbers scheme;
  TensorDesc x;  // read
  TensorDesc y;  // the convolution's output, stored or not
  bool forward = true, pooled = false, activates = false;
  bool unpools = false;                         // x is given as the pooled gradient and its arg-max
  Int3 pad, dilation, window;                   // zeros in front of x; of the pool
  std::array<std::vector<int64_t>, 3> origins;  // first output of every tile along an axis
  int64_t tile_count = 0, block = 0, blocks = 0, parts = 1, range = 0, v_stride = 0, m_stride = 0;
  bool phases = false;  // all tiles are one block, which threads share
  int64_t channels_in() const { return x.shape.c(); }
  int64_t channels_out() const { return y.shape.c(); }
  int64_t columns() const { return ceil_div(channels_out(), gemm_columns); }  ///< of packed weights
  bool four() const { return channels_in() == 4; }                            ///< see winograd_four.inl
};

inline const ConvAttrs& winograd_conv(const Problem& p) {
  const auto* pool = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  return pool ? pool->conv : p.op.as<ConvAttrs>();
}

/// The tiles that cover y, on every sub-lattice of the dilation.
inline void set_tiles(WinogradShape& s) {
  s.tile_count = s.y.shape.n();
  for (int i = 0; i < 3; ++i) {
    const auto axis = static_cast<size_t>(i);
    auto& origins = s.origins[axis];
    origins.clear();
    const int64_t before = s.scheme.goes_up ? s.pad[i] : 0;  // tiles of the padded output
    for (int64_t r = 0; r < std::min(s.dilation[i], s.y.shape[i + 1]); ++r)
      for (int64_t o = r - before; o < s.y.shape[i + 1]; o += s.dilation[i] * s.scheme.m[axis]) origins.push_back(o);
    s.tile_count *= static_cast<int64_t>(origins.size());
  }
}

/// Floats of one point's packed weights: column blocks are padded to two vectors.
inline int64_t winograd_point_floats(int64_t in, int64_t out) {
  return round_up(out, gemm_columns) * in;
}

/// Packed weights of all points.
inline int64_t winograd_weight_bytes(const WinogradShape& s) {
  return s.scheme.weights * winograd_point_floats(s.channels_in(), s.channels_out()) * 4;
}

/// How long the slowest thread takes, in products of a tile and an output channel.
struct WinogradTimes {
  const WinogradShape& s;
  int threads;
  static constexpr int64_t input_transform = 24;  // of a tile

  /// Tiles in blocks, output channels in parts, each of which transforms its blocks' inputs again.
  int64_t in_blocks(int64_t blocks, int64_t parts) const {
    const int64_t size = ceil_div(s.tile_count, blocks), width = ceil_div(s.columns(), parts) * gemm_columns;
    // A column of weights is read once per unit. From memory that takes as long as the products of so many tiles, of
    // which those of larger blocks hide most.
    const int64_t reading = winograd_weight_bytes(s) < weights_stream ? 2 : size < 16 ? 8 : 3;
    return ceil_div(blocks * parts, threads) * (size * (input_transform + width) + reading * width);
  }
  /// Output channels of the slowest thread's points, each in so many parts, that are taken one after the other.
  int64_t channels_in_phases(int64_t parts) const {
    return ceil_div(s.scheme.points * parts, threads) * ceil_div(s.columns(), parts) * gemm_columns;
  }
  double in_phases(int64_t parts) const {
    // In products of a pair of channels: while an element of V or M passes through the last-level cache, and while
    // threads wait for each other.
    constexpr double sharing = 20, waiting = 1e6;
    const auto tiles = double(s.tile_count), points = double(s.scheme.points), in = double(s.channels_in());
    return tiles * (input_transform + sharing * (in + double(s.channels_out())) / in) / threads +
           tiles * double(channels_in_phases(parts)) / points + waiting / (points * in);
  }
};

/// Divides the work of s so that the slowest thread has the least to do: into blocks, of s.block tiles at most and
/// equal but for one, and parts of the output channels; or into phases.
inline void divide_work(WinogradShape& s, int threads) {
  constexpr int64_t fewest_tiles = 4;
  constexpr double least_gain = 1.05;  // of phases
  const WinogradTimes times{s, threads};
  s.blocks = ceil_div(s.tile_count, s.block);
  // Of many units no thread has much more than its share.
  for (int64_t blocks = s.blocks; blocks <= std::min<int64_t>(4 * threads, ceil_div(s.tile_count, fewest_tiles));
       ++blocks)
    for (int64_t parts = 1; parts <= s.columns() && blocks * parts <= 4 * threads; ++parts)
      if (times.in_blocks(blocks, parts) < times.in_blocks(s.blocks, s.parts)) s.blocks = blocks, s.parts = parts;
  s.block = ceil_div(s.tile_count, s.blocks);
  const int64_t floats = s.channels_in() + s.columns() * gemm_columns;
  if (threads == 1 || s.scheme.points * s.tile_count * floats * 4 > most_shared) return;
  const int64_t parts = cheapest(s.columns(), [&](int64_t count) { return times.channels_in_phases(count); });
  if (least_gain * times.in_phases(parts) < double(times.in_blocks(s.blocks, s.parts)))
    s.phases = true, s.blocks = 1, s.block = s.tile_count, s.parts = parts;
}

inline WinogradShape winograd_shape(const Problem& p, const SchemeNumbers& scheme) {
  WinogradShape s;
  s.scheme = scheme;
  const ConvAttrs& a = winograd_conv(p);
  s.pooled = p.op.kind == OpKind::conv_pool_forward;
  s.activates = p.op.kind == OpKind::conv_activation_forward;
  s.unpools = p.op.kind == OpKind::conv_pool_backward_data;
  s.forward = p.op.kind != OpKind::conv_backward_data && !s.unpools;
  s.x = s.unpools
            ? infer({OpKind::activation_max_pool_backward, p.op.as<ConvPoolAttrs>().pool}, std::span(p.in).first(3))[0]
            : p.in[0];
  s.y = s.pooled ? infer({OpKind::conv_forward, a}, p.in)[0] : p.out[0];
  if (s.pooled) s.window = p.op.as<ConvPoolAttrs>().pool.pool.kernel;
  s.dilation = a.dilation;
  for (int i = 0; i < 3; ++i)
    s.pad[i] = s.forward || scheme.goes_up ? a.pad_low[i]
                                           : a.dilation[i] * (scheme.k[static_cast<size_t>(i)] - 1) - a.pad_low[i];
  set_tiles(s);
  if (s.four()) {
    s.block = Vec::lanes;
    s.blocks = ceil_div(s.tile_count, s.block);
    return s;
  }
  const int64_t in = s.channels_in(), out = s.columns() * gemm_columns;
  const int64_t fit = winograd_cache / (scheme.points * 4 * (in + std::max(gemm_columns, in)));
  s.block = std::clamp<int64_t>(fit, 2 * gemm_rows, 64) / gemm_rows * gemm_rows;
  // Weights beyond the second-level cache stream once per block: then one block per thread, if V still fits the third.
  if (winograd_weight_bytes(s) >= weights_stream)
    s.block = std::clamp<int64_t>(ceil_div(s.tile_count, p.threads), s.block, std::max<int64_t>(s.block, 32));
  s.block = std::min(s.block, s.tile_count);
  divide_work(s, p.threads);
  // As many output channels at a time as input channels, so that V is not read too often, while M stays in cache.
  int64_t room = winograd_cache * 4 / 3 / (scheme.points * 4 * s.block);
  if (scheme.splits) room = std::min<int64_t>(room, 128);  // V alone fills the cache: measured
  s.range = s.phases ? out : std::clamp(std::min(in, room) / gemm_columns * gemm_columns, gemm_columns, out);
  s.v_stride = s.block * in + point_pad;
  s.m_stride = s.block * s.range + point_pad;
  return s;
}

/// Of the activation at the end, or of the one whose gradient is taken.
inline Vec winograd_slope(const Problem& p, const WinogradShape& s) {
  const bool pools = s.pooled || s.unpools;
  return Vec::all(
      static_cast<float>(pools ? p.op.as<ConvPoolAttrs>().pool.activation.slope : p.op.as<ConvAttrs>().slope));
}

/// V and M of a block.
inline int64_t winograd_block_floats(const WinogradShape& s) {
  return s.scheme.points * (s.v_stride + s.m_stride);
}

struct TileCorner {
  int64_t n;
  Int3 at;
};
inline TileCorner tile_corner(const WinogradShape& s, int64_t tile) {
  TileCorner corner;
  for (int i = 2; i >= 0; --i) {
    const auto& origins = s.origins[static_cast<size_t>(i)];
    const auto count = static_cast<int64_t>(origins.size());
    corner.at[i] = origins[static_cast<size_t>(tile % count)];
    tile /= count;
  }
  corner.n = tile;
  return corner;
}
