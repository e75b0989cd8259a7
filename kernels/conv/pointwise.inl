// 1x1 convolutions, forward (any stride, with bias and activation) and backward_data, also added to something, as a
// matrix product with its own blocking. f32, bf16 and f16 storage, f32 sums.
//
// Loops: a unit is a tile of positions and a range of output channels.
//   1. the tile's positions are copied into panels of six, [channel][position], over all input channels; they stay in
//      the second-level cache, unless the weights are many;
//   2. per block of two vectors of output channels, the register block runs over the panels with packed weights. It
//      sums over all channels at once, so no sums pass through memory. Meanwhile the next tile's inputs are asked for,
//      a few lines with every panel, or copying would wait for memory while nothing is multiplied.
// One pointer walks along a panel, where rows side by side take one each, and the caches' prefetchers see one stream.
// Two channels are computed a turn, because a thread that shares its core gains from every instruction less. Beside the
// same block over rows in place (the direct kernels), 728 -> 728 channels, Zen 3: 1.05 times as fast, 1.1 to 1.25 with
// busy neighbours.
// Weights are packed as for the direct kernels, whose order of a sum it keeps, but that an addend joins the finished
// sum: the same bits for any number of threads.
// Limit: the f32 FMA rate. The register block alone reaches 0.98 of it with both factors in the second-level cache
// (Zen 3); what is lost is copying and what that cache does not hold.
// Tried without gain: 4 x 3 vectors, four or eight channels a turn written in assembly, asking for the next block's
// weights, chunks of 256 to 768 channels, whose sums pass through memory, and one level of Strassen's product: at best
// 1.05 times as fast with 1.75 times the weights and a worse error. With AVX-512, whose direct kernels read rows in
// place, panels were 0.8 to 1.0 times as fast before they asked ahead.
//
// Refuses other kernels, padding, groups, strided weights, a stride in backward_data, and addends of unevenly spaced
// pixels.

static_assert(block_rows <= Vec::lanes);

// Panels that a second-level cache of 512 KiB holds beside the next tile's inputs and two blocks of weights; the
// shortest tiles of more than 1600 channels exceed it.
constexpr int64_t tile_bytes = 112 << 10;
constexpr int64_t shortest_tile = 24, longest_tile = 144;  // positions
// Weights that every tile would bring from memory again, and how long tiles are there, though their panels come from
// the third level then: the shortest ones take 1536 -> 1536 channels 1.6 times as long.
constexpr int64_t many_weights = 4 << 20;  // bytes
constexpr int64_t tile_of_many_weights = 288;
constexpr int64_t copying_blocks = 2;  // copying a tile takes as long as so many blocks of a product

struct PointwisePlan {
  explicit PointwisePlan(const Problem& p) : direct(without_addend(p), {.word_channels = 1}) {
    blocks = ceil_div(direct.padded_out, block_width);
    const bool many = direct.padded_out * shape().in * 4 > many_weights;
    const int64_t longest =
        many ? tile_of_many_weights : std::clamp(tile_bytes / (shape().in * 4), shortest_tile, longest_tile);
    // Rows whole pages apart would drive each other out of the first-level cache, long tiles gain nothing.
    prefetches_outputs = !many && shape().y.stride[3] * size_of(p.out[0].dtype) % 4096 != 0;
    tiles = ceil_div(positions(), longest / block_rows * block_rows);
    // The same number for every thread; parts would read many weights less often than more tiles.
    if (tiles > p.threads || !many)
      tiles = std::min(round_up(tiles, p.threads), std::max(tiles, positions() / shortest_tile));
    panels = ceil_div(ceil_div(positions(), block_rows), tiles);
    parts = best_parts(p.threads);
  }
  DirectPlan direct;        ///< of the packed weights and the geometry
  int64_t blocks;           ///< of output channels
  bool prefetches_outputs;  ///< and what they are added to
  int64_t tiles;            ///< of positions
  int64_t panels;           ///< of a tile at most
  int64_t parts;            ///< of the blocks; each copies its tile again

