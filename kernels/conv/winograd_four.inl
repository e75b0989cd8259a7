// Winograd forward for four input channels, the first layer of a volume: a vector holds as many tiles as it has lanes,
// not channels. Included by winograd.inl, whose formulas and error bound hold here too.
//
// With channels along the vector, products of four terms are written to memory and read again for every point: that
// traffic, not arithmetic, was the limit. Here the points of the first axis stay in registers from the products to the
// end of their output transform. Per vector of tiles:
//   1. rows of 4-channel positions are turned into vectors of tiles, and transformed: V[jk][i][c] (i: point of the
//      first axis, jk: of the other two). Tiles that follow each other share positions, which are turned once;
//   2. for `four_group` outputs at a time: for every jk the products of all i, and at once A^T along the first axis;
//   3. A^T along the others, bias, activation, pool; then sixteen outputs are turned back to lie side by side.
// U is packed [output / four_group][jk][i][c][four_group].

constexpr int64_t four_group = Vec::lanes == 16 ? 4 : 2;  // times six points: the accumulators

/// Outputs of a tile, or its cells where it pools.
inline int64_t four_results(const WinogradShape& s) {
  const auto& m = s.scheme.m;
  return s.pooled ? m[0] / s.window[0] * (m[1] / 2) * (m[2] / 2) : m[0] * m[1] * m[2];
}

/// V, one group between the axes, and results of a vector of outputs with their arg-max; V half done takes the place of
/// the last two first.
inline int64_t four_thread_floats(const WinogradShape& s) {
  const int64_t half = four_group * s.scheme.m[0] * s.scheme.p[1] * s.scheme.p[2], points = s.scheme.points * 4;
  return (points + std::max(points, half + 2 * four_results(s) * Vec::lanes)) * Vec::lanes;
}

/// Where the tiles of a vector, any ones, begin in a row of x: in place, or, at an edge or where positions do
/// not lie side by side, in a copy.
template <class S, class T>
struct FourRows {
  static constexpr int loads = ceil_div(S::p[2] * 4, Vec::lanes), length = loads * Vec::lanes;

  FourRows(const WinogradShape& s, const T* x, int64_t first, int64_t tile_count) : count(size_t(tile_count)) {
    const bool side_by_side = s.x.stride[3] == 4 && s.dilation[2] == 1;
    for (int64_t t = 0; t < tile_count; ++t) {
      tiles[size_t(t)] = {s, x, first + t};
      const int64_t* columns = tiles[size_t(t)].columns;
      in_place[static_cast<size_t>(t)] = side_by_side && columns[0] >= 0 && columns[0] + length <= s.x.shape.w() * 4;
    }
  }

  /// The start of every tile in row `row` of its points.
  void find(int row, const T* (&from)[Vec::lanes]) {
    for (size_t t = 0; t < Vec::lanes; ++t) {
      const T* begin = t < count ? tiles[t].rows[row] : nullptr;
      if (begin && in_place[t]) {
        from[t] = begin + tiles[t].columns[0];
        continue;
      }
      T* copy = copies[t];
      for (int k = 0; k < S::p[2]; ++k)
        for (int c = 0; c < 4; ++c)
          copy[k * 4 + c] = begin && tiles[t].columns[k] >= 0 ? begin[tiles[t].columns[k] + c] : T(0.0f);
      from[t] = copy;
    }
  }

  size_t count;
  std::array<TileInput<S, T>, Vec::lanes> tiles;
  std::array<bool, Vec::lanes> in_place{};
  alignas(64) T copies[Vec::lanes][length] = {};
};

/// Turns a row of positions under every tile into vectors of tiles: values[position][channel].
template <int length, class T>
inline void four_turn(const T* const (&from)[Vec::lanes], float* values) {
#pragma GCC unroll 3
  for (int l = 0; l < length; l += Vec::lanes) {
    Vec turned[Vec::lanes];
#pragma GCC unroll 16
    for (int t = 0; t < Vec::lanes; ++t) turned[t] = load(from[t] + l);
    turn(turned);
#pragma GCC unroll 16
    for (int q = 0; q < Vec::lanes; ++q) store(values + (l + q) * Vec::lanes, turned[q]);
  }
}

/// Values of one row of positions under a vector of tiles.
template <class S>
using FourLine = Vec[S::p[2]][4];

/// Rows under any tiles.
template <class S, class T>
class FourScattered {
 public:
  FourScattered(const WinogradShape& s, const T* x, int64_t first, int64_t count) : rows_(s, x, first, count) {}
  void read(int row, FourLine<S>& line) {
    const T* from[Vec::lanes];
    rows_.find(row, from);
    alignas(64) float values[FourRows<S, T>::length * Vec::lanes];
    four_turn<FourRows<S, T>::length>(from, values);
    for (int k = 0; k < S::p[2]; ++k)
      for (int c = 0; c < 4; ++c) line[k][c] = load(values + (k * 4 + c) * Vec::lanes);
  }

