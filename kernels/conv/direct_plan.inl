// How a direct convolution is cut into units and chunks (direct.inl, tile_direct.inl), and a thread's memory for it.

constexpr int64_t weight_cache = 256 << 10;  // bytes of packed weights of one block and chunk
constexpr int64_t patch_cache = 256 << 10;
constexpr int64_t unit_positions = 192;
constexpr int64_t shared_rows = 32;  // more would not save more copies
constexpr int64_t unit_channels = 4 * block_width;
constexpr int64_t rounded_floats =
    std::max<int64_t>(32, block_rows) * block_width;  // a register block before it is rounded

/// Blocking of one problem.
struct DirectPlan {
  /// `word_channels` channels share a word; runs of words are filled up with zero weights to a multiple of
  /// `run_multiple`; a register block may read `spare_rows` positions past its last.
  /// Packed weights come in blocks of `block` output channels, and widths of tiles of columns in multiples of `grain`.
  /// Positions of a unit share `weight_bytes` and stay in `patch_bytes`; chunks shrink to `least_chunk` for the sake of
  /// more of them.
  struct Layout {
    int64_t word_channels, run_multiple = 1, spare_rows = 0, block = block_width, grain = 1,
                           weight_bytes = weight_cache, patch_bytes = patch_cache, least_chunk = direct_chunk_words * 2;
    /// Second-level cache for the weights of one part of the output channels; 0: see parts_last.
    int64_t part_bytes = 0;
    /// Of a unit's input, in output channels whose sums take as long.
    int64_t copying = 16;
  };
  DirectPlan(const Problem& p, const Layout& layout);
  /// Chooses chunks of at most `fit` channels, tiles and bands; false where a unit has few positions.
  bool cut(const Problem& p, const Layout& layout, int64_t fit, int64_t met_rows);
  /// Gives every thread a run of units, so that the most rows of taps inside the image that one has are as few as can
  /// be; returns those, 0 for a single thread.
  int64_t share_units(int threads);
  DirectShape shape;
  int64_t chunk, chunks;  ///< input channels per pass over the patch
  int64_t chunk_words;    ///< words that hold a chunk's channels
  int64_t pair;           ///< channels per word
  int64_t run_multiple, spare_rows, spare_words, block;
  bool single_taps = true;  ///< no phase has two column taps
  int64_t tiles, bands, channel_parts;
  int64_t part_channels = unit_channels;  ///< output channels of a unit at most
  std::vector<int64_t> first_units;       ///< of the threads, then the number of all units
  /// Whether units go through all positions of one part of the output channels before they turn to the next part, and
  /// not through all parts of a band.
  bool parts_last = false;
  int64_t tile_positions, band_rows, patch_rows, row_words, padded_out;

