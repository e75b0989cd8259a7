// Weight and bias gradients in bf16 on matrix tiles, also from the gradient behind a pool. Tasks, parts, turned input
// and the final turn are those of pair_weights.inl and direct_weights.inl; included after both and after
// tile_direct.inl.
//
// A tile of sums holds 16 rows (a row: a tap and an input channel) by 16 output channels; its products run along the
// positions of all rows of a band. Two tiles of rows, of one tap or of two, and two of columns make a block of 2 x 2.
// Both come as whole tiles of 1 KiB, 16 rows by 32 positions and 32 positions by 16 channels: the input turned, with a
// shifted copy for every column tap, since rows of a tile that cross lines were measured to take 1.3 to 3 times as
// long. The 24 KiB of 32 gradients stay in the first cache while the input streams past it. A band has about 384
// positions: fewer, and sums would pass between cache and tiles more often than products are done (8 KiB beside 768
// cycles).
// Limit: the tile product rate; rows of positions are filled up to 32, channels to 16.
//
// Refuses strided weight gradients and depthwise convolutions; behind a pool see supports_window.

constexpr int64_t tile_band = 384;  // positions of a band
constexpr int64_t few_channels_band =
    1536;  // of fewer than 16 channels: less of a band is read for its neighbours alone
constexpr int64_t tile_pair_positions = 32;  // positions of a step
constexpr int64_t gradients_ahead = 32;      // positions
constexpr int64_t tile_halves = tile_rows * tile_pair_positions;

/// A 1x1 problem without padding and stride in rows of 384 positions or a little fewer, where its positions can be cut
/// so.
inline Problem in_even_rows(const Problem& p) {
  if (p.op.kind != OpKind::conv_backward_weights) return p;
  const auto& a = p.op.as<ConvAttrs>();
  const Int3 none{0, 0, 0}, ones{1, 1, 1};
  if (a.result_size != ones || a.stride != ones || a.pad_low != none || a.pad_high != none) return p;
  const int64_t total = p.in[0].shape.elements() / p.in[0].shape.c();
  int64_t length = tile_band;
  while (length >= 128 && total % length) length -= tile_pair_positions;
  if (length < 128) return p;
  Problem even = p;
  for (TensorDesc& t : even.in) {
    const int64_t step = t.pixel_pitch();
    if (step < 0) return p;
    t.shape = {1, 1, total / length, length, t.shape.c()};
    t.stride = {total * step, total * step, length * step, step};
  }
  return even;
}

/// Where the sums of output channel k of a block stand: two lines of channels are woven into words of two positions by
/// one instruction per tile, which takes runs of four channels in turn. A panel of at most one tile keeps its order.
inline int64_t woven_column(int64_t k, int64_t valid) {
  const int64_t panel = k / panel_width * panel_width, at = k - panel;
  return valid - panel <= 16 ? k : panel + at % 8 / 4 * 16 + at / 8 * 4 + at % 4;
}

struct TileWeightsPlan : WeightsPlan {
  explicit TileWeightsPlan(const Problem& p)
      : WeightsPlan(in_even_rows(p), {.positions = p.in[0].shape.c() < tile_rows ? few_channels_band : tile_band,
                                      .value_bytes = 2,
                                      .sums_bytes = 300 << 10,
                                      .patch_bytes = 320 << 10,
                                      .parts_bytes = product_parts_bytes,
                                      .product_width = 12,
                                      .product_positions = tile_band,
                                      .step = tile_pair_positions}) {
    steps = ceil_div(tile_positions, tile_pair_positions);
  }
  int64_t steps;  ///< of a row of positions
  int64_t column(int64_t k, int64_t valid) const { return woven_column(k, valid); }
  int64_t tap_rows() const { return taps * chunk; }
  /// Tiles of 16 rows of an input row, all steps of them.
  int64_t row_halves() const { return steps * tile_halves; }
  int64_t slot_halves() const { return ceil_div(tap_rows(), tile_rows) * row_halves(); }
  /// Behind the input rows: 16 rows of zeros.
  int64_t zero_slot() const { return patch_rows * slot_halves(); }
  int64_t patch_bytes() const { return round_up((zero_slot() + row_halves()) * 2, 64); }
  int64_t column_words() const { return band_rows * steps * tile_words; }
  int64_t gradient_bytes() const { return round_up(block_width / 16 * column_words() * 4, 64); }
  int64_t unpooled_bytes() const { return shape.unpools ? round_up(tile_positions * block_width * 2, 64) : 0; }
  /// A turned row of all columns, from which those of several taps are copied.
  bool copies_taps() const { return taps > 1; }
  /// Columns of a residue of the stride, or positions.
  int64_t wide_pitch() const {
    return copies_taps() ? ceil_div(shape.columns(tile_positions), shape.phases[0].advance) : tile_positions;
  }
  int64_t wide_bytes() const { return round_up(chunk * shape.phases[0].advance * wide_pitch() * 2, 64); }
  /// Which input row stands where in the patch, and room for the next band's.
  int64_t place_bytes() const { return round_up(patch_rows * (2 * int64_t{sizeof(int64_t)} + 1), 64); }
  int64_t segment_bytes() const { return round_up(band_rows * int64_t(sizeof(TileSegment)), 64); }
  int64_t thread_bytes() const {
    return patch_bytes() + gradient_bytes() + table_bytes() + unpooled_bytes() + wide_bytes() + segment_bytes() +
           tile_rows * panel_width * 4 + place_bytes();
  }
};

