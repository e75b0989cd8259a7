// Direct convolution in bf16 on matrix tiles of 16 rows by 64 bytes: forward, forward with LeakyReLU and max-pool at
// the end, backward_data, also from the gradient behind a pool. Shares plan, patch and packing with direct.inl; `Tiles`
// is the hardware's register file or the emulated one. Included after pair_words.inl.
//
// Loops: a unit (a band of rows, a tile of columns, up to 256 output channels) copies its input rows into a patch, as
// in direct.inl; rows behind a pool are un-pooled while they are copied. Its positions are cut into row tiles of 16
// along the rows; two row tiles, of one row or of two, and two columns of 16 output channels make a block of 2 x 2
// tiles of sums, so four tile loads (32 cycles from the first cache) feed four products (64 cycles). Weights come as
// whole tiles, 1 KiB for 32 input and 16 output channels, and stream past the first cache (TILELOADDT1) from the
// second: 32 bytes a cycle of the 45 that it was measured to supply to tile loads. Values stay in the first cache:
// column taps read the same lines, and panels whose weights fit the second-level cache together follow each other on
// one block of positions. Where all parts of the output channels (256 each, fewer for many threads) have more weights
// than that cache holds, and one part's fit, units pass all positions for one part before they turn to the next. What a
// data gradient is added to (addend.h) joins the finished sums. Where only one of two row tiles meets a tap, the other
// reads a row of zeros. 1x1 convolutions over whole words read their input where it is, but for slices and rows whole
// pages apart.
// Limit: the tile product rate; 16-channel inputs and odd rests of 32 waste the remainder of a step.

constexpr int64_t tile_rows = 16, tile_step = 16;  // rows of a tile; words of a step: 32 bf16
constexpr int64_t panel_width = 32;                // output channels of a panel: two tiles of columns
constexpr int64_t tile_words = tile_rows * 16;
constexpr int64_t page_halves = 2048;       // values of 4 KiB
constexpr int64_t awake_steps = 12;         // see KeepAwake
constexpr int64_t near_panels = 512 << 10;  // bytes of panels that follow each other on a block of positions

constexpr DirectPlan::Layout tile_layout{.word_channels = 2,
                                         .run_multiple = tile_step,
                                         .spare_rows = tile_rows,
                                         .block = 16,
                                         .grain = tile_rows,
                                         .weight_bytes = 256 << 10,
                                         .patch_bytes = 512 << 10,
                                         .least_chunk = 128,
                                         .part_bytes = 1280 << 10,
                                         .copying = 64};

/// 16 positions along a row of the unit, or fewer at its end.
struct RowTile {
  int64_t row, position, count;
};

/// A run of products for both row tiles of a block.
struct TileSegment {
  const uint32_t *upper, *lower, *panel;
  int64_t steps;
};

inline int64_t steps_of(std::span<const TileSegment> segments) {
  int64_t steps = 0;
  for (const TileSegment& segment : segments) steps += segment.steps;
  return steps;
}

/// The rows of bytes that two row tiles are written to, or added to; none: no rows.
struct BlockRows {
  const std::byte *upper = nullptr, *lower = nullptr;
  int64_t step = 0, bytes = 0, rows = 0;
};
struct BlockMemory {
  BlockRows output, addend;
};

/// Asks for the cache lines of an output and of what it is added to, some rows at every step of products: stores would
/// wait for memory one after the other, and the next tile stores behind them; all rows at once would keep tile loads
/// waiting.
struct AskAhead {
  BlockMemory memory;
  int64_t rows, rows_per_step;
  int64_t row = 0;
  template <int writes>
  [[gnu::always_inline]] void ask(const BlockRows& block) const {
    if (block.rows == 0) return;
    for (int64_t r = row; r < row + rows_per_step; ++r)
      for (const std::byte* tile : {block.upper, block.lower}) {
        const std::byte* at = tile + r * block.step;
        __builtin_prefetch(at, writes), __builtin_prefetch(at + block.bytes - 1, writes);
      }
  }
  [[gnu::always_inline]] void step() {
    if (row >= rows) return;
    ask<1>(memory.output), ask<0>(memory.addend);
    row += rows_per_step;
  }
};

