// 1x1 convolutions, forward (any stride, with bias and activation) and backward_data, as a matrix product with its own
// blocking. f32, bf16 and f16 storage, f32 sums.
//
// Loops: a unit is a tile of positions and a range of output channels.
//   1. the tile's positions are copied into panels of six, [channel][position], over all input channels; they stay in
//      the second-level cache;
//   2. per block of two vectors of output channels, the register block runs over the panels with packed weights. It
//      sums over all channels at once, so no sums pass through memory.
// One pointer walks along a panel, where rows side by side take one each, and the caches' prefetchers see one stream.
// Two channels are computed a turn, because a thread that shares its core gains from every instruction less. Beside the
// same block over rows in place (the direct kernels), 728 -> 728 channels, Zen 3: 1.05 times as fast, 1.1 to 1.25 with
// busy neighbours.
// The same bits for any number of threads; f32 results equal those of the direct kernels.
// Limit: the f32 FMA rate. Copying takes 3 % of 728 -> 728 channels, a fifth of 64 -> 128.
// Tried without gain: 4 x 3 vectors, four channels a turn written in assembly (g++ 12 puts a sum on the stack), asking
// for the next tile's rows or the next block's weights, smaller tiles, and one level of Strassen's product: at
// best 1.05 times as fast with 1.75 times the weights and a worse error.
//
// Refuses other kernels, padding, groups, strided weights, and a stride in backward_data.

constexpr int panel_positions = block_rows;
constexpr int panel_vectors = block_vectors;
constexpr int64_t panel_width = block_width;
static_assert(panel_positions <= Vec::lanes);

constexpr int64_t tile_bytes = 512 << 10;                      // of panels: what a second-level cache holds
constexpr int64_t least_positions = 48, most_positions = 144;  // of a tile
constexpr int64_t copying_blocks = 2;  // copying a tile takes as long as so many blocks of a product

struct PointwisePlan {
  explicit PointwisePlan(const Problem& p) : shape(p), positions(shape.rows() * shape.positions) {
    padded_out = round_up(shape.out, int64_t{Vec::lanes});
    blocks = ceil_div(padded_out, panel_width);
    const int64_t longest = std::clamp(tile_bytes / (shape.in * 4), least_positions, most_positions);
    tiles = ceil_div(positions, longest / panel_positions * panel_positions);
    panels = ceil_div(ceil_div(positions, panel_positions), tiles);
    parts = best_parts(p.threads);
  }
  DirectShape shape;
  int64_t positions, padded_out;
  int64_t blocks;  ///< of output channels
  int64_t tiles;   ///< of positions
  int64_t panels;  ///< of a tile at most
  int64_t parts;   ///< of the blocks; each copies its tile again

  /// So many that the slowest thread has the least to do.
  int64_t best_parts(int threads) const {
    const auto time = [&](int64_t count) {
      return ceil_div(tiles * count, threads) * (ceil_div(blocks, count) + copying_blocks);
    };
    int64_t best = 1;
    for (int64_t count = 2; count <= std::min<int64_t>(blocks, 2 * threads); ++count)
      if (time(count) < time(best)) best = count;
    return best;
  }
  Range tile(int64_t index) const {
    return split_range(positions, static_cast<int>(index), static_cast<int>(tiles), panel_positions);
  }
  Range lanes(int64_t block) const { return {block * panel_width, std::min((block + 1) * panel_width, padded_out)}; }
  // The thread's memory.
  /// Panels, and what a whole vector writes past the last.
  int64_t panels_bytes() const { return round_up((panels * panel_positions * shape.in + Vec::lanes) * 4, 64); }
  int64_t thread_bytes() const { return panels_bytes() + round_up(panels * panel_positions * 8, 64); }
};

/// Copies rows of `channels` channels into a panel [channel][position]; a null row becomes zeros. Whole vectors write
/// past the panel's end, where the next panel follows.
template <class T>
void copy_panel(const std::array<const T*, panel_positions>& rows, int64_t channels, float* panel) {
  const bool all = std::find(rows.begin(), rows.end(), nullptr) == rows.end();
  for_vectors(0, channels, [&](int64_t c, auto n) {
    Vec square[Vec::lanes];
#pragma GCC unroll 16
    for (size_t r = 0; r < Vec::lanes; ++r)
      square[r] = r < panel_positions && (all || rows[r]) ? get(rows[r] + c, n) : Vec::all(0.0f);
    turn(square);
    // What a vector writes past a channel's positions, the next writes again.
    for (int64_t i = 0; i < std::min<int64_t>(Vec::lanes, channels - c); ++i)
      store(panel + (c + i) * panel_positions, square[i]);
  });
}