  const DirectShape& shape() const { return direct.shape; }
  int64_t positions() const { return shape().rows() * shape().positions; }
  int64_t units() const { return tiles * parts; }
  Range share(int thread, int threads) const { return split_range(units(), thread, threads); }
  /// So many that the slowest thread has the least to do.
  int64_t best_parts(int threads) const {
    return cheapest(std::min<int64_t>(blocks, 2 * threads), [&](int64_t count) {
      return ceil_div(tiles * count, threads) * (ceil_div(blocks, count) + copying_blocks);
    });
  }
  Range tile(int64_t index) const {
    return split_range(positions(), static_cast<int>(index), static_cast<int>(tiles), block_rows);
  }
  Range lanes(int64_t block) const {
    return {block * block_width, std::min((block + 1) * block_width, direct.padded_out)};
  }
  // The thread's memory.
  /// Panels, and what a whole vector writes past the last.
  int64_t panels_bytes() const { return round_up((panels * block_rows * shape().in + Vec::lanes) * 4, 64); }
  int64_t thread_bytes() const { return panels_bytes() + round_up(panels * block_rows * 8, 64); }
};

/// Asks for the inputs of `count` positions line by line, to have them in the second-level cache when they are copied.
template <class T>
class InputsAhead {
 public:
  /// All of them within `turns` turns.
  InputsAhead(PositionWalk<const T, T> from, int64_t count, int64_t channels, int64_t turns)
      : from_(from), left_(count), lines_(ceil_div(channels * int64_t{sizeof(T)}, 64)), line_(lines_) {
    share_ = ceil_div(left_ * lines_, turns);
  }
  void ask() {
    for (int64_t i = 0; i < share_; ++i, ++line_) {
      if (line_ == lines_) {
        if (left_-- <= 0) return;
        T* unused;
        from_.next(&row_, &unused), line_ = 0;
      }
      __builtin_prefetch(reinterpret_cast<const std::byte*>(row_) + line_ * 64, 0, 2);
    }
  }

 private:
  PositionWalk<const T, T> from_;
  int64_t left_;          ///< positions
  int64_t lines_, line_;  ///< of a position
  int64_t share_;         ///< lines of a turn
  const T* row_ = nullptr;
};

/// Copies rows of `channels` channels into a panel [channel][position]; a null row becomes zeros. Whole vectors write
/// past the panel's end, where the next panel follows.
template <class T>
void copy_panel(const std::array<const T*, block_rows>& rows, int64_t channels, float* panel) {
  const bool all = std::find(rows.begin(), rows.end(), nullptr) == rows.end();
  for_vectors(0, channels, [&](int64_t c, auto n) {
    Vec square[Vec::lanes];
#pragma GCC unroll 16
    for (size_t r = 0; r < Vec::lanes; ++r)
      square[r] = r < block_rows && (all || rows[r]) ? get(rows[r] + c, n) : Vec::all(0.0f);
    turn(square);
    // What a vector writes past a channel's positions, the next writes again.
    for (int64_t i = 0; i < std::min<int64_t>(Vec::lanes, channels - c); ++i)
      store(panel + (c + i) * block_rows, square[i]);
  });
}

/// What happens to a sum before it is rounded.
enum class Epilogue { none, activation, addition };

/// Where a register block's sums go.
template <class T>
struct PointwiseTarget {
  T* const* rows;        ///< of the positions
  const T* addend;       ///< of the first channel of the first position; null for none
  int64_t addend_pitch;  ///< from one position to the next
  int64_t positions;     ///< that exist
  int64_t first, valid;  ///< channel, and channels that exist
  const float* bias;     ///< of all lanes
  Vec slope;
  bool streams;
};