/// Stores a tile to nowhere every 12 steps. A tile store that comes 2048 cycles of products or more behind the last one
/// was measured to take 1000 cycles longer on a Xeon: half of the time of a block.
template <class Tiles>
struct KeepAwake {
  float* nowhere;  // 1 KiB
  int64_t steps = 0;
  [[gnu::always_inline]] void step() {
    if (++steps % awake_steps == 0) Tiles::template store<4>(nowhere, 64);
  }
};

/// Sums of up to 2 x 2 tiles in registers 0 to 3: [row tile * 2 + column]. The second tile of columns stands
/// `columns_apart` words behind the first. Whole tiles of rows stream past the first cache, tiles of columns with rows
/// of other forms.
template <class Tiles, bool two_rows, bool two_columns, bool whole_rows = false>
inline void multiply_tiles(std::span<const TileSegment> segments, int64_t row_bytes, int64_t panel_offset,
                           int64_t columns_apart, float* nowhere, const BlockMemory& memory = {}) {
  __asm__ volatile("" ::: "memory");
  const int64_t asked = std::max(memory.output.rows, memory.addend.rows);
  AskAhead ask{memory, asked, asked ? ceil_div(asked, std::max<int64_t>(1, steps_of(segments))) : 0};
  KeepAwake<Tiles> awake{nowhere};
  const auto rows = [row_bytes]<int tile>(std::integral_constant<int, tile>, const uint32_t* from) {
    if constexpr (whole_rows)
      Tiles::template stream<tile>(from, 64);
    else
      Tiles::template load<tile>(from, row_bytes);
  };
  const auto columns = []<int tile>(std::integral_constant<int, tile>, const uint32_t* from) {
    if constexpr (whole_rows)
      Tiles::template load<tile>(from, 64);
    else
      Tiles::template stream<tile>(from, 64);
  };
  constexpr int64_t step = whole_rows ? tile_words : tile_step;
  for (const TileSegment& segment : segments) {
    const uint32_t *upper = segment.upper, *lower = segment.lower, *panel = segment.panel + panel_offset;
    for (int64_t i = 0; i < segment.steps; ++i, upper += step, lower += step, panel += tile_words) {
      rows(std::integral_constant<int, 4>{}, upper);
      awake.step();
      ask.step();
      columns(std::integral_constant<int, 6>{}, panel);
      Tiles::template multiply_add<0, 4, 6>();
      if constexpr (two_rows) {
        rows(std::integral_constant<int, 5>{}, lower);
        Tiles::template multiply_add<2, 5, 6>();
      }
      if constexpr (two_columns) {
        columns(std::integral_constant<int, 7>{}, panel + columns_apart);
        Tiles::template multiply_add<1, 4, 7>();
        if constexpr (two_rows) Tiles::template multiply_add<3, 5, 7>();
      }
    }
  }
}

/// What a thread does for one unit after the other.
template <class T, class Tiles>
class TileUnit {
 public:
  TileUnit(const Problem& p, const DirectPlan& d, const KernelArgs& args, std::byte* memory)
      : p_(p),
        d_(d),
        s_(d.shape),
        args_(args),
        m_(d, memory),
        addend_(p, args),
        segments_(reinterpret_cast<TileSegment*>(m_.segments)),
        bias_(bias_of(p, args)) {
    // What a block reads past its runs meets zero weights, and must not be NaN; the last row is the one of zeros.
    std::memset(m_.patch, 0, static_cast<size_t>(d.patch_bytes()));
    streams_ = !s_.pooled() && streams_lines(s_.y, args.out[0], s_.out);
    slope_ = Vec::all(s_.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f);
  }
  bool streams() const { return streams_; }

