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
// V and M of a block share the second-level cache. Where few tiles meet many threads or large weights, threads take
// each of the three phases of all tiles together instead, and U is read once, not by every block. U comes
// packed (p, K/2 vectors, C, 2 vectors) from a Pack node. Storage may be f32, bf16 or f16; everything inside is f32.
// Limit: the f32 FMA rate times the factor above in dense-count GFLOP/s, less the transforms.
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
#include "kernels/conv/winograd_shape.inl"

constexpr int64_t pack_inputs = 16;      // of a piece of packed weights
constexpr double least_saved = 7.0 / 6;  // times fewer multiplications, for larger tiles

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
                              int64_t tile, Range channels, float* to_points) {
  const TileCorner corner = tile_corner(s, tile);
  const T *dy = args.in[0].data<T>(), *y = args.in[1].data<T>();
  const uint8_t* arg = args.in[2].data<uint8_t>();
  const Vec none = Vec::all(0.0f);
  alignas(64) float line[S::points * Vec::lanes];
  const int64_t d0 = corner.at[0] - s.pad[0], h0 = corner.at[1] - s.pad[1], w0 = corner.at[2] - s.pad[2];
  // Cells of index floor(position / 2); the patch may start on either half of one.
  const auto cell_of = [](int64_t position) { return (position + 64) / 2 - 32; };
  for (int64_t c = channels.begin; c < channels.end; c += Vec::lanes) {
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
    finish_input<S>(s, line, to_points + c);
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

/// Output channels [k.begin, k.end) of one point for `count` tiles: u are their packed weights, `next` what follows.
[[gnu::noinline]] inline void multiply_point(const WinogradShape& s, const float* v, const float* u, int64_t count,
                                             Range k, const float* next, float* m) {
  const int64_t in = s.channels_in();
  // Every block of rows asks for its share of the next columns.
  const int64_t ahead_step = ceil_div(gemm_columns * 4, ceil_div(count, gemm_rows));
  for (int64_t first = k.begin; first < k.end; first += gemm_columns, u += gemm_columns * in) {
    const auto* ahead = reinterpret_cast<const std::byte*>(first + gemm_columns < k.end ? u + gemm_columns * in : next);
    for_even_blocks(count, gemm_rows, [&](int64_t row, int64_t rows) {
      const GemmTile tile{.v = v + row * in,
                          .channels = in,
                          .u = u,
                          .m = m + row * s.range + first - k.begin,
                          .m_row = s.range,
                          .ahead = ahead,
                          .ahead_step = ahead_step};
      if (k.end - first >= gemm_columns)
        run_gemm_tile<2>(rows, tile);
      else
        run_gemm_tile<1>(rows, tile);
      ahead += in * ahead_step;
    });
  }
}

/// A convolution's three phases, for any of its tiles, points and channels.
template <class S, class T>
class WinogradRun {
 public:
  WinogradRun(const Problem& p, const WinogradShape& s, const KernelArgs& args)
      : p_(p),
        s_(s),
        args_(args),
        addend_(p, args),
        u_(reinterpret_cast<const float*>(args.packed[0])),
        bias_(bias_of(p, args)),
        slope_(winograd_slope(p, s)),
        in_(s.channels_in()),
        out_(s.channels_out()),
        streams_(!s.pooled && streams_output(s.y, args.out[0], out_)) {}

  void run() const {
    if (s_.phases)
      run_phases();
    else
      run_blocks();
  }

 private:
  /// Every thread takes blocks of tiles, and parts of the output channels, through all phases.
  void run_blocks() const {
    UnitCounter units(s_.blocks * s_.parts);
    parallel_threads(p_.threads, [&](int thread) {
      float* v = reinterpret_cast<float*>(args_.workspace) + thread * winograd_block_floats(s_);
      float* m = v + S::points * s_.v_stride;
      for (int64_t unit; (unit = units.take()) >= 0;) {
        const Range tiles = split_range(s_.tile_count, int(unit % s_.blocks), int(s_.blocks)),
                    part = channels_of(unit / s_.blocks);
        for (int64_t i = 0; i < tiles.size(); ++i) transform(tiles.begin + i, i, {0, in_}, v);
        for (int64_t k = part.begin; k < part.end; k += s_.range) {
          const int64_t last = std::min(k + s_.range, part.end);
          for (int64_t q = 0; q < S::points; ++q)  // behind the points the next range, or block, begins
            multiply_point(s_, v + q * s_.v_stride, weights(q, k), tiles.size(), {k, last},
                           q + 1 < S::points ? weights(q + 1, k) : weights(0, last < part.end ? last : part.begin),
                           m + q * s_.m_stride);
          for (int64_t i = 0; i < tiles.size(); ++i) finish(tiles.begin + i, {k, last}, m + i * s_.range);
        }
      }
      if (streams_) fence();
    });
  }

  /// All threads take one phase of all tiles after the other.
  void run_phases() const {
    float *v = reinterpret_cast<float*>(args_.workspace), *m = v + S::points * s_.v_stride;
    const auto slices = [](int64_t channels) { return ceil_div(channels, gemm_columns); };
    const auto slice = [](int64_t index, int64_t channels) {
      return Range{index * gemm_columns, std::min((index + 1) * gemm_columns, channels)};
    };
    parallel_ranges(s_.tile_count * slices(in_), p_.threads, 1, [&](Range range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t tile = i / slices(in_);
        transform(tile, tile, slice(i % slices(in_), in_), v);
      }
    });
    const int64_t products = S::points * s_.parts;
    parallel_ranges(products, p_.threads, 1, [&](Range range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t q = i / s_.parts, next = std::min(i + 1, products - 1);
        const Range part = channels_of(i % s_.parts);
        multiply_point(s_, v + q * s_.v_stride, weights(q, part.begin), s_.tile_count, part,
                       weights(next / s_.parts, channels_of(next % s_.parts).begin), m + q * s_.m_stride + part.begin);
      }
    });
    parallel_ranges(s_.tile_count * slices(out_), p_.threads, 1, [&](Range range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t tile = i / slices(out_);
        const Range channels = slice(i % slices(out_), out_);
        finish(tile, channels, m + tile * s_.range + channels.begin);
      }
      if (streams_) fence();
    });
  }

  /// Output channels of a part: whole columns of packed weights.
  Range channels_of(int64_t part) const {
    const Range columns = split_range(s_.columns(), int(part), int(s_.parts));
    return {columns.begin * gemm_columns, std::min(columns.end * gemm_columns, out_)};
  }

  /// Packed weights of a point from output channel k on.
  const float* weights(int64_t point, int64_t k) const {
    return u_ + S::weights_of(int(point)) * winograd_point_floats(in_, out_) + k * in_;
  }

  /// B^T d B of some of a tile's channels, to V's place `slot`.
  void transform(int64_t tile, int64_t slot, Range channels, float* v) const {
    if constexpr (S::p[0] > 1)
      if (s_.unpools)
        return input_transform_unpooled<S, T>(s_, p_.in[0], args_, slope_, tile, channels, v + slot * in_);
    input_transform<S>(s_, args_.in[0].data<T>() + channels.begin, tile, channels.size(),
                       v + slot * in_ + channels.begin);
  }

  /// A^T M A of output channels [k.begin, k.end), whose first sums m are, and what follows.
  void finish(int64_t tile, Range k, const float* m) const {
    const TileCorner corner = tile_corner(s_, tile);
    T* y = args_.out[0].data<T>();
    for (int64_t c = k.begin; c < k.end; c += Vec::lanes) {
      Vec sums[S::m[0] * S::m[1] * S::m[2]];
      output_lines<S>(m + c - k.begin, s_.m_stride, sums);
      const Vec offset = bias_ ? load(bias_ + c) : Vec::all(0.0f);
      // The next vector of channels, or the first one of the tile beside it.
      const int64_t ahead =
          c + Vec::lanes < k.end ? Vec::lanes : S::m[2] * s_.dilation[2] * addend_.pitch - (c - k.begin);
      if constexpr (!S::Width::splits)
        if (s_.pooled) {
          pool_tile<S>(s_, p_.out[0], corner, sums, offset, slope_, c, y, args_.out[1].data<uint8_t>());
          continue;
        }
      store_tile<S>(s_, corner, sums, offset, slope_, c, y, addend_, ahead, streams_);
    }
  }

  const Problem& p_;
  const WinogradShape& s_;
  const KernelArgs& args_;
  const Addend<T> addend_;
  const float *u_, *bias_;
  const Vec slope_;
  const int64_t in_, out_;
  const bool streams_;
};

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
              WinogradRun<S, T>(p, s, args).run();
            });
          }};
}

class PreparedWinograd final : public Prepared {
 public:
  PreparedWinograd(const Problem& p, const SchemeNumbers& scheme, const WinogradCode& code)
      : problem_(p), shape_(winograd_shape(without_addend(p), scheme)), code_(code) {}
  int64_t workspace_bytes() const override {
    if (shape_.four()) return problem_.threads * four_thread_floats(shape_) * 4;
    return (shape_.phases ? 1 : problem_.threads) * winograd_block_floats(shape_) * 4;
  }
  std::string detail() const override {
    return scheme_name() + (shape_.scheme.p[0] > 1 ? "^3, " : "^2, ") + std::to_string(shape_.block) +
           (shape_.phases ? " tiles in phases" : " tiles a block") +
           (shape_.parts > 1 ? ", " + std::to_string(shape_.parts) + " parts" : "");
  }
  std::vector<PackRequest> packed_weights() const override {
    return {{weight_input(problem_), scheme_name() + (shape_.forward ? " forward" : " backward"),
             winograd_weight_bytes(shape_),
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