/// A panel times a block of packed weights [channel][lane]. The epilogue is known to the compiler: a choice between the
/// loops makes g++ 12 keep sums on the stack.
template <class T, int vectors, Epilogue epilogue>
[[gnu::noinline]] void multiply_panel(const float* panel, const float* weights, int64_t channels,
                                      const PointwiseTarget<T>& target) {
  const PointwiseTarget<T> to = target;  // which no store changes, as far as the compiler knows
  Vec total[block_rows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) total[r][q] = load(to.bias + q * Vec::lanes);
  const auto step = [&](const float* a, const float* b) __attribute__((always_inline)) {
    Vec weight[vectors];
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) weight[q] = load(b + q * Vec::lanes);
#pragma GCC unroll 12
    for (int r = 0; r < block_rows; ++r) {
      const Vec value = Vec::all(a[r]);
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) total[r][q] = fma(value, weight[q], total[r][q]);
    }
  };
  constexpr int64_t width = vectors * Vec::lanes;
  const float *a = panel, *b = weights;
  for (int64_t c = 0; c + 2 <= channels; c += 2, a += 2 * block_rows, b += 2 * width) {
    step(a, b);
    step(a + block_rows, b + width);
  }
  if (channels % 2) step(a, b);
  const auto output = [&](int r, int q, auto n) __attribute__((always_inline)) {
    if constexpr (epilogue == Epilogue::activation) return leaky<T>(total[r][q], to.slope);
    if constexpr (epilogue == Epilogue::addition)
      return total[r][q] + get(to.addend + r * to.addend_pitch + q * Vec::lanes, n);
    return total[r][q];
  };
  constexpr std::integral_constant<int64_t, 0> whole;
  const auto put_all = [&](auto streams) __attribute__((always_inline)) {
#pragma GCC unroll 12
    for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q)
        put_output(to.rows[r] + to.first + q * Vec::lanes, output(r, q, whole), whole, streams);
  };
  // Of few channels a product is so short that a choice for every vector would show.
  if (to.positions == block_rows && to.valid == width)
    return to.streams ? put_all(std::true_type{}) : put_all(std::false_type{});
#pragma GCC unroll 12
  for (int r = 0; r < block_rows; ++r) {
    if (r >= to.positions) break;
    T* row = to.rows[r] + to.first;
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q)
      if (const int64_t left = to.valid - q * Vec::lanes; left >= Vec::lanes)
        put(row + q * Vec::lanes, output(r, q, whole), whole);
      else if (left > 0)
        put(row + q * Vec::lanes, output(r, q, left), left);
  }
}

/// The units of a thread, one after the other.
template <class T>
class PointwiseUnit {
 public:
  PointwiseUnit(const Problem& p, const PointwisePlan& d, const KernelArgs& args, std::byte* memory)
      : d_(d),
        s_(d.shape()),
        x_(args.in[0].data<T>()),
        y_(args.out[0].data<T>()),
        weights_(reinterpret_cast<const float*>(args.packed[0])),
        addend_(p, args),
        bias_(bias_of(p, args)),
        epilogue_(addend_        ? Epilogue::addition
                  : s_.activates ? Epilogue::activation
                                 : Epilogue::none),
        slope_(Vec::all(s_.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f)),
        streams_(block_width * sizeof(T) % 64 == 0 && streams_lines(s_.y, args.out[0], s_.out)),
        panels_(reinterpret_cast<float*>(memory)),
        rows_(reinterpret_cast<T**>(memory + d.panels_bytes())) {}
  bool streams() const { return streams_; }