  int64_t units() const { return bands * tiles * shape.groups * channel_parts; }
  std::string detail() const {
    return std::to_string(band_rows) + "x" + std::to_string(tile_positions) + " positions, " + std::to_string(chunks) +
           " chunks" +
           (part_channels < unit_channels ? ", " + std::to_string(part_channels) + " channels a unit" : "") +
           (parts_last ? ", parts last" : "");
  }
  int64_t in_part() const { return units() / channel_parts; }
  int64_t unit_in_part(int64_t index) const { return parts_last ? index % in_part() : index / channel_parts; }
  int64_t band_of(int64_t index) const { return unit_in_part(index) / shape.groups / tiles; }
  /// A unit's output rows, positions of every phase, and output channels within its group.
  struct Unit {
    Range rows;
    int64_t group, first, last, k_first, k_last;
  };
  Unit unit(int64_t index) const {
    const int64_t part = parts_last ? index / in_part() : index % channel_parts, rest = unit_in_part(index);
    const int64_t group = rest % shape.groups, others = rest / shape.groups, tile = others % tiles,
                  band = others / tiles;
    return {RowSet::band(shape, band, bands),
            group,
            tile * tile_positions,
            std::min((tile + 1) * tile_positions, shape.positions),
            part * part_channels,
            std::min((part + 1) * part_channels, shape.out)};
  }
  Range share(int thread, int /*threads*/) const {
    return {first_units[static_cast<size_t>(thread)], first_units[static_cast<size_t>(thread) + 1]};
  }
  int64_t words_of(int64_t channels) const { return ceil_div(channels, pair); }
  /// 1x1 without padding, at stride 1 or in the view that has it, all positions in one row.
  bool product() const {
    const Shape& x = shape.x.shape;
    const bool one_row = shape.rows() == 1 && x.n() * x.d() * x.h() == 1 && shape.positions <= x.w();
    return one_row && !shape.unpools && shape.row_taps() == 1 && shape.column_taps == 1 &&
           shape.phases[0].advance == 1 && shape.column_low == 0;
  }
  /// Words from column to column of the patch. Where runs do not cross columns, those of tiles start on cache lines, an
  /// odd number of them apart.
  int64_t column_words(int64_t words) const {
    return run_multiple > 1 && product() ? (padded_run(words) / 16 | 1) * 16 : words;
  }
  int64_t padded_run(int64_t words) const { return round_up(words, run_multiple); }
  /// Words per output channel that one row tap of a phase takes for a chunk of `words`: one run, or one per column tap.
  int64_t phase_words(const ColumnPhase& phase, int64_t words) const {
    const auto taps = static_cast<int64_t>(phase.taps.size());
    return phase.contiguous ? padded_run(taps * words) : taps * padded_run(words);
  }
  int64_t tap_words(int64_t words) const {
    int64_t total = 0;
    for (const ColumnPhase& phase : shape.phases) total += phase_words(phase, words);
    return total;
  }
  /// Words per output channel of all chunks.
  int64_t channel_words() const {
    return shape.row_taps() *
           ((chunks - 1) * tap_words(chunk_words) + tap_words(words_of(shape.in - (chunks - 1) * chunk)));
  }
  /// Words of packed weights of one group: out channels padded to whole vectors.
  int64_t group_words() const { return channel_words() * padded_out; }
  /// Where a block of output channels starts for a chunk. Packed order: group, block, chunk, row tap, run, lane.
  int64_t block_words(int64_t group, int64_t k, int64_t width, int64_t chunk_index) const {
    return group * group_words() + k * channel_words() +
           width * shape.row_taps() * chunk_index * tap_words(chunk_words);
  }
  int64_t sums_pitch() const { return std::min(padded_out, part_channels); }
  int64_t unit_rows() const { return band_rows * static_cast<int64_t>(shape.phases.size()) * tile_positions; }
  int64_t segment_count() const { return shape.row_taps() * std::max<int64_t>(1, shape.column_taps); }
  // The thread's memory, in bytes from its start.
  /// Behind the rows, where blocks read past their last: one that stays zero.
  int64_t zero_row() const { return patch_rows * row_words; }
  int64_t patch_bytes() const { return round_up(((patch_rows + (spare_rows > 0)) * row_words + spare_words) * 4, 64); }
  int64_t sums_bytes() const {
    return round_up(chunks > 1 || shape.pooled() ? (unit_rows() + spare_rows) * sums_pitch() * 4 : 0, 64);
  }
  int64_t thread_bytes() const {
    return patch_bytes() + sums_bytes() + round_up(part_channels * 4, 64) + round_up(rounded_floats * 4, 64) +
           round_up(segment_count() * int64_t(sizeof(Segment<float>)), 64) +
           round_up(band_rows * shape.row_taps() * 4, 64) + round_up(patch_rows * 8, 64);
  }
};

