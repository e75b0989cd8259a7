// Winograd convolution in two and three dimensions, channels last: forward, backward_data, forward with LeakyReLU and
// 2-wide max-pool at the end, and backward_data from the pooled gradient. Dilated kernels run on the sub-lattices of
// their dilation. Weight gradients: winograd_weights.inl.
//
//   F(2,3): 4 points for 2 outputs of 3 taps: 2.25 (2-D) or 3.375 (3-D) times fewer multiplications than the direct
//   sum; F(4,3): 6 points for 4 outputs: 4 or 8 times fewer, and less than half the transformed data per output in 3-D;
//   F(6,3): 8 points for 6 outputs: 5.06 times fewer in 2-D; in 3-D beside F(4,3) for the depth, 10.1 times fewer;
//   F(2,5): 6 points for 2 outputs of 5 taps: 2.78 times fewer in 2-D; F(4,5): 8 for 4: 6.25 times; F(6,5): 10 for 6:
//   9 times. Six outputs run where they need at least a seventh less than four do: tiles that fit the image.
//   3x3 with a stride of 2, and transposed: F(3,2) on the outer two taps beside single products of the middle one, 7
//   points for 3 (transposed: 6) outputs: 1.65 times fewer in 2-D. Not for 16-bit types
//   that the CPU multiplies faster than f32: that saves more.
//
// Loops: tiles of m^2 or m^3 outputs are taken a block at a time. Per block
//   1. input transform   V[p][tile][c] = B^T d B along each axis, a vector of channels at a time through L1;
//   2. per range of output channels (of a part of them where blocks are too few for the threads): products M[p] = V[p]
//   (tiles x C) * U[p] (C x range) for every point p, `rows` x 2
//      vectors of accumulators in registers, then
//   3. output transform  A^T M A, plus bias or what a data gradient is added to (addend.h), then stored, or activated
//   and pooled, rounded once to the storage type.
// V and M of a block share the second-level cache; U comes packed (p, K/2 vectors, C, 2 vectors) from a Pack node.
// Storage may be f32, bf16 or f16; everything inside is f32. Limit: the f32 FMA rate times the factor above in
// dense-count GFLOP/s, less the transforms.
//
// Error: every term x*w passes through one line of B^T, G and A^T per axis, so an element errs by at most (C + 3 *
// terms of the lines) * eps * prod over axes |A^T||G||B^T| * sum|x||w|. F(2,3) stays within a factor of 3 of direct
// summation; F(4,3) and F(2,5) within about 20 per element of two, 60 of three axes. In the root mean square, of normal
// sums over 128 channels, direct sums and F(4,3) err by 1e-6, F(4,5) by 4e-6, F(6,3) by 5e-6 (a further axis of F(4,3)
// adds a third), F(6,5) by 1.9e-5: less than bf16 and f16 round by, and a fifteenth of TF32. Tests hold all to the
// bound of a direct sum, 27 C eps sum|x||w| (3-D), and loss curves to 1e-4 over 20 steps (F(4,3), 3-D; ten with six
// outputs), 2e-4 over ten (F(6,3), 2-D) and 1e-5 over ten (F(6,5)).
//
// Refuses: other kernels and strides, a stride in 16-bit types that the CPU multiplies faster, groups, channels that
// are no multiple of 16 (forward with up to four outputs a tile also takes 4: winograd_four.inl), strided weights,
// strided tensors or a dilation beside a pool, pools other than pairs (1x2x2 behind kernels of images; backward 2x2x2
// of even extents), more padding than the kernel reaches in backward passes, few tiles; six outputs also extents that
// tiles stick out of too far.

#include "kernels/conv/gemm_tile.inl"

constexpr int64_t point_pad = 16;    // floats between points, so that their streams do not meet in one cache set
constexpr int64_t pack_inputs = 16;  // of a piece of packed weights
constexpr int64_t winograd_cache = 700 << 10;  // bytes of V and M of a block
constexpr int64_t weights_stream = 16 << 20;   // from so many bytes on no second-level cache holds U
constexpr double least_saved = 7.0 / 6;        // times fewer multiplications, for larger tiles

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
  int64_t channels_in() const { return x.shape.c(); }
  int64_t channels_out() const { return y.shape.c(); }
  bool four() const { return channels_in() == 4; }  ///< see winograd_four.inl
};