/// Where a register block's sums go.
template <class T>
struct PointwiseTarget {
  T* const* rows;        ///< of the positions
  int64_t positions;     ///< that exist
  int64_t first, valid;  ///< channel, and channels that exist
  const float* bias;     ///< of all lanes
  Vec slope;
  bool streams;
};

/// A panel times a block of packed weights [channel][lane]. `activates` is known to the compiler: a choice between the
/// loops makes g++ 12 keep sums on the stack.
template <class T, int vectors, bool activates>
[[gnu::noinline]] void multiply_panel(const float* panel, const float* weights, int64_t channels,
                                      const PointwiseTarget<T>& to) {
  Vec total[panel_positions][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < panel_positions; ++r)
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) total[r][q] = load(to.bias + q * Vec::lanes);
  const auto step = [&](const float* a, const float* b) __attribute__((always_inline)) {
    Vec weight[vectors];
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) weight[q] = load(b + q * Vec::lanes);
#pragma GCC unroll 12
    for (int r = 0; r < panel_positions; ++r) {
      const Vec value = Vec::all(a[r]);
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) total[r][q] = fma(value, weight[q], total[r][q]);
    }
  };
  constexpr int64_t width = vectors * Vec::lanes;
  const float *a = panel, *b = weights;
  for (int64_t c = 0; c + 2 <= channels; c += 2, a += 2 * panel_positions, b += 2 * width) {
    step(a, b);
    step(a + panel_positions, b + width);
  }
  if (channels % 2) step(a, b);
#pragma GCC unroll 12
  for (int r = 0; r < panel_positions; ++r) {
    if (r >= to.positions) break;
    T* row = to.rows[r] + to.first;
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) {
      const Vec value = activates ? leaky<T>(total[r][q], to.slope) : total[r][q];
      if (const int64_t left = to.valid - q * Vec::lanes; left >= Vec::lanes)
        put_output(row + q * Vec::lanes, value, std::integral_constant<int64_t, 0>{}, to.streams);
      else if (left > 0)
        put(row + q * Vec::lanes, value, left);
    }
  }
}

template <class T>
class PointwiseRun {
 public:
  PointwiseRun(const Problem& p, const PointwisePlan& d, const KernelArgs& args)
      : d_(d),
        s_(d.shape),
        x_(args.in[0].data<T>()),
        y_(args.out[0].data<T>()),
        weights_(reinterpret_cast<const float*>(args.packed[0])),
        bias_(args.in.size() > 2 ? args.in[2].data<float>() : nullptr),
        slope_(Vec::all(s_.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f)),
        streams_(panel_width * sizeof(T) % 64 == 0 && streams_lines(s_.y, args.out[0], s_.out)) {}
  bool streams() const { return streams_; }

  void unit(int64_t index, std::byte* memory) const {
    const Range positions = d_.tile(index % d_.tiles),
                blocks = split_range(d_.blocks, static_cast<int>(index / d_.tiles), static_cast<int>(d_.parts));
    auto* panels = reinterpret_cast<float*>(memory);
    auto** rows = reinterpret_cast<T**>(memory + d_.panels_bytes());
    copy(positions, panels, rows);
    const int64_t panel_floats = panel_positions * s_.in;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range lanes = d_.lanes(block);
      const int64_t valid = std::min(lanes.end, s_.out) - lanes.begin;
      float bias[panel_width] = {};
      if (bias_) std::copy_n(bias_ + lanes.begin, valid, bias);
      for (int64_t i = 0; i < positions.size(); i += panel_positions)
        multiply(lanes.size() / Vec::lanes, panels + i / panel_positions * panel_floats, weights_ + lanes.begin * s_.in,
                 {rows + i, std::min<int64_t>(panel_positions, positions.size() - i), lanes.begin, valid, bias, slope_,
                  streams_});
    }
  }

 private:
  /// Fills the panels of a tile and lists its output rows.
  void copy(Range positions, float* panels, T** rows) const {
    int64_t row = positions.begin / s_.positions, column = positions.begin % s_.positions;
    for (int64_t i = 0; i < positions.size(); i += panel_positions, panels += panel_positions * s_.in) {
      std::array<const T*, panel_positions> from{};
      for (int64_t r = 0; r < std::min<int64_t>(panel_positions, positions.size() - i); ++r) {
        from[size_t(r)] =
            x_ + DirectShape::row_offset(s_.x, s_.source_row(row, 0)) + column * s_.phases[0].advance * s_.x.stride[3];
        rows[i + r] = y_ + DirectShape::row_offset(s_.y, row) + column * s_.y.stride[3];
        if (++column == s_.positions) column = 0, ++row;
      }
      copy_panel(from, s_.in, panels);
    }
  }
  template <int most = panel_vectors>
  void multiply(int64_t vectors, const float* panel, const float* weights, const PointwiseTarget<T>& to) const {
    if (vectors == most)
      return s_.activates ? multiply_panel<T, most, true>(panel, weights, s_.in, to)
                          : multiply_panel<T, most, false>(panel, weights, s_.in, to);
    if constexpr (most > 1) multiply<most - 1>(vectors, panel, weights, to);
  }

  const PointwisePlan& d_;
  const DirectShape& s_;
  const T* x_;
  T* y_;
  const float *weights_, *bias_;
  Vec slope_;
  bool streams_;
};