  /// `next`: of the same thread, or -1.
  void run(int64_t index, int64_t next) {
    const Range positions = d_.tile(index % d_.tiles),
                blocks = split_range(d_.blocks, static_cast<int>(index / d_.tiles), static_cast<int>(d_.parts));
    copy(positions);
    const Range coming = next < 0 ? Range{0, 0} : d_.tile(next % d_.tiles);
    InputsAhead<T> ahead(walk(coming), coming.size(), s_.in, blocks.size() * ceil_div(positions.size(), block_rows));
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range lanes = d_.lanes(block);
      const float* weights = weights_ + d_.direct.block_words(0, lanes.begin, lanes.size(), 0);
      const int64_t valid = std::min(lanes.end, s_.out) - lanes.begin;
      float bias[block_width] = {};
      if (bias_) std::copy_n(bias_ + lanes.begin, valid, bias);
      for (int64_t i = 0; i < positions.size(); i += block_rows) {
        const int64_t rows = std::min<int64_t>(block_rows, positions.size() - i);
        ahead.ask();
        const T* addend = addend_ ? addend_.at(positions.begin + i) + lanes.begin : nullptr;
        for (int64_t r = 0; d_.prefetches_outputs && r < rows; ++r) {
          if (!streams_) __builtin_prefetch(rows_[i + r] + lanes.begin + valid - 1, 1);
          if (addend_) __builtin_prefetch(addend + r * addend_.pitch + valid - 1);
        }
        multiply(lanes.size() / Vec::lanes, panels_ + i * s_.in, weights,
                 {rows_ + i, addend, addend_.pitch, rows, lanes.begin, valid, bias, slope_, streams_});
      }
    }
  }

 private:
  PositionWalk<const T, T> walk(Range positions) const { return {s_, x_, y_, positions.begin}; }
  /// Fills the panels of a tile and lists its output rows.
  void copy(Range positions) {
    PositionWalk<const T, T> at = walk(positions);
    for (int64_t i = 0; i < positions.size(); i += block_rows) {
      std::array<const T*, block_rows> from{};
      for (int64_t r = 0; r < std::min<int64_t>(block_rows, positions.size() - i); ++r)
        at.next(&from[size_t(r)], &rows_[i + r]);
      copy_panel(from, s_.in, panels_ + i * s_.in);
    }
  }
  template <int most = block_vectors>
  void multiply(int64_t vectors, const float* panel, const float* weights, const PointwiseTarget<T>& to) const {
    if (vectors == most) switch (epilogue_) {
        case Epilogue::none:
          return multiply_panel<T, most, Epilogue::none>(panel, weights, s_.in, to);
        case Epilogue::activation:
          return multiply_panel<T, most, Epilogue::activation>(panel, weights, s_.in, to);
        case Epilogue::addition:
          return multiply_panel<T, most, Epilogue::addition>(panel, weights, s_.in, to);
      }
    if constexpr (most > 1) multiply<most - 1>(vectors, panel, weights, to);
  }

  const PointwisePlan& d_;
  const DirectShape& s_;
  const T* x_;
  T* y_;
  const float* weights_;
  Addend<T> addend_;
  const float* bias_;
  Epilogue epilogue_;
  Vec slope_;
  bool streams_;
  float* panels_;
  T** rows_;
};

class PreparedPointwise final : public Prepared {
 public:
  explicit PreparedPointwise(const Problem& p) : problem_(p), plan_(p) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override {
    return std::to_string(plan_.tiles) + " tiles of " + std::to_string(plan_.panels * block_rows) + " positions, " +
           std::to_string(plan_.parts) + " parts";
  }
  std::vector<PackRequest> packed_weights() const override {
    return {direct_pack_request<F32Engine>(problem_, plan_.direct)};
  }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype,
               [&](auto zero) { run_units<PointwiseUnit<decltype(zero)>, F32Engine::Scope>(problem_, plan_, args); });
  }

 private:
  Problem problem_;
  PointwisePlan plan_;
};

Support supports_pointwise(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (!p.in[1].dense()) return Support::no("needs dense weights, found " + p.in[1].str());
  if (const Support sum = supports_addend(p); !sum.ok) return sum;
  if (const Support support = needs_pointwise(p); !support.ok) return support;
  const bool back = p.op.kind == OpKind::conv_backward_data || adds_to_value(p);
  if (back && p.op.as<ConvAttrs>().stride != Int3{1, 1, 1}) return Support::no("takes a stride in forward passes only");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare_pointwise(const Problem& p) {
  return std::make_unique<PreparedPointwise>(p);
}