  void run(int64_t index, int64_t /*next*/) {
    const DirectPlan::Unit unit = d_.unit(index);
    rows_ = unit.rows, group_ = unit.group;
    first_ = unit.first, last_ = unit.last, k_first_ = unit.k_first, k_last_ = unit.k_last;
    std::fill(m_.bias, m_.bias + d_.part_channels, 0.0f);
    if (bias_) std::copy(bias_ + group_ * s_.out + k_first_, bias_ + group_ * s_.out + k_last_, m_.bias);
    const int64_t sources = RowSet::collect(s_, rows_.begin, rows_.size(), m_.slots, m_.sources);
    for (chunk_ = 0; chunk_ < d_.chunks; ++chunk_) {
      c_first_ = chunk_ * d_.chunk, channels_ = std::min(d_.chunk, s_.in - c_first_), words_ = d_.words_of(channels_);
      in_place_ = reads_in_place();
      pitch_ = in_place_ ? s_.x.stride[3] / 2 : d_.column_words(words_);
      for (int64_t i = 0; i < sources && !in_place_; ++i)
        copy(m_.sources[i], s_.phases[0].advance * first_ + s_.column_low, s_.columns(last_ - first_),
             m_.patch + i * d_.row_words);
      multiply();
    }
    if (s_.pooled() && !pools_at_once()) pool(rows_, k_first_, k_last_);
  }

 private:
  /// 1x1 over whole words and whole row tiles. What the rest of a step reads past its words belongs to the tensor too:
  /// slices of wider ones, whose other channels may hold anything, are copied, and so are rows whole pages apart, which
  /// share few cache sets.
  bool reads_in_place() const {
    const bool whole = channels_ % 2 == 0 && s_.x.stride[3] % 2 == 0 && (last_ - first_) % tile_rows == 0;
    const bool inside = words_ % tile_step == 0 ||
                        (s_.x.stride[3] == s_.x.shape.c() && (s_.positions - last_) * s_.x.stride[3] >= 2 * tile_step);
    return d_.product() && whole && inside && s_.x.stride[3] % page_halves != 0;
  }

  void copy(int64_t source, int64_t column, int64_t columns, uint32_t* to) const {
    if (s_.unpools)
      return copy_unpooled<T>(p_, args_, 0, s_.x.shape, source, column, columns, group_ * s_.in + c_first_, channels_,
                              reinterpret_cast<T*>(to));
    if (pitch_ != words_) {
      for (int64_t c = 0; c < columns; ++c) {
        const T* from = args_.in[0].data<T>() + group_ * s_.in + c_first_ + (column + c) * s_.x.stride[3];
        prefetch(from + 4 * s_.x.stride[3], channels_ * int64_t{sizeof(T)});
        PairWords<T>::copy_column(from, channels_, to + c * pitch_);
        std::fill(to + c * pitch_ + words_, to + (c + 1) * pitch_, 0u);  // of an earlier chunk
      }
      return;
    }
    PairWords<T>::copy(s_.x, args_.in[0].data<T>() + DirectShape::row_offset(s_.x, source) + group_ * s_.in + c_first_,
                       column, columns, channels_, to);
  }

  bool pools_at_once() const { return s_.pooled() && d_.chunks == 1; }

  /// Pools the sums of rows (indices of the shape's order) and output channels [k, k_end).
  void pool(Range rows, int64_t k, int64_t k_end) const {
    pool_sums<T, Tiles>(p_, d_, args_, rows, first_, last_, group_ * s_.out + k, group_ * s_.out + k_end,
                        m_.sums + k - k_first_);
  }

  /// Where the sums of a row tile are kept: one group of rows after the other in the same place where they are pooled
  /// at once.
  float* sums(size_t phase, const RowTile& tile, int64_t k) const {
    const int64_t row =
        pools_at_once() ? tile.row % s_.row_group() : tile.row * int64_t(s_.phases.size()) + int64_t(phase);
    return m_.sums + (row * d_.tile_positions + tile.position) * d_.sums_pitch() + k - k_first_;
  }