/// A square of the weight (K x C), a vector of outputs per channel, of which `channels` and `outputs` exist; zeros for
/// others. `outputs_last`: outputs lie side by side and channels `pitch` apart; otherwise the other way round.
template <class T>
inline void weight_square(const T* from, bool outputs_last, int64_t pitch, int64_t channels, int64_t outputs,
                          Vec (&square)[Vec::lanes]) {
  const int64_t rows = outputs_last ? channels : outputs, columns = outputs_last ? outputs : channels;
  if (rows >= Vec::lanes && columns >= Vec::lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < Vec::lanes; ++i) square[i] = load(from + i * pitch);
  } else {
    for (int i = 0; i < Vec::lanes; ++i)
      square[i] =
          i < rows && columns > 0 ? load(from + i * pitch, std::min<int64_t>(columns, Vec::lanes)) : Vec::all(0.0f);
  }
  if (!outputs_last) turn(square);
}

/// Packs the weight as [block][input channel][lane], zeros past the last output.
template <class T>
void pointwise_pack(const PointwisePlan& d, const Tensor& weight, float* to, int threads) {
  const DirectShape& s = d.shape;
  const T* from = weight.data<T>();
  const int64_t in_step = s.forward ? 1 : s.out, out_step = s.forward ? s.in : 1;
  // Backward, rows of outputs lie pages apart: blocks side by side read them by whole cache lines.
  const int64_t together = s.forward ? 1 : 4;
  parallel_ranges(ceil_div(d.blocks, together), threads, 1, [&](Range range) {
    for (int64_t first = range.begin * together; first < std::min(range.end * together, d.blocks); first += together)
      for (int64_t c = 0; c < s.in; c += Vec::lanes)
        for (int64_t block = first; block < std::min(first + together, d.blocks); ++block) {
          const Range lanes = d.lanes(block);
          for (int64_t k = lanes.begin; k < lanes.end; k += Vec::lanes) {
            Vec square[Vec::lanes];
            weight_square(from + c * in_step + k * out_step, !s.forward, s.forward ? out_step : in_step, s.in - c,
                          s.out - k, square);
            float* at = to + lanes.begin * s.in + c * lanes.size() + (k - lanes.begin);
            for (int64_t e = 0; e < std::min<int64_t>(Vec::lanes, s.in - c); ++e)
              store(at + e * lanes.size(), square[e]);
          }
        }
  });
}

class PreparedPointwise final : public Prepared {
 public:
  explicit PreparedPointwise(const Problem& p) : problem_(p), plan_(p) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override {
    return std::to_string(plan_.tiles) + " tiles of " + std::to_string(plan_.panels * panel_positions) +
           " positions, " + std::to_string(plan_.parts) + " parts";
  }
  std::vector<PackRequest> packed_weights() const override {
    return {{1, std::string("pointwise") + (plan_.shape.forward ? " forward" : " backward"),
             plan_.padded_out * plan_.shape.in * 4,
             [plan = plan_, threads = problem_.threads](const Tensor& weight, std::byte* packed) {
               by_storage(weight.dtype(), [&](auto zero) {
                 pointwise_pack<decltype(zero)>(plan, weight, reinterpret_cast<float*>(packed), threads);
               });
             }}};
  }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      const PointwiseRun<decltype(zero)> run(problem_, plan_, args);
      parallel_threads(problem_.threads, [&](int thread) {
        const Range mine = split_range(plan_.tiles * plan_.parts, thread, problem_.threads);
        for (int64_t unit = mine.begin; unit < mine.end; ++unit)
          run.unit(unit, args.workspace + thread * plan_.thread_bytes());
        if (run.streams()) fence();
      });
    });
  }

 private:
  Problem problem_;
  PointwisePlan plan_;
};

Support supports_pointwise(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
  if (!p.in[1].dense()) return Support::no("needs dense weights, found " + p.in[1].str());
  if (const Support support = needs_pointwise(p); !support.ok) return support;
  if (p.op.kind == OpKind::conv_backward_data && p.op.as<ConvAttrs>().stride != Int3{1, 1, 1})
    return Support::no("takes a stride in forward passes only");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare_pointwise(const Problem& p) {
  return std::make_unique<PreparedPointwise>(p);
}