/// 16 rows of sums, or fewer at the end: rows [first, first + count) of (column tap, channel) for a row tap.
struct SumTile {
  int64_t row_tap, first, count;
};

template <class T, class Tiles>
class TileWeightsTask {
 public:
  TileWeightsTask(const Problem& p, const TileWeightsPlan& d, const KernelArgs& args, int64_t task, std::byte* memory)
      : p_(p), d_(d), s_(d.shape), args_(args), at_(d.task(task)), input_(d.channels(at_.chunk)) {
    const WeightsScratch<uint32_t> scratch(d, memory);
    patch_ = reinterpret_cast<T*>(scratch.patch), gradient_ = scratch.gradient, slots_ = scratch.slots,
    sources_ = scratch.sources;
    std::byte* rest = memory + d.patch_bytes() + d.gradient_bytes() + d.table_bytes();
    unpooled_ = reinterpret_cast<T*>(rest);
    wide_ = reinterpret_cast<T*>(rest += d.unpooled_bytes());
    segments_ = reinterpret_cast<TileSegment*>(rest += d.wide_bytes());
    spilled_ = reinterpret_cast<float*>(rest += d.segment_bytes());
    held_rows_ = reinterpret_cast<int64_t*>(rest += tile_rows * panel_width * 4);
    places_ = held_rows_ + d.patch_rows;
    taken_ = reinterpret_cast<bool*>(places_ + d.patch_rows);
    channels_ = input_.size(), tap_rows_ = d.taps * channels_;
  }

  void run() {
    std::memset(static_cast<void*>(patch_ + d_.zero_slot()), 0, static_cast<size_t>(d_.row_halves()) * sizeof(T));
    const int64_t per_part = d_.bands / d_.parts;
    for (first_ = 0; first_ < s_.phases[0].count; first_ += d_.tile_positions) {
      last_ = std::min(first_ + d_.tile_positions, s_.phases[0].count);
      held_ = 0;
      for (int64_t b = at_.part * per_part; b < (at_.part + 1) * per_part; ++b) {
        rows_ = RowSet::band(s_, b, d_.bands);
        turn_rows(RowSet::collect(s_, rows_.begin, rows_.size(), slots_, sources_));
        fresh_ = first_ == 0 && b == at_.part * per_part;
        for (int64_t block = at_.first_block; block < at_.last_block; ++block) add_block(block);
      }
    }
  }