DirectPlan::DirectPlan(const Problem& p, const Layout& layout)
    : shape(in_one_row(p)),
      pair(layout.word_channels),
      run_multiple(layout.run_multiple),
      spare_rows(layout.spare_rows),
      block(layout.block) {
  const int64_t out_multiple = block < block_width ? block : Vec::lanes;
  padded_out = round_up(shape.out, out_multiple);
  for (const ColumnPhase& phase : shape.phases) single_taps = single_taps && phase.taps.size() < 2;
  // Taps whose weights a register block meets: between the outputs of a strided input gradient only some.
  int64_t met_rows = 1, met_columns = 1;
  for (int axis : {0, 1})
    met_rows *= shape.forward
                    ? shape.kernel[axis]
                    : ceil_div(shape.kernel[axis], shape.attrs.stride[axis] /
                                                       std::gcd(shape.attrs.stride[axis], shape.attrs.dilation[axis]));
  for (const ColumnPhase& phase : shape.phases)
    met_columns = std::max(met_columns, static_cast<int64_t>(phase.taps.size()));
  int64_t fit = std::clamp<int64_t>(layout.weight_bytes / (met_rows * met_columns * block * 4) * pair / 16 * 16, 16,
                                    direct_chunk_words * pair);
  // Chunks decide the order of sums: the same for any number of threads.
  Problem alone = p;
  alone.threads = 1;
  while (!cut(alone, layout, fit, met_rows) && fit > layout.least_chunk)
    fit = std::max(layout.least_chunk, fit / 2 / 16 * 16);
  // Fewer output channels a unit where that leaves the slowest thread less to do.
  const auto time = [&](int64_t width) {
    part_channels = width;
    cut(p, layout, fit, met_rows);
    return share_units(p.threads) * tile_positions * (std::min(padded_out, width) + layout.copying);
  };
  int64_t best = unit_channels, best_time = time(best);
  for (int64_t width = best / 2; width >= block_width && units() < 8 * p.threads; width /= 2) {
    if (width >= padded_out) continue;
    if (const int64_t narrower = time(width); 10 * narrower < 9 * best_time) best = width, best_time = narrower;
  }
  if (part_channels != best) time(best);
  // Weights of a part that stay in the second-level cache while positions pass are worth copying the input again for
  // every part, where that is the lesser traffic by half. Threads get runs of units: parts must be equal.
  const int64_t part_weights = group_words() * 4 / channel_parts,
                own_bands = std::max<int64_t>(1, bands * tiles / p.threads),
                again = (channel_parts - 1) * own_bands * patch_rows * row_words * chunks * 4,
                saved = (own_bands - 1) * channel_parts * part_weights;
  parts_last = channel_parts > 1 && shape.groups == 1 && shape.out % part_channels == 0 && saved > 2 * again &&
               part_weights <= layout.part_bytes && channel_parts * part_weights > layout.part_bytes;
  if (parts_last) share_units(p.threads);  // in another order
}

int64_t DirectPlan::share_units(int threads) {
  if (threads == 1) {
    first_units = {0, units()};
    return 0;
  }
  std::vector<int64_t> of_band;  // what a unit of it costs
  for (int64_t band = 0; band < bands; ++band) {
    const Range rows = RowSet::band(shape, band, bands);
    int64_t inside = 0;
    for (int64_t index = rows.begin; index < rows.end; ++index)
      for (int64_t t = 0, row = shape.row_at(index); t < shape.row_taps(); ++t) inside += shape.source_row(row, t) >= 0;
    of_band.push_back(inside);
  }
  const auto cost = [&](int64_t unit) { return of_band[static_cast<size_t>(band_of(unit))]; };
  const int64_t most = *std::max_element(of_band.begin(), of_band.end()),
                all = std::accumulate(of_band.begin(), of_band.end(), int64_t{0}) * (units() / bands);
  // Runs as long as a limit allows: whether there are enough threads for them.
  const auto fits = [&](int64_t limit) {
    first_units.assign(1, 0);
    int64_t in_run = 0;
    for (int64_t unit = 0; unit < units(); ++unit) {
      if (in_run > 0 && in_run + cost(unit) > limit) first_units.push_back(unit), in_run = 0;
      in_run += cost(unit);
    }
    return first_units.size() <= static_cast<size_t>(threads);
  };
  int64_t least = std::max(most, ceil_div(all, threads));
  for (int64_t high = least + most; least < high;) {
    const int64_t middle = (least + high) / 2;
    fits(middle) ? high = middle : least = middle + 1;
  }
  fits(least);
  first_units.resize(static_cast<size_t>(threads) + 1, units());
  return least;
}