 private:
  FourRows<S, T> rows_;
};

/// Rows under tiles that follow each other along W: one stretch of memory, in which the last positions of a tile are
/// its neighbour's first ones, so that each is turned once.
template <class S, class T>
class FourNeighbours {
 public:
  static constexpr int own = S::m[2] * 4, shared = (S::p[2] - S::m[2]) * 4, length = Vec::lanes * own + shared;
  /// Whole vectors are turned, and what is behind the last tile is a vector at most.
  static constexpr bool possible = own % Vec::lanes == 0 && shared <= own && shared <= Vec::lanes;
  static bool fit(const WinogradShape& s, int64_t first, int64_t count) {
    const auto across = static_cast<int64_t>(s.origins[2].size());
    return count == Vec::lanes && first % across + count <= across && s.x.stride[3] == 4 && s.dilation[2] == 1;
  }
  FourNeighbours(const WinogradShape& s, const T* x, int64_t first)
      : tile_(s, x, first), begin_(S::Width::first(tile_corner(s, first).at[2], s.pad[2])) {
    const int64_t low = std::clamp<int64_t>(-begin_ * 4, 0, length);
    inside_ = {low, std::clamp<int64_t>((s.x.shape.w() - begin_) * 4, low, length)};
    ahead_ = s.dilation[1] * S::m[1] * s.x.stride[2];
  }
  void read(int row, FourLine<S>& line) {
    const T* from = tile_.rows[row];
    if (from) {
      from += begin_ * 4;
      // The next tiles below begin with this one's last rows, and read as many new ones as they have outputs.
      if (row % S::p[1] >= S::p[1] - S::m[1])
        for (int64_t at = 0; at < length; at += 64 / int64_t{sizeof(T)}) __builtin_prefetch(from + ahead_ + at, 0, 2);
    }
    if (!from || inside_.size() < length) {
      if (from)
        std::copy(from + inside_.begin, from + inside_.end, copy_ + inside_.begin);
      else
        std::fill(copy_ + inside_.begin, copy_ + inside_.end, T(0.0f));
      from = copy_;
    }
#pragma GCC unroll 2
    for (int l = 0; l < own; l += Vec::lanes) {
      Vec turned[Vec::lanes];
#pragma GCC unroll 16
      for (int t = 0; t < Vec::lanes; ++t) turned[t] = load(from + t * own + l);
      turn(turned);
#pragma GCC unroll 16
      for (int q = 0; q < Vec::lanes; ++q) line[(l + q) / 4][q % 4] = turned[q];
    }
    float behind[Vec::lanes];
    store(behind, load(from + Vec::lanes * own, shared));
#pragma GCC unroll 16
    for (int q = 0; q < shared; ++q) line[S::m[2] + q / 4][q % 4] = next_lanes(line[q / 4][q % 4], Vec::all(behind[q]));
  }

 private:
  TileInput<S, T> tile_;  // the first one
  int64_t begin_, ahead_;
  Range inside_;
  alignas(64) T copy_[length] = {};  // zeros outside the image
};

/// B^T along the second axis of one plane of points: lines[j][k][c].
template <class S>
[[gnu::noinline]] void four_rows_input(float* lines) {
  for (int kc = 0; kc < S::p[2] * 4; ++kc) {
    Vec line[S::p[1]];
    read_points<S::p[1]>(lines + kc * Vec::lanes, S::p[2] * 4 * Vec::lanes, line);
    input_line<S::p[1]>(line);
    write_points<S::p[1]>(line, lines + kc * Vec::lanes, S::p[2] * 4 * Vec::lanes);
  }
}

/// B^T along the first axis: planes[i][jk][c] to v[jk][i][c].
template <class S>
[[gnu::noinline]] void four_planes_input(const float* planes, float* v) {
  constexpr int plane = S::p[1] * S::p[2], vectors = plane * 4;
  for (int jk = 0; jk < plane; ++jk)
    for (int c = 0; c < 4; ++c) {
      Vec line[S::p[0]];
      read_points<S::p[0]>(planes + (jk * 4 + c) * Vec::lanes, vectors * Vec::lanes, line);
      input_line<S::p[0]>(line);
      write_points<S::p[0]>(line, v + (jk * S::p[0] * 4 + c) * Vec::lanes, 4 * Vec::lanes);
    }
}