 private:
  /// Turns the `count` input rows of a band, but for those that the band before has left in the patch.
  void turn_rows(int64_t count) {
    int64_t* places = places_;  // of the rows in the patch; until then -1
    std::fill(places, places + count, int64_t{-1});
    std::fill(taken_, taken_ + d_.patch_rows, false);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t place = 0; place < held_; ++place)
        if (held_rows_[place] == sources_[i]) places[i] = place, taken_[place] = true;
    for (int64_t i = 0, next = 0; i < count; ++i) {
      if (places[i] >= 0) continue;
      while (taken_[next]) ++next;
      places[i] = next, taken_[next] = true, held_rows_[next] = sources_[i];
      turn_row(sources_[i], patch_ + next * d_.slot_halves());
      held_ = std::max(held_, next + 1);
    }
    for (int64_t i = 0; i < rows_.size() * s_.row_taps(); ++i)
      if (slots_[i] >= 0) slots_[i] = static_cast<int32_t>(places[slots_[i]]);
  }

  /// An input row as tiles of 16 rows (column tap, channel) by 32 positions; zero outside the image, and past the last
  /// position: there it meets zero gradients, and must not be NaN.
  void turn_row(int64_t source, T* slot) const {
    const ColumnPhase& phase = s_.phases[0];
    const T* row = args_.in[0].data<T>() + DirectShape::row_offset(s_.x, source) + at_.group * s_.in + input_.begin;
    const int64_t step = phase.advance * s_.x.stride[3], count = last_ - first_, pitch = d_.wide_pitch();
    const bool four = channels_ == 4 && step == 4;
    if (d_.copies_taps() && !four) {  // copying is faster than turning
      turn_columns(s_.x, row, first_ * phase.advance + s_.column_low, s_.columns(count), channels_, phase.advance,
                   pitch, wide_);
      for (size_t q = 0; q < phase.taps.size(); ++q) {
        const int64_t offset = phase.taps[q].column - s_.column_low;
        copy_tap(wide_ + offset % phase.advance * pitch + offset / phase.advance, phase.advance * pitch,
                 static_cast<int64_t>(q), slot);
      }
      return;
    }
    for (size_t q = 0; q < phase.taps.size(); ++q) {
      const Range inside = s_.inside(phase, phase.taps[q]);
      const int64_t low = std::clamp(inside.begin - first_, int64_t{0}, count),
                    high = std::clamp(inside.end - first_, low, count);
      const T* from = row + ((first_ + low) * phase.advance + phase.taps[q].column) * s_.x.stride[3];
      if (d_.taps == 1 && channels_ >= tile_rows && high - low == count && count % tile_pair_positions == 0)
        return turn_tiles(from, step, slot);
      if (four)
        turn_four(from, high - low, wide_ + low, pitch);
      else
        turn_positions(from, step, high - low, channels_, wide_ + low, pitch);
      clear_columns(0, low);
      clear_columns(high, count);
      copy_tap(wide_, pitch, static_cast<int64_t>(q), slot);
    }
  }

  /// Columns [begin, end) of all channels of the turned row; mostly one or none.
  void clear_columns(int64_t begin, int64_t end) const {
    if (begin == end) return;
    T* row = wide_;
    for (int64_t c = 0; c < channels_; ++c, row += d_.wide_pitch()) std::fill(row + begin, row + end, T{});
  }

  /// The rows of a column tap, from a turned row of its positions.
  void copy_tap(const T* from, int64_t pitch, int64_t tap, T* slot) const {
    const int64_t count = last_ - first_;
    for (int64_t c = 0; c < channels_; ++c, from += pitch) {
      T* to = slot + tile_offset(tap * channels_ + c);
      for (int64_t i = 0; i < count; i += tile_pair_positions, to += tile_halves)
        Tiles::copy_line(from + i, std::min(count - i, tile_pair_positions), to);
    }
  }

  /// Row (column tap, channel) of the first step in its tile.
  int64_t tile_offset(int64_t row) const {
    return row / tile_rows * d_.row_halves() + row % tile_rows * tile_pair_positions;
  }

  /// Whole tiles at once; the last one overlaps the one before.
  void turn_tiles(const T* from, int64_t step, T* slot) const {
    for (int64_t i = 0; i < last_ - first_;
         i += tile_pair_positions, from += tile_pair_positions * step, slot += tile_halves)
      for (int64_t c = 0; c < channels_; c += tile_rows) {
        if (c % 32 == 0)  // the next positions of a cache line's channels
          for (int64_t j = tile_pair_positions; j < 2 * tile_pair_positions; ++j)
            __builtin_prefetch(from + j * step + c);
        if (c + tile_rows <= channels_) {
          turn_block(from + c, step, slot + tile_offset(c), tile_pair_positions);
          continue;
        }
        alignas(64) T block[tile_halves];
        turn_block(from + channels_ - tile_rows, step, block, tile_pair_positions);
        for (int64_t row = c; row < channels_; ++row)
          std::memcpy(slot + tile_offset(row), block + (row - channels_ + tile_rows) * tile_pair_positions, 64);
      }
  }

  /// Four channels of consecutive positions.
  void turn_four(const T* from, int64_t count, T* to, int64_t pitch) const {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) Tiles::turn_four(from + i * 4, to + i, pitch);
    for (; i < count; ++i)
      for (int64_t c = 0; c < 4; ++c) to[c * pitch + i] = from[i * 4 + c];
  }

  /// Adds the band's products to the sums of a block of output channels.
  void add_block(int64_t block) {
    const int64_t k_first = block * block_width, valid = std::min(block_width, s_.out - k_first);
    float *sums = d_.sums(args_.workspace, at_.group, block, at_.chunk, at_.part),
          *bias = sums + d_.sum_floats() - block_width;
    if (fresh_) std::fill(bias, bias + block_width, 0.0f);
    if (at_.chunk != 0) bias = nullptr;
    for (int64_t r = 0; r < rows_.size(); ++r) copy_gradient_row(r, at_.group * s_.out + k_first, valid, bias);
    const int64_t per_tap = ceil_div(tap_rows_, tile_rows), tiles = s_.row_taps() * per_tap;
    const auto tile = [&](int64_t i) {
      const int64_t first = i % per_tap * tile_rows;
      return SumTile{i / per_tap, first, std::min(tile_rows, tap_rows_ - first)};
    };
    for (int64_t k = 0; k < valid; k += panel_width)
      for (int64_t i = 0; i < tiles; i += 2) {
        const SumTile upper = tile(i), lower = i + 1 < tiles ? tile(i + 1) : SumTile{0, 0, 0};
        if (const std::span<const TileSegment> segments = collect(upper, lower, k); !segments.empty() || fresh_)
          multiply(segments, upper, lower, sums + k, valid - k > 16);
      }
  }

  /// bias += both values of 16 words.
  static void add_words(const uint32_t* words, float* bias) {
    constexpr std::integral_constant<int64_t, 0> whole;
    put(bias, get(bias, whole) + (Tiles::first_halves(words) + Tiles::second_halves(words)), whole);
  }

  /// Row r of the band's gradients as [16 channels][step][pair of positions], zero past the end; adds them to the bias
  /// sums, whose channels stand like those of the sums.
  void copy_gradient_row(int64_t r, int64_t channel, int64_t valid, float* bias) const {
    const TensorDesc& desc = s_.y;
    const int64_t count = last_ - first_, padded = d_.steps * tile_pair_positions;
    const T* from = unpooled_;
    int64_t step = (valid + 1) / 2 * 2;
    if (s_.unpools)
      copy_unpooled<T>(p_, args_, 1, desc.shape, rows_.begin + r, first_, count, channel, valid, unpooled_);
    else
      from = args_.in[1].data<T>() + DirectShape::row_offset(desc, rows_.begin + r) + first_ * desc.stride[3] + channel,
      step = desc.stride[3];
    uint32_t* to = gradient_ + r * d_.steps * tile_words;
    for (int64_t j = 0; j < padded; j += 2, from += 2 * step, to += 16) {
      if (!s_.unpools)
        for (int64_t ahead = gradients_ahead; ahead < gradients_ahead + 2; ++ahead)
          prefetch(from + ahead * step, valid * int64_t{sizeof(T)});
      for (int64_t k = 0; k < valid; k += panel_width) {
        const int64_t n = valid - k;
        const T *first = j < count ? from + k : nullptr, *second = j + 1 < count ? from + step + k : nullptr;
        uint32_t* words = to + k / 16 * d_.column_words();
        if (n > 16) {
          Tiles::weave(first, second, std::min(n, panel_width), words, words + d_.column_words());
          if (bias) add_words(words + d_.column_words(), bias + k + 16);
        } else {
          store_words(words, first ? second ? pair_positions(first, second, n) : low_halves(first, n) : no_words());
        }
        if (bias) add_words(words, bias + k);
      }
    }
  }

  /// The rows of the band that either tile of rows meets.
  std::span<const TileSegment> collect(const SumTile& upper, const SumTile& lower, int64_t k) {
    size_t found = 0;
    for (int64_t r = 0; r < rows_.size(); ++r) {
      const T *above = values(upper, r), *below = lower.count ? values(lower, r) : nullptr;
      if (!above && !below) continue;
      const T* zeros = patch_ + d_.zero_slot();
      segments_[found++] = {reinterpret_cast<const uint32_t*>(above ? above : zeros),
                            reinterpret_cast<const uint32_t*>(below ? below : zeros),
                            gradient_ + k / 16 * d_.column_words() + r * d_.steps * tile_words,
                            ceil_div(last_ - first_, tile_pair_positions)};
    }
    return {segments_, found};
  }

  /// What row r of the band meets through the taps of a tile; null where that is padding alone.
  const T* values(const SumTile& tile, int64_t r) const {
    const int32_t slot = slots_[r * s_.row_taps() + tile.row_tap];
    if (slot < 0) return nullptr;
    const ColumnPhase& phase = s_.phases[0];
    bool meets = phase.contiguous;
    for (int64_t q = tile.first / channels_; q <= (tile.first + tile.count - 1) / channels_ && !meets; ++q) {
      const Range inside = s_.inside(phase, phase.taps[static_cast<size_t>(q)]);
      meets = inside.begin < last_ && inside.end > first_;
    }
    return meets ? patch_ + slot * d_.slot_halves() + tile.first / tile_rows * d_.row_halves() : nullptr;
  }

  float* sums_of(const SumTile& tile, float* sums) const {
    return sums + (tile.row_tap * tap_rows_ + tile.first) * block_width;
  }

  void multiply(std::span<const TileSegment> segments, const SumTile& upper, const SumTile& lower, float* sums,
                bool two_columns) {
    const bool two_rows = lower.count > 0;
    load<0>(upper, sums, two_columns);
    if (two_rows) load<2>(lower, sums, two_columns);
    const int64_t columns_apart = d_.column_words();
    if (two_rows) {
      if (two_columns)
        run_tiles<true, true>(segments, columns_apart);
      else
        run_tiles<true, false>(segments, columns_apart);
    } else {
      if (two_columns)
        run_tiles<false, true>(segments, columns_apart);
      else
        run_tiles<false, false>(segments, columns_apart);
    }
    store<0>(upper, sums, two_columns);
    if (two_rows) store<2>(lower, sums, two_columns);
  }

  template <bool two_rows, bool two_columns>
  void run_tiles(std::span<const TileSegment> segments, int64_t columns_apart) {
    multiply_tiles<Tiles, two_rows, two_columns, true>(segments, 64, 0, columns_apart, spilled_);
  }

  /// Whole tiles of sums are loaded and stored where they are, partial ones through `spilled_`; those of the first band
  /// are 0.
  template <int tile>
  void load(const SumTile& rows, float* sums, bool two_columns) {
    const float* from = sums_of(rows, sums);
    int64_t pitch = block_width;
    if (fresh_) {
      from = reinterpret_cast<const float*>(patch_ + d_.zero_slot()), pitch = 0;
    } else if (rows.count < tile_rows) {
      for (int64_t i = 0; i < rows.count; ++i)
        std::memcpy(spilled_ + i * panel_width, from + i * block_width, two_columns ? 128 : 64);
      from = spilled_, pitch = panel_width;
    }
    __asm__ volatile("" ::: "memory");  // the compiler does not know that tile loads read memory
    Tiles::template load<tile>(from, pitch * 4);
    if (two_columns) Tiles::template load<tile + 1>(from + 16, pitch * 4);
    __asm__ volatile("" ::: "memory");
  }
  template <int tile>
  void store(const SumTile& rows, float* sums, bool two_columns) {
    float* to = sums_of(rows, sums);
    const bool whole = rows.count == tile_rows;
    const int64_t pitch = whole ? block_width : panel_width;
    float* target = whole ? to : spilled_;
    Tiles::template store<tile>(target, pitch * 4);
    if (two_columns) Tiles::template store<tile + 1>(target + 16, pitch * 4);
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < rows.count && !whole; ++i)
      std::memcpy(to + i * block_width, spilled_ + i * panel_width, two_columns ? 128 : 64);
  }

  const Problem& p_;
  const TileWeightsPlan& d_;
  const DirectShape& s_;
  const KernelArgs& args_;
  const WeightsTask at_;
  const Range input_;
  T *patch_, *unpooled_, *wide_;
  uint32_t* gradient_;
  int32_t* slots_;
  int64_t *sources_, *held_rows_, *places_;
  bool* taken_;
  TileSegment* segments_;
  float* spilled_;
  Range rows_{};
  bool fresh_ = true;  // nothing in the sums yet
  int64_t channels_, tap_rows_, first_ = 0, last_ = 0, held_ = 0;
};

template <class Tiles>
std::unique_ptr<Prepared> prepare_tile_weights(const Problem& p) {
  return prepare_weights<typename Tiles::Scope>(
      p, TileWeightsPlan(p), [p](const TileWeightsPlan& d, const KernelArgs& args, int64_t task, std::byte* memory) {
        TileWeightsTask<bf16, Tiles>(p, d, args, task, memory).run();
      });
}