bool DirectPlan::cut(const Problem& p, const Layout& layout, int64_t fit, int64_t met_rows) {
  const auto phases = static_cast<int64_t>(shape.phases.size());
  chunks = ceil_div(shape.in, fit);
  const int64_t whole = std::max<int64_t>(16, pair * run_multiple);  // channels of a run without filling
  chunk = chunks == 1 ? shape.in : round_up(ceil_div(shape.in, chunks), whole);
  chunks = ceil_div(shape.in, chunk);
  chunk_words = words_of(chunk);
  const auto row_bytes = [&](int64_t positions) { return shape.columns(positions) * chunk_words * 4; };
  const bool product = single_taps && shape.rows() == 1;
  tiles = ceil_div(shape.positions, product ? unit_positions : 96);
  const int64_t grain = std::lcm(shape.window[2], layout.grain);
  const auto tile_of = [&] {
    return std::min(round_up(ceil_div(shape.positions, tiles), grain), round_up(shape.positions, shape.window[2]));
  };
  while (tile_of() > std::max<int64_t>(12, layout.grain) && row_bytes(tile_of()) * met_rows > layout.patch_bytes)
    ++tiles;
  channel_parts = ceil_div(padded_out, part_channels);
  // Few units: the same number for every thread.
  const auto uneven = [&](int64_t units) { return units < 8 * p.threads && units % p.threads; };
  while (product && tile_of() > std::max<int64_t>(12, layout.grain) && uneven(tiles * shape.groups * channel_parts))
    ++tiles;
  tile_positions = tile_of(), tiles = ceil_div(shape.positions, tile_positions);
  row_words = shape.columns(tile_positions) * column_words(chunk_words);
  spare_words = spare_rows * shape.phases[0].advance * column_words(chunk_words) + run_multiple;
  // Rows are counted in groups that stay together.
  const int64_t group = shape.row_group(), all = shape.rows() / group;
  const auto rows_of = [&](int64_t positions) {
    return std::clamp<int64_t>(positions / (tile_positions * phases * group), 1, all);
  };
  int64_t rows = rows_of(unit_positions);
  // Few output channels: more rows make as many sums, and share more of the rows they read.
  if (shape.row_taps() > 1)
    rows = std::max(
        rows, std::min(shared_rows, rows_of(unit_positions * part_channels / std::min(padded_out, part_channels))));
  const int64_t others = tiles * shape.groups * channel_parts;
  const auto bands_of = [&](int64_t most) {
    int64_t count = ceil_div(all, most);
    while (uneven(count * others) && count < all) ++count;
    return count;
  };
  for (;; rows = (rows + 1) / 2) {
    bands = bands_of(rows);
    patch_rows = std::max<int64_t>(1, RowSet::largest(shape, bands));
    if (rows == 1 || patch_rows * row_words * 4 <= layout.patch_bytes) break;
  }
  band_rows = ceil_div(all, bands) * group;
  return band_rows == all * group || band_rows * tile_positions * phases >= unit_positions * 3 / 4;
}

/// A thread's share of the workspace.
template <class Word>
struct DirectScratch {
  DirectScratch(const DirectPlan& d, std::byte* at) {
    const auto take = [&](auto*& pointer, int64_t bytes) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
      at += round_up(bytes, 64);
    };
    take(patch, d.patch_bytes());
    take(sums, d.sums_bytes());
    take(bias, d.part_channels * 4);
    take(rounded, rounded_floats * 4);
    take(segments, d.segment_count() * int64_t(sizeof(Segment<Word>)));
    take(slots, d.band_rows * d.shape.row_taps() * 4);
    take(sources, d.patch_rows * 8);
  }
  Word* patch;
  float *sums, *bias, *rounded;
  Segment<Word>* segments;
  int32_t* slots;
  int64_t* sources;
};

/// Positions of two maps one after the other, in the order of the rows; null past the last. Strides are in the shape's
/// view of the input (leave_out_unread).
template <class X, class Y>
class PositionWalk {
 public:
  PositionWalk(const DirectShape& s, X* x, Y* y, int64_t position)
      : s_(&s), x_(x), y_(y), row_(position / s.positions), column_(position % s.positions) {
    start();
  }
  void next(X** x, Y** y) {
    *x = x_at_, *y = y_at_;
    if (++column_ == s_->positions)
      ++row_, column_ = 0, start();
    else if (x_at_)
      x_at_ += s_->x.stride[3], y_at_ += s_->y.stride[3];
  }

 private:
  void start() {
    x_at_ = nullptr, y_at_ = nullptr;
    if (row_ >= s_->rows()) return;
    x_at_ = x_ + DirectShape::row_offset(s_->x, row_) + column_ * s_->x.stride[3];
    y_at_ = y_ + DirectShape::row_offset(s_->y, row_) + column_ * s_->y.stride[3];
  }
  const DirectShape* s_;
  X* x_;
  Y* y_;
  int64_t row_, column_;
  X* x_at_;
  Y* y_at_;
};

/// All units of a plan, a share per thread. `Work` computes units one after the other in the thread's memory, knowing
/// the thread's next one (-1: none), while a `Scope` lives.
template <class Work, class Scope, class Plan>
void run_units(const Problem& p, const Plan& d, const KernelArgs& args) {
  parallel_threads(p.threads, [&](int thread) {
    const Scope scope;
    Work work(p, d, args, args.workspace + thread * d.thread_bytes());
    const Range mine = d.share(thread, p.threads);
    for (int64_t unit = mine.begin; unit < mine.end; ++unit) work.run(unit, unit + 1 < mine.end ? unit + 1 : -1);
    if (work.streams()) fence();
  });
}