inline const ConvAttrs& winograd_conv(const Problem& p) {
  const auto* pool = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  return pool ? pool->conv : p.op.as<ConvAttrs>();
}
inline int winograd_weight_input(const Problem& p) {
  return p.op.kind == OpKind::conv_pool_backward_data ? 3 : 1;
}
inline const TensorDesc& winograd_weight(const Problem& p) {
  return p.in[static_cast<size_t>(winograd_weight_input(p))];
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

/// Divides tiles into blocks, of s.block at most, and output channels into parts, each of which transforms its blocks'
/// inputs again: so that the slowest thread has the least to do. Costs are those of an output channel's product of a
/// tile: an input's transform takes as long as so many, and a column of weights, read once per unit, as so many tiles.
inline void divide_work(WinogradShape& s, int threads) {
  constexpr int64_t transform = 24, reading = 8, fewest_tiles = 4;
  const int64_t columns = ceil_div(s.channels_out(), gemm_columns), fewest = ceil_div(s.tile_count, s.block);
  const auto size_of = [&, most = s.block](int64_t blocks) {
    const int64_t even = ceil_div(s.tile_count, blocks), whole = round_up(even, gemm_rows);
    return whole <= most && even > gemm_rows ? whole : even;
  };
  const auto time = [&](int64_t size, int64_t parts) {
    const int64_t units = ceil_div(s.tile_count, size) * parts, width = ceil_div(columns, parts) * gemm_columns;
    return ceil_div(units, threads) * (size * (transform + width) + reading * width);
  };
  s.block = size_of(fewest);
  // Of many units no thread has much more than its share.
  for (int64_t blocks = fewest; blocks <= std::min<int64_t>(4 * threads, ceil_div(s.tile_count, fewest_tiles));
       ++blocks)
    for (int64_t parts = 1; parts <= columns && blocks * parts <= 4 * threads; ++parts)
      if (time(size_of(blocks), parts) < time(s.block, s.parts)) s.block = size_of(blocks), s.parts = parts;
  s.blocks = ceil_div(s.tile_count, s.block);
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
  const int64_t in = s.channels_in(), out = round_up(s.channels_out(), gemm_columns);
  const int64_t fit = winograd_cache / (scheme.points * 4 * (in + std::max(gemm_columns, in)));
  s.block = std::clamp<int64_t>(fit, 2 * gemm_rows, 64) / gemm_rows * gemm_rows;
  // Weights beyond the second-level cache stream once per block: then one block per thread, if V still fits the third.
  if (scheme.weights * in * out * 4 >= weights_stream)
    s.block = std::clamp<int64_t>(ceil_div(s.tile_count, p.threads), s.block, std::max<int64_t>(s.block, 32));
  s.block = std::min(s.block, s.tile_count);
  divide_work(s, p.threads);
  // As many output channels at a time as input channels, so that V is not read too often, while M stays in cache.
  int64_t room = winograd_cache * 4 / 3 / (scheme.points * 4 * s.block);
  if (scheme.splits) room = std::min<int64_t>(room, 128);  // V alone fills the cache: measured
  s.range = std::clamp(std::min(in, room) / gemm_columns * gemm_columns, gemm_columns, out);
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

inline int64_t winograd_thread_floats(const WinogradShape& s) {
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

/// Applies f to every line of `points` vectors along an axis of a box[P0][P1][P2] of vectors.
template <class S, int axis, class F>
inline void for_lines(F&& f) {
  constexpr int step = axis == 2 ? 1 : axis == 1 ? S::p[2] : S::p[1] * S::p[2];
  constexpr int outer = axis == 0 ? 1 : axis == 1 ? S::p[0] : S::p[0] * S::p[1];
  for (int i = 0; i < outer; ++i)
    for (int j = 0; j < step; ++j) f(i * step * S::p[axis] + j, step);
}

/// The transforms that are left once the W axis is done: `line` holds the box of points, a vector each; to V.
template <class S>
[[gnu::noinline]] void finish_input(const WinogradShape& s, float* line, float* to) {
  if constexpr (S::p[0] > 1)
    for_lines<S, 1>([&](int first, int step) {
      Vec in[S::p[1]];
      read_points<S::p[1]>(line + first * Vec::lanes, step * Vec::lanes, in);
      axis_input<typename S::Height>(in);
      write_points<S::p[1]>(in, line + first * Vec::lanes, step * Vec::lanes);
    });
  constexpr int last = S::p[0] > 1 ? 0 : 1;
  using Last = std::conditional_t<last == 0, typename S::Depth, typename S::Height>;
  for_lines<S, last>([&](int first, int step) {
    Vec in[S::p[last]];
    read_points<S::n[last]>(line + first * Vec::lanes, step * Vec::lanes, in);
    axis_input<Last>(in);
    write_points<S::p[last]>(in, to + first * s.v_stride, step * s.v_stride);
  });
}

/// Input rows and columns under a tile: null and -1 outside the image.
template <class S, class T>
struct TileInput {
  TileInput() = default;
  TileInput(const WinogradShape& s, const T* x, int64_t tile) {
    const TileCorner corner = tile_corner(s, tile);
    const Shape& xs = s.x.shape;
    const int64_t d0 = S::Depth::first(corner.at[0], s.pad[0]), h0 = S::Height::first(corner.at[1], s.pad[1]);
    const int64_t w0 = S::Width::first(corner.at[2], s.pad[2]);
    for (int i = 0; i < S::n[0]; ++i)
      for (int j = 0; j < S::n[1]; ++j) {
        const int64_t d = d0 + i * s.dilation[0], h = h0 + j * s.dilation[1];
        const bool inside = d >= 0 && d < xs.d() && h >= 0 && h < xs.h();
        rows[i * S::n[1] + j] = inside ? x + s.x.offset(corner.n, d, h, 0) : nullptr;
      }
    for (int k = 0; k < S::n[2]; ++k) {
      const int64_t w = w0 + k * s.dilation[2];
      columns[k] = w >= 0 && w < xs.w() ? w * s.x.stride[3] : -1;
    }
  }
  const T* rows[S::n[0] * S::n[1]];
  int64_t columns[S::n[2]];
};

/// `channels` channels from x on, to points s.v_stride apart.
template <class S, class T>
void input_transform(const WinogradShape& s, const T* x, int64_t tile, int64_t channels, float* to_points) {
  const TileInput<S, T> input(s, x, tile);
  // So many short rows are no stream for a prefetcher: a tile asks for the columns that its neighbour adds.
  const int64_t next_tile = s.dilation[2] * S::Width::advance * s.x.stride[3];
  alignas(64) float line[S::points * Vec::lanes];
  for (int64_t c = 0; c < channels; c += Vec::lanes) {
    for (int r = 0; r < S::n[0] * S::n[1]; ++r) {
      float* to = line + r * S::p[2] * Vec::lanes;
      Vec in[S::p[2]];
#pragma GCC unroll all_points
      for (int k = 0; k < S::n[2]; ++k) {
        const bool inside = input.rows[r] && input.columns[k] >= 0;
        in[k] = inside ? load(input.rows[r] + input.columns[k] + c) : Vec::all(0.0f);
        if (inside && k >= S::n[2] - S::Width::advance)
          __builtin_prefetch(input.rows[r] + input.columns[k] + c + next_tile);
      }
      axis_input<typename S::Width>(in);
      write_points<S::p[2]>(in, to, Vec::lanes);
    }
    finish_input<S>(s, line, to_points + c);
  }
}

/// The gradient before a 2x2x2 pool, read where it is not zero: every cell under the tile gives its activated gradient
/// to the one position that won.
template <class S, class T>
void input_transform_unpooled(const WinogradShape& s, const TensorDesc& cells, const KernelArgs& args, Vec slope,
                              int64_t tile, int64_t slot, float* v) {
  const TileCorner corner = tile_corner(s, tile);
  const int64_t channels = s.channels_in();
  const T *dy = args.in[0].data<T>(), *y = args.in[1].data<T>();
  const uint8_t* arg = args.in[2].data<uint8_t>();
  const Vec none = Vec::all(0.0f);
  alignas(64) float line[S::points * Vec::lanes];
  const int64_t d0 = corner.at[0] - s.pad[0], h0 = corner.at[1] - s.pad[1], w0 = corner.at[2] - s.pad[2];
  // Cells of index floor(position / 2); the patch may start on either half of one.
  const auto cell_of = [](int64_t position) { return (position + 64) / 2 - 32; };
  for (int64_t c = 0; c < channels; c += Vec::lanes) {
    for (int64_t cd = cell_of(d0); cd <= cell_of(d0 + S::p[0] - 1); ++cd)
      for (int64_t ch = cell_of(h0); ch <= cell_of(h0 + S::p[1] - 1); ++ch)
        for (int64_t cw = cell_of(w0); cw <= cell_of(w0 + S::p[2] - 1); ++cw) {
          const bool inside =
              cd >= 0 && ch >= 0 && cw >= 0 && cd < cells.shape.d() && ch < cells.shape.h() && cw < cells.shape.w();
          Vec g = none;
          Ints winner = Ints::all(8);
          if (inside) {
            const int64_t at = cells.offset(corner.n, cd, ch, cw) + c;
            g = rounded(T{}, leaky_gradient(load(dy + at), load(y + at), slope));
            winner = load_bytes(arg + at);
          }
#pragma GCC unroll all_points
          for (int q = 0; q < 8; ++q) {
            const int64_t i = 2 * cd + (q >> 2) - d0, j = 2 * ch + (q >> 1 & 1) - h0, k = 2 * cw + (q & 1) - w0;
            if (i < 0 || j < 0 || k < 0 || i >= S::p[0] || j >= S::p[1] || k >= S::p[2]) continue;
            store(line + ((i * S::p[1] + j) * S::p[2] + k) * Vec::lanes, select(equal(winner, Ints::all(q)), g, none));
          }
        }
    for_lines<S, 2>([&](int first, int step) {
      Vec in[S::p[2]];
      read_points<S::p[2]>(line + first * Vec::lanes, step * Vec::lanes, in);
      input_line<S::p[2]>(in);
      write_points<S::p[2]>(in, line + first * Vec::lanes, step * Vec::lanes);
    });
    finish_input<S>(s, line, v + slot * channels + c);
  }
}

/// A^T along the second and third axis: `half` holds m[0] planes of points, a vector each.
template <class S>
[[gnu::noinline]] void output_plane(const float* half, Vec* out) {
  for (int i = 0; i < S::m[0]; ++i) {
    Vec rows[S::m[1]][S::p[2]];
    for (int k = 0; k < S::p[2]; ++k) {
      Vec in[S::p[1]], done[S::m[1]];
      read_points<S::p[1]>(half + (i * S::p[1] * S::p[2] + k) * Vec::lanes, S::p[2] * Vec::lanes, in);
      axis_output<typename S::Height>(in, done);
#pragma GCC unroll all_points
      for (int j = 0; j < S::m[1]; ++j) rows[j][k] = done[j];
    }
    for (int j = 0; j < S::m[1]; ++j) axis_output<typename S::Width>(rows[j], out + (i * S::m[1] + j) * S::m[2]);
  }
}

/// The tile's outputs of one vector of channels: out[m0][m1][m2].
template <class S>
[[gnu::noinline]] void output_lines(const float* m, int64_t m_stride, Vec* out) {
  alignas(64) float half[S::m[0] * S::p[1] * S::p[2] * Vec::lanes];
  for (int jk = 0; jk < S::p[1] * S::p[2]; ++jk) {
    Vec in[S::p[0]], done[S::m[0]];
    read_points<S::p[0]>(m + jk * m_stride, S::p[1] * S::p[2] * m_stride, in);
    axis_output<typename S::Depth>(in, done);
    write_points<S::m[0]>(done, half + jk * Vec::lanes, S::p[1] * S::p[2] * Vec::lanes);
  }
  output_plane<S>(half, out);
}

template <class S, class T>
void store_tile(const WinogradShape& s, const TileCorner& corner, const Vec* out, Vec bias, Vec slope, int64_t c, T* y,
                const Addend<T>& addend, int64_t ahead, bool streams) {
  const Shape& ys = s.y.shape;
  constexpr std::integral_constant<int64_t, 0> whole;
  const auto finished = [&](Vec sum) { return s.activates ? leaky<T>(sum + bias, slope) : sum + bias; };
  for (int i = 0; i < S::m[0]; ++i)
    for (int j = 0; j < S::m[1]; ++j) {
      const int64_t d = corner.at[0] + i * s.dilation[0], h = corner.at[1] + j * s.dilation[1];
      if (d >= ys.d() || h < 0 || h >= ys.h()) continue;
      T* row = y + s.y.offset(corner.n, d, h, 0) + c;
      const T* sums = addend ? addend.at(((corner.n * ys.d() + d) * ys.h() + h) * ys.w()) + c : nullptr;
      for (int k = 0; k < S::m[2]; ++k)
        if (const int64_t w = corner.at[2] + k * s.dilation[2]; w >= 0 && w < ys.w()) {
          Vec sum = finished(out[(i * S::m[1] + j) * S::m[2] + k]);
          if (sums) {
            sum = sum + load(sums + w * addend.pitch);
            __builtin_prefetch(sums + w * addend.pitch + ahead);
          }
          put_output(row + w * s.y.stride[3], sum, whole, streams);
        }
    }
}

/// The maximum of the window at output (i, j, k) of a tile.
template <class S, class T>
[[gnu::always_inline]] inline WindowMaximum tile_maximum(const Vec* out, int window, int i, int j, int k, Vec bias,
                                                         Vec slope) {
  const auto value = [&](int q) {
    return out[((i + (q >> 2)) * S::m[1] + j + (q >> 1 & 1)) * S::m[2] + k + (q & 1)] + bias;
  };
  if constexpr (S::m[0] == 1)  // images pool by 1x2x2
    return pooled<T, 4>(slope, value);
  else
    return pooled<T>(4 * window, slope, value);
}

/// Cells of the tile whose window is complete: activated, pooled, stored with the position that won.
template <class S, class T>
void pool_tile(const WinogradShape& s, const TensorDesc& desc, const TileCorner& corner, const Vec* out, Vec bias,
               Vec slope, int64_t c, T* y, uint8_t* arg) {
  const auto window = static_cast<int>(s.window[0]);
  for (int i = 0; i + window <= S::m[0]; i += window)
    for (int j = 0; j + 2 <= S::m[1]; j += 2)
      for (int k = 0; k + 2 <= S::m[2]; k += 2) {
        const int64_t d = (corner.at[0] + i) / window, h = (corner.at[1] + j) / 2, w = (corner.at[2] + k) / 2;
        if (d >= desc.shape.d() || h >= desc.shape.h() || w >= desc.shape.w()) continue;
        const WindowMaximum best = tile_maximum<S, T>(out, window, i, j, k, bias, slope);
        const int64_t at = desc.offset(corner.n, d, h, w) + c;
        store(y + at, best.best);
        store_bytes(arg + at, best.winner);
      }
}

/// Floats of one point's packed weights: column blocks are padded to two vectors.
inline int64_t winograd_point_floats(int64_t in, int64_t out) {
  return round_up(out, gemm_columns) * in;
}

/// Output channels [first, last) of one point for `count` tiles; `next` is what follows of the packed weights.
[[gnu::noinline]] inline void multiply_point(const WinogradShape& s, const float* v, const float* u, const float* next,
                                             float* m, int64_t count, int64_t first, int64_t last) {
  const int64_t in = s.channels_in();
  // Every block of rows asks for its share of the next columns.
  const int64_t ahead_step = ceil_div(gemm_columns * 4, ceil_div(count, gemm_rows));
  for (int64_t k = first; k < last; k += gemm_columns) {
    const auto* ahead =
        reinterpret_cast<const std::byte*>(k + gemm_columns < last ? u + (k + gemm_columns) * in : next);
    for_even_blocks(count, gemm_rows, [&](int64_t row, int64_t rows) {
      const GemmTile tile{.v = v + row * in,
                          .channels = in,
                          .u = u + k * in,
                          .m = m + row * s.range + k - first,
                          .m_row = s.range,
                          .ahead = ahead,
                          .ahead_step = ahead_step};
      if (last - k >= gemm_columns)
        run_gemm_tile<2>(rows, tile);
      else
        run_gemm_tile<1>(rows, tile);
      ahead += in * ahead_step;
    });
  }
}

template <class S, class T>
void winograd_run(const Problem& p, const WinogradShape& s, const KernelArgs& args) {
  const T* x = args.in[0].data<T>();
  T* y = args.out[0].data<T>();
  const auto* u = reinterpret_cast<const float*>(args.packed[0]);
  const float* bias = bias_of(p, args);
  const Addend<T> addend(p, args);
  const int64_t in = s.channels_in(), out = s.channels_out(), point = winograd_point_floats(in, out);
  uint8_t* arg = s.pooled ? args.out[1].data<uint8_t>() : nullptr;
  const Vec slope = winograd_slope(p, s);
  const bool streams = !s.pooled && streams_output(s.y, args.out[0], out);
  const int64_t columns = ceil_div(out, gemm_columns);
  UnitCounter units(s.blocks * s.parts);
  parallel_threads(p.threads, [&](int thread) {
    float* v = reinterpret_cast<float*>(args.workspace) + thread * winograd_thread_floats(s);
    float* m = v + S::points * s.v_stride;
    for (int64_t unit; (unit = units.take()) >= 0;) {
      const int64_t first = unit % s.blocks * s.block, count = std::min(s.block, s.tile_count - first);
      const Range part = split_range(columns, static_cast<int>(unit / s.blocks), static_cast<int>(s.parts));
      const int64_t begin = part.begin * gemm_columns, end = std::min(part.end * gemm_columns, out);
      if constexpr (S::p[0] > 1)
        for (int64_t i = 0; s.unpools && i < count; ++i)
          input_transform_unpooled<S, T>(s, p.in[0], args, slope, first + i, i, v);
      for (int64_t i = 0; !s.unpools && i < count; ++i) input_transform<S>(s, x, first + i, in, v + i * in);
      for (int64_t k = begin; k < end; k += s.range) {
        const int64_t last = std::min(k + s.range, end);
        for (int64_t q = 0; q < S::points; ++q) {
          const bool more = q + 1 < S::points;  // otherwise the next range, or block, begins
          const float* next = u + (more ? S::weights_of(q + 1) * point + k * in : (last < end ? last : begin) * in);
          multiply_point(s, v + q * s.v_stride, u + S::weights_of(q) * point, next, m + q * s.m_stride, count, k, last);
        }
        for (int64_t i = 0; i < count; ++i) {
          const TileCorner corner = tile_corner(s, first + i);
          for (int64_t c = k; c < last; c += Vec::lanes) {
            Vec tile[S::m[0] * S::m[1] * S::m[2]];
            output_lines<S>(m + i * s.range + c - k, s.m_stride, tile);
            const Vec offset = bias ? load(bias + c) : Vec::all(0.0f);
            // The next vector of channels, or the first one of the tile beside it.
            const int64_t ahead = c + Vec::lanes < last ? Vec::lanes : S::m[2] * s.dilation[2] * addend.pitch - (c - k);
            if constexpr (!S::Width::splits)
              if (s.pooled) {
                pool_tile<S>(s, p.out[0], corner, tile, offset, slope, c, y, arg);
                continue;
              }
            store_tile<S>(s, corner, tile, offset, slope, c, y, addend, ahead, streams);
          }
        }
      }
    }
    if (streams) fence();
  });
}

/// G g G^T over the axes for a vector of channels; g is taps x lanes. Weights come to lie `pitch` floats apart.
template <class S>
[[gnu::noinline]] void transform_taps(const float* g, float* to, int64_t pitch) {
  Vec first[S::u[0]][S::k[1]][S::k[2]], second[S::u[0]][S::u[1]][S::k[2]];
  for (int j = 0; j < S::k[1]; ++j)
    for (int k = 0; k < S::k[2]; ++k) {
      Vec in[S::k[0]], out[S::u[0]];
      read_points<S::k[0]>(g + (j * S::k[2] + k) * Vec::lanes, S::k[1] * S::k[2] * Vec::lanes, in);
      axis_weights<typename S::Depth>(in, out);
#pragma GCC unroll all_points
      for (int i = 0; i < S::u[0]; ++i) first[i][j][k] = out[i];
    }
  for (int i = 0; i < S::u[0]; ++i)
    for (int k = 0; k < S::k[2]; ++k) {
      Vec in[S::k[1]], out[S::u[1]];
#pragma GCC unroll all_points
      for (int j = 0; j < S::k[1]; ++j) in[j] = first[i][j][k];
      axis_weights<typename S::Height>(in, out);
#pragma GCC unroll all_points
      for (int j = 0; j < S::u[1]; ++j) second[i][j][k] = out[j];
    }
  for (int i = 0; i < S::u[0]; ++i)
    for (int j = 0; j < S::u[1]; ++j) {
      Vec out[S::u[2]];
      axis_weights<typename S::Width>(second[i][j], out);
      write_points<S::u[2]>(out, to + (i * S::u[1] + j) * S::u[2] * pitch, pitch);
    }
}

/// Taps of a vector of outputs, [tap][lane], for inputs [input, input + count): `count` is a vector of them, or one.
/// Weights are K, KD, KH, KW, C. Forward: C in, K out. Backward_data: K in, C out, taps reversed.
template <int64_t taps, class T>
void gather_taps(bool forward, const T* from, int64_t channels, int64_t first, int64_t input, int64_t count, float* g) {
  if (!forward) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t t = 0; t < taps; ++t)
        store(g + (i * taps + t) * Vec::lanes, load(from + ((input + i) * taps + taps - 1 - t) * channels + first));
  } else if (count == Vec::lanes) {
    for (int64_t t = 0; t < taps; ++t) {
      Vec rows[Vec::lanes];
#pragma GCC unroll 16
      for (int q = 0; q < Vec::lanes; ++q) rows[q] = load(from + ((first + q) * taps + t) * channels + input);
      turn(rows);
#pragma GCC unroll 16
      for (int i = 0; i < Vec::lanes; ++i) store(g + (i * taps + t) * Vec::lanes, rows[i]);
    }
  } else {
    for (int64_t t = 0; t < taps; ++t)
      for (int64_t q = 0; q < Vec::lanes; ++q)
        g[t * Vec::lanes + q] = static_cast<float>(from[((first + q) * taps + t) * channels + input]);
  }
}

/// Packs weights into points of column blocks [input][two vectors of outputs].
template <class S, class T>
void winograd_pack(bool forward, const Tensor& weight, float* u, int threads) {
  constexpr int64_t taps = S::k[0] * S::k[1] * S::k[2];
  const Shape& w = weight.shape();
  const int64_t in = forward ? w.c() : w.n(), out = forward ? w.n() : w.c(), point = winograd_point_floats(in, out);
  const T* from = weight.data<T>();
  // Points lie a power of two apart: a single line for each of them in turn would be the slowest way to fill memory. A
  // piece of every point is put together in the second-level cache, then written as a whole: smaller pieces only where
  // there are less than two for a thread.
  constexpr int64_t pitch = pack_inputs * gemm_columns + point_pad;
  int64_t wide = gemm_columns, inputs = pack_inputs;  // of a piece
  const auto pieces = [&] { return ceil_div(out, wide) * (in / inputs); };
  if (pieces() < 2 * threads) wide = Vec::lanes;
  while (inputs > 4 && pieces() < 2 * threads) inputs /= 2;
  parallel_ranges(pieces(), threads, 1, [&](Range range) {
    alignas(64) float g[taps * Vec::lanes * Vec::lanes], stage[S::weights * pitch];
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t first = i / (in / inputs) * wide, input = i % (in / inputs) * inputs;
      const int64_t columns = std::min(wide, out - first);
      for (int64_t k = 0; k < columns; k += Vec::lanes)
        for (int64_t c = 0; c < inputs; ++c) {
          const int64_t lane = (input + c) % Vec::lanes;
          if (c == 0 || lane == 0) gather_taps<taps>(forward, from, w.c(), first + k, input + c - lane, Vec::lanes, g);
          transform_taps<S>(g + lane * taps * Vec::lanes, stage + c * gemm_columns + k, pitch);
        }
      const int64_t column = first % gemm_columns;
      for (int64_t q = 0; q < S::weights; ++q) {
        float* to = u + q * point + (first - column) * in + input * gemm_columns + column;
        for (int64_t c = 0; c < inputs; ++c, to += gemm_columns)
          for (int64_t k = 0; k < columns; k += Vec::lanes)
            put_output(to + k, load(stage + q * pitch + c * gemm_columns + k), std::integral_constant<int64_t, 0>{},
                       Vec::lanes == 16);
      }
    }
    fence();
  });
}