  /// All blocks of the unit and chunk: panels that stay in cache together, then pairs of row tiles.
  void multiply() {
    column_words_ = s_.row_taps() * d_.tap_words(words_) * d_.block;
    const int64_t near = std::max<int64_t>(1, near_panels / std::max<int64_t>(1, 2 * column_words_ * 4)) *
                         panel_width;  // no words: padding alone
    for (int64_t k = k_first_; k < k_last_; k += near) {
      const uint32_t* panels =
          reinterpret_cast<const uint32_t*>(args_.packed[0]) + d_.block_words(group_, k, d_.block, chunk_);
      for (size_t q = 0, at = 0; q < s_.phases.size(); ++q) {
        const ColumnPhase& phase = s_.phases[q];
        const int64_t count = std::min(last_, phase.count) - first_,
                      per_row = ceil_div(std::max<int64_t>(0, count), tile_rows);
        const auto row_tile = [&](int64_t i) {
          const int64_t position = i % per_row * tile_rows;
          return RowTile{i / per_row, position, std::min(tile_rows, count - position)};
        };
        // Before a pool the rows of a window come together: their sums are still in the first cache when they are
        // pooled.
        const int64_t rows = pools_at_once() ? s_.row_group() : rows_.size();
        for (int64_t r = 0; r < rows_.size(); r += rows) {
          for (int64_t i = r * per_row; i < (r + rows) * per_row; i += 2) {
            const bool both = i + 1 < (r + rows) * per_row;
            const RowTile upper = row_tile(i), lower = both ? row_tile(i + 1) : RowTile{0, 0, 0};
            const std::span<const TileSegment> segments =
                collect(phase, panels + static_cast<int64_t>(at) * d_.block, upper, lower);
            for (int64_t c = k; c < std::min(k + near, k_last_); c += panel_width)
              block(q, segments, upper, lower, c, (c - k) * d_.channel_words());
          }
          if (pools_at_once()) pool({rows_.begin + r, rows_.begin + r + rows}, k, std::min(k + near, k_last_));
        }
        at += static_cast<size_t>(d_.phase_words(phase, words_));
      }
    }
  }

  /// Runs of the taps that meet the image in either row tile.
  std::span<const TileSegment> collect(const ColumnPhase& phase, const uint32_t* panel, const RowTile& upper,
                                       const RowTile& lower) {
    const auto taps = static_cast<int64_t>(phase.taps.size());
    const int64_t tap_words = d_.tap_words(words_) * d_.block, run = d_.padded_run(words_);
    int64_t found = 0;
    for (int64_t t = 0; t < s_.row_taps() && taps > 0; ++t, panel += tap_words)
      for (int64_t q = 0; q < (phase.contiguous ? 1 : taps); ++q) {
        const ColumnTap& tap = phase.taps[static_cast<size_t>(q)];
        const Range inside = phase.contiguous ? Range{0, phase.count} : s_.inside(phase, tap);
        const uint32_t *above = values(phase, tap, inside, t, upper),
                       *below = lower.count ? values(phase, tap, inside, t, lower) : nullptr;
        if (!above && !below) continue;
        const uint32_t* zeros = m_.patch + d_.zero_row();
        segments_[found++] = {above ? above : zeros, below ? below : zeros, panel + q * run * d_.block,
                              (phase.contiguous ? d_.padded_run(taps * words_) : run) / tile_step};
      }
    return {segments_, static_cast<size_t>(found)};
  }

  /// What a row tile reads through a tap; null where that is padding alone.
  const uint32_t* values(const ColumnPhase& phase, const ColumnTap& tap, Range inside, int64_t t,
                         const RowTile& tile) const {
    const int64_t position = first_ + tile.position, slot = m_.slots[tile.row * s_.row_taps() + t];
    if (slot < 0 || inside.begin >= position + tile.count || inside.end <= position) return nullptr;
    if (in_place_)
      return reinterpret_cast<const uint32_t*>(args_.in[0].data<T>() + group_ * s_.in + c_first_ +
                                               position * s_.x.stride[3]);
    return m_.patch + slot * d_.row_words + (tile.position * phase.advance + tap.column - s_.column_low) * pitch_;
  }