/// B^T d B of a vector of tiles; `scratch` holds as much as v.
template <class S, class Rows>
void four_transform(Rows&& rows, float* scratch, float* v) {
  constexpr int vectors = S::p[1] * S::p[2] * 4;
  for (int i = 0; i < S::p[0]; ++i) {
    float* lines = S::p[0] > 1 ? scratch + i * vectors * Vec::lanes : v;
    for (int j = 0; j < S::p[1]; ++j) {
      FourLine<S> values;
      rows.read(i * S::p[1] + j, values);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        Vec line[S::p[2]];
#pragma GCC unroll 8
        for (int k = 0; k < S::p[2]; ++k) line[k] = values[k][c];
        input_line<S::p[2]>(line);
        write_points<S::p[2]>(line, lines + (j * S::p[2] * 4 + c) * Vec::lanes, 4 * Vec::lanes);
      }
    }
    four_rows_input<S>(lines);
  }
  if constexpr (S::p[0] > 1) four_planes_input<S>(scratch, v);
}

template <class S, class T>
void four_input(const WinogradShape& s, const T* x, int64_t first, int64_t count, float* scratch, float* v) {
  if constexpr (FourNeighbours<S, T>::possible)
    if (FourNeighbours<S, T>::fit(s, first, count))
      return four_transform<S>(FourNeighbours<S, T>(s, x, first), scratch, v);
  four_transform<S>(FourScattered<S, T>(s, x, first, count), scratch, v);
}

/// Products of one group of outputs, transformed along the first axis: half[output][result][jk].
template <class S>
[[gnu::noinline]] void four_products(const float* v, const float* u, float* half) {
  constexpr int plane = S::p[1] * S::p[2];
  for (int jk = 0; jk < plane; ++jk, v += S::p[0] * 4 * Vec::lanes, u += S::p[0] * 4 * four_group) {
    Vec total[four_group][S::p[0]];
#pragma GCC unroll 6
    for (int i = 0; i < S::p[0]; ++i)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Vec value = load(v + (i * 4 + c) * Vec::lanes);
#pragma GCC unroll 4
        for (int q = 0; q < four_group; ++q) {
          const Vec weight = Vec::all(u[(i * 4 + c) * four_group + q]);
          total[q][i] = c == 0 ? weight * value : fma(weight, value, total[q][i]);
        }
      }
#pragma GCC unroll 4
    for (int q = 0; q < four_group; ++q) {
      Vec done[S::m[0]];
      output_line<S::p[0], S::m[0]>(total[q], done);
#pragma GCC unroll 4
      for (int i = 0; i < S::m[0]; ++i) store(half + ((q * S::m[0] + i) * plane + jk) * Vec::lanes, done[i]);
    }
  }
}

/// The results of one output channel: results[result][channel of the vector], and the arg-max behind them.
template <class S, class T>
inline void four_finish(const WinogradShape& s, const float* half, Vec bias, Vec slope, float* results,
                        float* winners) {
  Vec out[S::m[0] * S::m[1] * S::m[2]];
  output_plane<S>(half, out);
  if (!s.pooled) {
    for (int r = 0; r < S::m[0] * S::m[1] * S::m[2]; ++r) {
      const Vec sum = out[r] + bias;
      store(results + r * Vec::lanes * Vec::lanes, s.activates ? leaky<T>(sum, slope) : sum);
    }
    return;
  }
  const auto window = static_cast<int>(s.window[0]);
  int cell = 0;
  for (int i = 0; i + window <= S::m[0]; i += window)
    for (int j = 0; j + 2 <= S::m[1]; j += 2)
      for (int k = 0; k + 2 <= S::m[2]; k += 2, ++cell) {
        const WindowMaximum best = tile_maximum<S, T>(out, window, i, j, k, bias, slope);
        store(results + cell * Vec::lanes * Vec::lanes, best.best);
        store(winners + cell * Vec::lanes * Vec::lanes, as_floats(best.winner));
      }
}

/// Where the results of a vector of tiles go.
template <class S>
struct FourPlaces {
  FourPlaces(const WinogradShape& s, const TensorDesc& desc, int64_t first, int64_t count) : count(count) {
    const Int3 step = s.pooled ? s.window : Int3{1, 1, 1};
    const Shape& y = desc.shape;
    for (int i = 0; i < 3; ++i) {
      extent[i] = S::m[i] / step[i];
      stride[i] = s.dilation[i] * desc.stride[static_cast<size_t>(i) + 1];
    }
    for (int64_t t = 0; t < count; ++t) {
      const TileCorner corner = tile_corner(s, first + t);
      for (int i = 0; i < 3; ++i) {
        const int64_t at = corner.at[i] / step[i];
        left[t][i] = ceil_div(y[i + 1] - at, s.dilation[i]);
      }
      begin[t] = desc.offset(corner.n, corner.at[0] / step[0], corner.at[1] / step[1], corner.at[2] / step[2]);
    }
  }
  /// For every result of a tile: prepare(result), then f(tile, element) for the tiles that have it inside the image.
  template <class Prepare, class F>
  void each(Prepare&& prepare, F&& f) const {
    int result = 0;
    for (int64_t i = 0; i < extent[0]; ++i)
      for (int64_t j = 0; j < extent[1]; ++j)
        for (int64_t k = 0; k < extent[2]; ++k, ++result) {
          prepare(result);
          const int64_t offset = i * stride[0] + j * stride[1] + k * stride[2];
          for (int64_t t = 0; t < count; ++t)
            if (i < left[t][0] && j < left[t][1] && k < left[t][2]) f(t, begin[t] + offset);
        }
  }