#include "kernels/conv/winograd_four.inl"

/// The two things that a scheme is compiled for.
struct WinogradCode {
  void (*pack)(const WinogradShape& s, const Tensor& weight, float* u, int threads);
  void (*run)(const Problem& p, const WinogradShape& s, const KernelArgs& args);
};
template <class S>
constexpr WinogradCode winograd_code() {
  return {[](const WinogradShape& s, const Tensor& weight, float* u, int threads) {
            by_storage(weight.dtype(), [&](auto zero) {
              using T = decltype(zero);
              if constexpr (S::takes_four)
                if (s.four()) return winograd_pack_four<S, T>(weight, u, threads);
              winograd_pack<S, T>(s.forward, weight, u, threads);
            });
          },
          [](const Problem& p, const WinogradShape& s, const KernelArgs& args) {
            by_storage(p.in[0].dtype, [&](auto zero) {
              using T = decltype(zero);
              if constexpr (S::takes_four)
                if (s.four()) return winograd_run_four<S, T>(p, s, args);
              winograd_run<S, T>(p, s, args);
            });
          }};
}

class PreparedWinograd final : public Prepared {
 public:
  PreparedWinograd(const Problem& p, const SchemeNumbers& scheme, const WinogradCode& code)
      : problem_(p), shape_(winograd_shape(without_addend(p), scheme)), code_(code) {}
  int64_t workspace_bytes() const override {
    return problem_.threads * (shape_.four() ? four_thread_floats(shape_) : winograd_thread_floats(shape_)) * 4;
  }
  std::string detail() const override {
    return scheme_name() + (shape_.scheme.p[0] > 1 ? "^3, " : "^2, ") + std::to_string(shape_.block) +
           " tiles a block" + (shape_.parts > 1 ? ", " + std::to_string(shape_.parts) + " parts" : "");
  }
  std::vector<PackRequest> packed_weights() const override {
    const int64_t bytes =
        shape_.scheme.weights * winograd_point_floats(shape_.channels_in(), shape_.channels_out()) * 4;
    return {{winograd_weight_input(problem_), scheme_name() + (shape_.forward ? " forward" : " backward"), bytes,
             [shape = shape_, pack = code_.pack, threads = problem_.threads](const Tensor& weight, std::byte* packed) {
               pack(shape, weight, reinterpret_cast<float*>(packed), threads);
             }}};
  }
  void run(const KernelArgs& args) const override { code_.run(problem_, shape_, args); }

 private:
  std::string scheme_name() const {
    const SchemeNumbers& s = shape_.scheme;
    if (s.splits) return s.goes_up ? "up 2 F(3,2)" : "down 2 F(3,2)";
    const std::string across = std::to_string(s.m[2]);
    const bool flatter = s.m[0] > 1 && s.m[0] < s.m[2];  // F(4x6x6,3)
    return "F(" + (flatter ? std::to_string(s.m[0]) + "x" + across + "x" : "") + across + "," + std::to_string(s.k[2]) +
           ")";
  }
  Problem problem_;
  WinogradShape shape_;
  WinogradCode code_;
};

#include "kernels/conv/winograd_supports.inl"