  /// Sums of a pair of row tiles for output channels [k, k + 32).
  void block(size_t phase, std::span<const TileSegment> segments, const RowTile& upper, const RowTile& lower, int64_t k,
             int64_t panel_offset) {
    const bool two_rows = lower.count > 0, two_columns = s_.out - k > 16;
    const float *bias = m_.bias + k - k_first_, *above = chunk_ ? sums(phase, upper, k) : bias,
                *below = chunk_ && two_rows ? sums(phase, lower, k) : bias;
    const int64_t init_bytes = chunk_ ? d_.sums_pitch() * 4 : 0;  // 0 repeats the bias in every row
    __asm__ volatile("" ::: "memory");  // the compiler does not know that tile loads read memory
    Tiles::template load<0>(above, init_bytes);
    if (two_columns) Tiles::template load<1>(above + 16, init_bytes);
    if (two_rows) Tiles::template load<2>(below, init_bytes);
    if (two_rows && two_columns) Tiles::template load<3>(below + 16, init_bytes);
    const int64_t row_bytes = s_.phases[phase].advance * pitch_ * 4, columns_apart = 16 * d_.channel_words();
    float* nowhere = m_.rounded + tile_rows * panel_width;
    BlockMemory memory;
    if (chunk_ + 1 == d_.chunks && !s_.pooled()) {
      const RowTile& second = two_rows ? lower : upper;
      if (!streams_) memory.output = written(phase, upper, second, k);
      if (addend_) memory.addend = added(phase, upper, second, k);
    }
    if (two_rows) {
      if (two_columns)
        multiply_tiles<Tiles, true, true>(segments, row_bytes, panel_offset, columns_apart, nowhere, memory);
      else
        multiply_tiles<Tiles, true, false>(segments, row_bytes, panel_offset, columns_apart, nowhere, memory);
    } else {
      if (two_columns)
        multiply_tiles<Tiles, false, true>(segments, row_bytes, panel_offset, columns_apart, nowhere, memory);
      else
        multiply_tiles<Tiles, false, false>(segments, row_bytes, panel_offset, columns_apart, nowhere, memory);
    }
    if (chunk_ + 1 < d_.chunks || s_.pooled()) {
      keep<0>(upper, sums(phase, upper, k), two_columns);
      if (two_rows) keep<2>(lower, sums(phase, lower, k), two_columns);
    } else {
      write<0>(phase, upper, k, two_columns);
      if (two_rows) write<2>(phase, lower, k, two_columns);
    }
  }

  /// Sums that a later chunk or the pool reads.
  template <int tile>
  void keep(const RowTile& rows, float* to, bool two_columns) {
    if (rows.count == tile_rows) {
      Tiles::template store<tile>(to, d_.sums_pitch() * 4);
      if (two_columns) Tiles::template store<tile + 1>(to + 16, d_.sums_pitch() * 4);
      return;
    }
    spill<tile>(two_columns);
    for (int64_t i = 0; i < rows.count; ++i)
      std::memcpy(to + i * d_.sums_pitch(), m_.rounded + i * panel_width, two_columns ? 128 : 64);
  }

  template <int tile>
  void spill(bool two_columns) {
    Tiles::template store<tile>(m_.rounded, panel_width * 4);
    if (two_columns) Tiles::template store<tile + 1>(m_.rounded + 16, panel_width * 4);
    __asm__ volatile("" ::: "memory");
  }

  /// The output column of the first position of a row tile.
  int64_t column(const ColumnPhase& phase, const RowTile& rows) const {
    return phase.start + (first_ + rows.position) * phase.step;
  }
  /// Where the first position of a row tile has its output channel k.
  T* output(const ColumnPhase& phase, const RowTile& rows, int64_t k) const {
    return args_.out[0].data<T>() + DirectShape::row_offset(s_.y, rows_.begin + rows.row) + group_ * s_.out + k +
           column(phase, rows) * s_.y.stride[3];
  }

  /// The addend of that.
  const T* addend(const ColumnPhase& phase, const RowTile& rows, int64_t k) const {
    return addend_.at((rows_.begin + rows.row) * s_.y.shape.w() + column(phase, rows)) + group_ * s_.out + k;
  }