  int64_t count, extent[3], stride[3], begin[Vec::lanes], left[Vec::lanes][3];
};

/// A vector of channels from c on to their places: results are turned so that channels lie side by side.
template <class S, class T>
void four_store(const FourPlaces<S>& places, const float* results, const float* winners, T* y, uint8_t* arg,
                bool streams) {
  constexpr std::integral_constant<int64_t, 0> whole;
  Vec rows[Vec::lanes], codes[Vec::lanes];
  const auto turned = [](const float* from, Vec(&to)[Vec::lanes]) {
#pragma GCC unroll 16
    for (int q = 0; q < Vec::lanes; ++q) to[q] = load(from + q * Vec::lanes);
    turn(to);
  };
  places.each(
      [&](int result) {
        turned(results + result * Vec::lanes * Vec::lanes, rows);
        if (arg) turned(winners + result * Vec::lanes * Vec::lanes, codes);
      },
      [&](int64_t t, int64_t at) {
        put_output(y + at, rows[t], whole, streams);
        if (arg) store_bytes(arg + at, as_ints(codes[t]));
      });
}

template <class S, class T>
void winograd_run_four(const Problem& p, const WinogradShape& s, const KernelArgs& args) {
  const T* x = args.in[0].data<T>();
  T* y = args.out[0].data<T>();
  const auto* u = reinterpret_cast<const float*>(args.packed[0]);
  const float* bias = bias_of(p, args);
  uint8_t* arg = s.pooled ? args.out[1].data<uint8_t>() : nullptr;
  const Vec slope = winograd_slope(p, s);
  const bool streams = streams_output(p.out[0], args.out[0], s.channels_out());
  constexpr int64_t plane = S::p[1] * S::p[2];
  const int64_t results_floats = four_results(s) * Vec::lanes * Vec::lanes;
  UnitCounter blocks(s.blocks);
  parallel_threads(p.threads, [&](int thread) {
    float* v = reinterpret_cast<float*>(args.workspace) + thread * four_thread_floats(s);
    float* half = v + S::points * 4 * Vec::lanes;
    float* results = half + four_group * S::m[0] * plane * Vec::lanes;
    float* winners = results + results_floats;
    for (int64_t b; (b = blocks.take()) >= 0;) {
      const int64_t first = b * s.block, count = std::min(s.block, s.tile_count - first);
      const FourPlaces<S> places(s, p.out[0], first, count);
      four_input<S>(s, x, first, count, half, v);
      for (int64_t k = 0; k < s.channels_out(); ++k) {
        if (k % four_group == 0) four_products<S>(v, u + k * S::points * 4, half);
        const int64_t lane = k % Vec::lanes * Vec::lanes;
        four_finish<S, T>(s, half + k % four_group * S::m[0] * plane * Vec::lanes, Vec::all(bias ? bias[k] : 0.0f),
                          slope, results + lane, winners + lane);
        if (k % Vec::lanes != Vec::lanes - 1) continue;
        const int64_t c = k + 1 - Vec::lanes;
        four_store<S>(places, results, winners, y + c, arg ? arg + c : nullptr, streams);
      }
    }
    if (streams) fence();
  });
}

/// See above for the form.
template <class S, class T>
void winograd_pack_four(const Tensor& weight, float* u, int threads) {
  constexpr int64_t taps = S::k[0] * S::k[1] * S::k[2], plane = S::p[1] * S::p[2];
  const T* from = weight.data<T>();
  parallel_ranges(weight.shape().n() / Vec::lanes * 4, threads, 1, [&](Range range) {
    for (int64_t at = range.begin; at < range.end; ++at) {
      const int64_t first = at / 4 * Vec::lanes, c = at % 4;
      alignas(64) float g[taps * Vec::lanes], transformed[S::weights * Vec::lanes];
      gather_taps<taps>(true, from, 4, first, c, 1, g);
      transform_taps<S>(g, transformed, Vec::lanes);
      for (int64_t point = 0; point < S::weights; ++point) {
        const int64_t i = point / plane, jk = point % plane;
        for (int64_t q = 0; q < Vec::lanes; ++q) {
          const int64_t group = (first + q) / four_group;
          u[(((group * plane + jk) * S::p[0] + i) * 4 + c) * four_group + q % four_group] =
              transformed[point * Vec::lanes + q];
        }
      }
    }
  });
}