  /// The rows of bytes that two row tiles write, or add to.
  BlockRows written(size_t phase, const RowTile& upper, const RowTile& lower, int64_t k) const {
    const ColumnPhase& at = s_.phases[phase];
    return block_rows_of(at, output(at, upper, k), output(at, lower, k), s_.y.stride[3], k,
                         std::max(upper.count, lower.count));
  }
  BlockRows added(size_t phase, const RowTile& upper, const RowTile& lower, int64_t k) const {
    const ColumnPhase& at = s_.phases[phase];
    return block_rows_of(at, addend(at, upper, k), addend(at, lower, k), addend_.pitch, k,
                         std::max(upper.count, lower.count));
  }
  BlockRows block_rows_of(const ColumnPhase& phase, const T* upper, const T* lower, int64_t pitch, int64_t k,
                          int64_t rows) const {
    return {reinterpret_cast<const std::byte*>(upper), reinterpret_cast<const std::byte*>(lower),
            phase.step * pitch * int64_t{sizeof(T)}, std::min(panel_width, s_.out - k) * int64_t{sizeof(T)}, rows};
  }

  /// Finished sums, rounded into the output.
  template <int tile>
  void write(size_t phase, const RowTile& rows, int64_t k, bool two_columns) {
    spill<tile>(two_columns);
    const ColumnPhase& at = s_.phases[phase];
    const int64_t valid = std::min(panel_width, s_.out - k), step = at.step * s_.y.stride[3];
    T* to = output(at, rows, k);
    float* from = m_.rounded;
    if (addend_) {
      const T* value = addend(at, rows, k);
      for (int64_t i = 0; i < rows.count; ++i, value += at.step * addend_.pitch)
        for_vectors(0, valid, [&](int64_t c, auto n) {
          float* sum = from + i * panel_width + c;
          put(sum, get(sum, n) + get(value + c, n), n);
        });
    }
    for (int64_t i = 0; i < rows.count; ++i, to += step, from += panel_width) {
      if (valid == panel_width && !s_.activates) {
        Tiles::store_line(to, load(from), load(from + 16), streams_);
        continue;
      }
      for_vectors(0, valid, [&](int64_t c, auto n) {
        const Vec sum = load(from + c);
        put_output(to + c, s_.activates ? leaky<T>(sum, slope_) : sum, n, streams_);
      });
    }
  }

  const Problem& p_;
  const DirectPlan& d_;
  const DirectShape& s_;
  const KernelArgs& args_;
  const DirectScratch<uint32_t> m_;
  const Addend<T> addend_;
  TileSegment* segments_;
  const float* bias_;
  Vec slope_;
  bool streams_ = false, in_place_ = false;
  Range rows_{};
  int64_t group_ = 0, first_ = 0, last_ = 0, k_first_ = 0, k_last_ = 0, chunk_ = 0, c_first_ = 0, channels_ = 0,
          words_ = 0, pitch_ = 0, column_words_ = 0;
};
static_assert(sizeof(TileSegment) <= sizeof(Segment<uint32_t>));  // they share the scratch of segments

template <class Tiles>
class PreparedTiles final : public Prepared {
 public:
  explicit PreparedTiles(const Problem& p) : problem_(p), plan_(without_addend(p), tile_layout) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override { return plan_.detail(); }
  std::vector<PackRequest> packed_weights() const override {
    return {direct_pack_request<PairWords<bf16>>(problem_, plan_)};
  }
  void run(const KernelArgs& args) const override {
    run_units<TileUnit<bf16, Tiles>, typename Tiles::Scope>(problem_, plan_, args);
  }

 private:
  Problem problem_;
  DirectPlan plan_;
};

template <class Tiles>
std::unique_ptr<Prepared> prepare_tiles(const Problem& p) {
  return std::make_unique<PreparedTiles<Tiles>>(p);
}

inline Support supports_tiles(const Problem& p) {
  if (p.in[0].dtype != DType::bf16) return Support::no("handles bf16, found " + p.in[0].str());
  if (p.op.kind == OpKind::conv_backward_weights) return supports_direct_weights(p);
  if (p.op.kind != OpKind::conv_pool_backward_weights) return supports_direct(p);
  if (!p.out[0].dense()) return Support::no("needs dense weights, found " + p.out[0].str());
  return supports_window(p.op.as<ConvPoolAttrs>());
}
