// Direct convolution, channels last: forward, forward with LeakyReLU and 2-wide max-pool at the end, and backward_data
// (also as a transposed convolution), any rank, stride, dilation, padding, groups and tensor strides; f32, bf16 and f16
// storage, f32 sums.
//
// Loops: a unit is a band of output rows, a tile of columns and a range of output channels. Per chunk of input channels
//   1. the distinct input rows that the band reads are copied once, zero-padded and widened, into a patch in the
//      second-level cache: no border cases below, and any storage type or stride costs the copy only. One tap, or
//      several over all channels, read rows of whole words where they are unless a tile meets the image's sides. The
//      register block asks for the next block's cache lines meanwhile, because rows side by side are nothing that a
//      prefetcher recognises (1x1 with 128 channels: 0.55 -> 0.95 of the FMA rate on Zen 5; engines with a register
//      block of their own leave that out). in_one_row joins the rows of 1x1;
//   2. for every 64 (AVX2: 16) output channels, the register block runs over the band's positions; its sum follows the
//      segments (row tap, column taps, channels) for which the row is not padding;
//   3. the last chunk rounds into the output; earlier ones leave f32 sums in the workspace. Before a pool all chunks
//      do, bands hold whole rows of windows, and the unit ends with activation and maximum. Large outputs go past the
//      caches, which saves reading what is overwritten (a third of the traffic of wide 1x1 layers).
// Weights come packed in exactly the order of step 2 from a Pack node. Chunks depend on the problem alone, so the order
// of a sum does not depend on threads or tiles.
// Copying costs about 1/(KW * K/groups) of the multiply-adds. Limit: the f32 FMA rate.
//
// Refuses types other than f32, bf16, f16 and depthwise convolutions.

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
  };
  DirectPlan(const Problem& p, const Layout& layout);
  /// Chooses chunks of at most `fit` channels, tiles and bands; false where a unit has few positions.
  bool cut(const Problem& p, const Layout& layout, int64_t fit, int64_t met_rows);
  DirectShape shape;
  int64_t chunk, chunks;  ///< input channels per pass over the patch
  int64_t chunk_words;    ///< words that hold a chunk's channels
  int64_t pair;           ///< channels per word
  int64_t run_multiple, spare_rows, spare_words, block;
  bool single_taps = true;  ///< no phase has two column taps
  int64_t tiles, bands, channel_parts;
  int64_t tile_positions, band_rows, patch_rows, row_words, padded_out;

  int64_t units() const { return bands * tiles * shape.groups * channel_parts; }
  int64_t words_of(int64_t channels) const { return ceil_div(channels, pair); }
  /// 1x1 at stride 1 without padding, all positions in one row.
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
  int64_t sums_pitch() const { return std::min(padded_out, unit_channels); }
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
    return patch_bytes() + sums_bytes() + round_up(unit_channels * 4, 64) + round_up(rounded_floats * 4, 64) +
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
  cut(p, layout, fit, met_rows);
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
  channel_parts = ceil_div(padded_out, unit_channels);
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
        rows, std::min(shared_rows, rows_of(unit_positions * unit_channels / std::min(padded_out, unit_channels))));
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
    take(bias, unit_channels * 4);
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

/// Copies columns [first, first + columns) and `channels` channels of an input row as f32, zero outside the image.
template <class T>
void copy_columns(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels, float* to) {
  const int64_t low = std::clamp<int64_t>(-first, 0, columns),
                high = std::clamp<int64_t>(desc.shape.w() - first, low, columns);
  std::fill(to, to + low * channels, 0.0f);
  std::fill(to + high * channels, to + columns * channels, 0.0f);
  const T* from = row + (first + low) * desc.stride[3];
  const auto copy = [&](const T* source, float* target, int64_t count) {
    for_vectors(0, count, [&](int64_t i, auto n) { put(target + i, get(source + i, n), n); });
  };
  if (desc.stride[3] == channels) return copy(from, to + low * channels, (high - low) * channels);
  for (int64_t c = low; c < high; ++c) {
    const T* column = from + (c - low) * desc.stride[3];
    prefetch(column + 8 * desc.stride[3], channels * int64_t{sizeof(T)});
    copy(column, to + c * channels, channels);
  }
}

/// Sums of f32 words in vector registers.
struct F32Engine {
  using Word = float;
  static constexpr int64_t pair = 1;
  static constexpr bool reads_in_place = true, narrows = false;
  struct Scope {
    Scope() {}  // nothing to set up per thread
  };
  template <class F>
  static void by_type(DType type, F&& f) {
    by_storage(type, f);
  }
  template <class T>
  static void copy(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels, Word* to) {
    copy_columns(desc, row, first, columns, channels, to);
  }
  template <class F>
  static void for_blocks(int64_t count, int64_t vectors, F&& f) {
    for_row_blocks(count, vectors, f);
  }
  static void block(int64_t rows, int64_t vectors, const BlockCall<Word>& call) {
    run_block<RegisterBlock<F32Dot, true>>(rows, vectors, call);
  }
  template <class T>
  static Word word(T first, T) {
    return static_cast<float>(first);
  }
  /// A vector of words of neighbouring channels.
  template <class T>
  static Vec words(const T* p) {
    return load(p);
  }
};

/// Has no faster way to pool a line of channels.
struct NoLines {
  static constexpr int64_t channels = 0;
};

/// Activates and pools the sums of a unit: [row][position][channel] in the order of the windows. `Lines` may pool whole
/// lines of channels in its own way.
template <class T, class Lines = NoLines>
void pool_sums(const Problem& p, const DirectPlan& d, const KernelArgs& args, Range rows, int64_t first, int64_t last,
               int64_t k_first, int64_t k_last, const float* sums) {
  const DirectShape& s = d.shape;
  const Vec slope = Vec::all(static_cast<float>(p.op.as<ConvPoolAttrs>().pool.activation.slope));
  T* y = args.out[0].data<T>();
  uint8_t* arg = args.out[1].data<uint8_t>();
  const int64_t group = s.row_group();
  for (int64_t r = 0; r < rows.size(); r += group) {
    const int64_t row = DirectShape::row_offset(p.out[0], (rows.begin + r) / group),
                  arg_row = DirectShape::row_offset(p.out[1], (rows.begin + r) / group);
    for (int64_t j = first; j < last; j += 2) {
      const int64_t at = row + j / 2 * p.out[0].stride[3] + k_first,
                    arg_at = arg_row + j / 2 * p.out[1].stride[3] + k_first;
      const float* corner = sums + (r * d.tile_positions + j - first) * d.sums_pitch();
      const auto value = [&](int q) { return corner + ((q >> 1) * d.tile_positions + (q & 1)) * d.sums_pitch(); };
      int64_t done = 0;
      if constexpr (Lines::channels > 0)
        while (done + Lines::channels <= k_last - k_first &&
               Lines::pool_line(value(0) + done, value(2) - value(0), d.sums_pitch(), 2 * group, slope, y + at + done,
                                arg + arg_at + done))
          done += Lines::channels;
      for_vectors(done, k_last - k_first, [&](int64_t k, auto n) {
        const WindowMaximum best = pooled<T>(2 * group, slope, [&](int q) { return load(value(q) + k); });
        put(y + at + k, best.best, n);
        if constexpr (std::is_same_v<decltype(n), int64_t>)
          store_bytes(arg + arg_at + k, best.winner, n);
        else
          store_bytes(arg + arg_at + k, best.winner);
      });
    }
  }
}

template <class T, class Engine>
void direct_run(const Problem& p, const DirectPlan& d, const KernelArgs& args) {
  using Word = typename Engine::Word;
  const DirectShape& s = d.shape;
  const T* x = args.in[0].data<T>();
  T* y = args.out[0].data<T>();
  const auto* weights = reinterpret_cast<const Word*>(args.packed[0]);
  const float* bias = args.in.size() > 2 ? args.in[2].data<float>() : nullptr;
  const Vec slope = Vec::all(s.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f);
  // A block of 16-bit channels that is half a line (AVX2) would come back for the other half.
  const bool streams = !s.pooled() && block_width * sizeof(T) % 64 == 0 && streams_lines(s.y, args.out[0], s.out);

  parallel_threads(p.threads, [&](int thread) {
    const DirectScratch<Word> m(d, args.workspace + thread * d.thread_bytes());
    const typename Engine::Scope scope;
    const Range mine = split_range(d.units(), thread, p.threads);
    for (int64_t unit = mine.begin; unit < mine.end; ++unit) {
      const int64_t part = unit % d.channel_parts, group = unit / d.channel_parts % s.groups;
      const int64_t tile = unit / (d.channel_parts * s.groups) % d.tiles,
                    band = unit / (d.channel_parts * s.groups * d.tiles);
      const Range rows = RowSet::band(s, band, d.bands);
      const int64_t first = tile * d.tile_positions, last = std::min(first + d.tile_positions, s.positions);
      const int64_t k_first = part * unit_channels, k_last = std::min(k_first + unit_channels, s.out);
      const int64_t column = s.phases[0].advance * first + s.column_low, columns = s.columns(last - first);
      std::fill(m.bias, m.bias + unit_channels, 0.0f);
      if (bias) std::copy(bias + group * s.out + k_first, bias + group * s.out + k_last, m.bias);
      const int64_t sources = RowSet::collect(s, rows.begin, rows.size(), m.slots, m.sources);

      for (int64_t chunk = 0; chunk < d.chunks; ++chunk) {
        const int64_t c_first = chunk * d.chunk, channels = std::min(d.chunk, s.in - c_first),
                      words = d.words_of(channels);
        // Without padding rows that are whole words already need no copy.
        constexpr bool same_words = sizeof(T) * Engine::pair == sizeof(Word);
        const bool whole_positions = d.chunks == 1 && s.x.stride[3] == s.in;  // several taps are one run
        const bool in_place = Engine::reads_in_place && same_words && (d.single_taps || whole_positions) &&
                              column >= 0 && column + columns <= s.x.shape.w() && channels % Engine::pair == 0 &&
                              s.x.stride[3] % Engine::pair == 0;
        const int64_t pitch = in_place ? s.x.stride[3] / Engine::pair : words;  // words from column to column
        for (int64_t i = 0; i < sources && !in_place; ++i)
          Engine::copy(s.x, x + DirectShape::row_offset(s.x, m.sources[i]) + group * s.in + c_first, column, columns,
                       channels, m.patch + i * d.row_words);
        const bool stores = chunk + 1 == d.chunks && !s.pooled();  // otherwise sums stay for the next chunk or the pool

        for (int64_t k = k_first; k < k_last; k += block_width) {
          const int64_t width = std::min(block_width, d.padded_out - k);
          const Word* block = weights + d.block_words(group, k, width, chunk);
          const int64_t tap_words = d.tap_words(words) * width;
          int64_t sum_row = 0;
          for (int64_t r = 0; r < rows.size(); ++r)
            for (int64_t phase_at = 0; const ColumnPhase& phase : s.phases) {
              const Word* phase_weights = block + phase_at * width;
              phase_at += d.phase_words(phase, words);
              const int64_t count = std::min(last, phase.count) - first;
              if (count <= 0) continue;
              const auto taps = static_cast<int64_t>(phase.taps.size());
              int64_t segments = 0;
              for (int64_t t = 0; t < s.row_taps() && taps > 0; ++t) {
                const int32_t slot = m.slots[r * s.row_taps() + t];
                if (slot < 0) continue;
                const Word* patch_row = m.patch + slot * d.row_words;
                if (in_place)
                  patch_row = reinterpret_cast<const Word*>(x + DirectShape::row_offset(s.x, m.sources[slot]) +
                                                            column * s.x.stride[3] + group * s.in + c_first);
                const Word* from = phase_weights + t * tap_words;
                for (int64_t q = 0; q < (phase.contiguous ? 1 : taps); ++q) {
                  const int64_t at = phase.taps[static_cast<size_t>(q)].column;
                  Segment<Word>& segment = m.segments[segments++];
                  segment = {patch_row + (at - s.column_low) * pitch, from + q * d.padded_run(words) * width,
                             d.padded_run(words), 0, count};
                  if (phase.contiguous)
                    segment.length = d.padded_run(taps * words);
                  else {
                    const Range inside = s.inside(phase, phase.taps[static_cast<size_t>(q)]);
                    segment.low = inside.begin - first, segment.high = inside.end - first;
                  }
                }
              }
              T* out_row = y + DirectShape::row_offset(s.y, rows.begin + r) + group * s.out + k;
              const int64_t out_step = phase.step * s.y.stride[3], valid = std::min(width, s.out - k);
              Engine::for_blocks(count, width / Vec::lanes, [&](int64_t j, int64_t block_size) {
                BlockCall<Word> call{m.segments,
                                     segments,
                                     j,
                                     j * phase.advance * pitch,
                                     phase.advance * pitch,
                                     1,
                                     width,
                                     m.bias + (k - k_first),
                                     0,
                                     m.rounded,
                                     width};
                float* sum = m.sums + (sum_row + j) * d.sums_pitch() + (k - k_first);
                if (chunk > 0) call.init = sum, call.init_pitch = d.sums_pitch();
                T* to = out_row + phase.start * s.y.stride[3] + (first + j) * out_step;
                // Rows in place come from memory when the unit's first outputs meet them.
                if (in_place && k == k_first) call.ahead = block_size * call.row_step;
                bool rounds = stores;
                if (!stores) call.to = sum, call.to_pitch = d.sums_pitch();
                if constexpr (std::is_same_v<T, float>)
                  if (stores && valid == width && !(streams && s.activates))
                    call.to = to, call.to_pitch = out_step, call.streams = streams, rounds = false;
                if constexpr (Engine::narrows)
                  if (stores && valid == width && !s.activates)
                    call.narrow = to, call.to_pitch = out_step, call.streams = streams, rounds = false;
                Engine::block(block_size, width / Vec::lanes, call);
                if (!rounds && !(stores && s.activates)) return;
                const float* sums = rounds ? m.rounded : call.to;
                const int64_t sums_pitch = rounds ? width : call.to_pitch;
                for (int64_t i = 0; i < block_size; ++i) {
                  T* row = to + i * out_step;
                  for_vectors(0, valid, [&](int64_t c, auto n) {
                    const Vec sum = load(sums + i * sums_pitch + c);
                    put_output(row + c, s.activates ? leaky<T>(sum, slope) : sum, n, streams);
                  });
                }
              });
              sum_row += d.tile_positions;
            }
        }
      }
      if (s.pooled())
        pool_sums<T>(p, d, args, rows, first, last, group * s.out + k_first, group * s.out + k_last, m.sums);
    }
    if (streams) fence();
  });
}

/// The words of one or two channels (`pair` apart) of a weight for `lanes` outputs, which are `lane_step` apart; a
/// missing second channel is zero.
template <class Engine, class T, class Step>
void pack_words(const T* from, int64_t pair, bool both, Step lane_step, int64_t lanes, typename Engine::Word* to) {
  if (Engine::pair > 1 && both)
    for (int64_t f = 0; f < lanes; ++f) to[f] = Engine::word(from[f * lane_step], from[f * lane_step + pair]);
  else
    for (int64_t f = 0; f < lanes; ++f) to[f] = Engine::word(from[f * lane_step], T{});
}

/// The same for weights whose channels lie side by side: blocks of words are turned in registers, and those `ahead`
/// asked for meanwhile, pieces of rows being nothing that a prefetcher recognises.
template <class Engine, class T>
void pack_turned(const T* from, int64_t per_k, int64_t outputs, int64_t channels, int64_t width, int64_t ahead,
                 typename Engine::Word* to) {
  constexpr int64_t run = Vec::lanes * Engine::pair;
  for (int64_t q = 0; q < outputs; q += Vec::lanes)
    for (int64_t c = 0; c < channels; c += run) {
      if (outputs - q >= Vec::lanes && channels - c >= run) {
        for (int64_t i = 0; i < Vec::lanes; ++i) __builtin_prefetch(from + (q + i) * per_k + c + ahead);
        Vec words[Vec::lanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < Vec::lanes; ++i) words[i] = Engine::words(from + (q + i) * per_k + c);
        turn(words);
#pragma GCC unroll 16
        for (int64_t i = 0; i < Vec::lanes; ++i)
          store(reinterpret_cast<float*>(to + (c / Engine::pair + i) * width + q), words[i]);
        continue;
      }
      for (int64_t e = c; e < std::min(c + run, channels); e += Engine::pair)
        pack_words<Engine>(from + q * per_k + e, 1, e + 1 < channels, per_k, std::min<int64_t>(Vec::lanes, outputs - q),
                           to + e / Engine::pair * width + q);
    }
}

/// Where a block of outputs is packed: its first lane, lanes with and without fillings.
template <class Word>
struct PackedBlock {
  int64_t first, valid, width;
  Word* at;
};

/// The words of backward_data, whose results are the weight's C, for some blocks side by side: pieces of rows of a
/// cache line and more, since rows lie pages apart.
template <class Engine, class T>
void pack_side_by_side(const T* from, int64_t per_k, int64_t channels, int64_t offset,
                       std::span<const PackedBlock<typename Engine::Word>> blocks) {
  for (int64_t c = 0; c < channels; c += Engine::pair)
    for (const auto& block : blocks) {
      const T* row = from + c * per_k + block.first;
      auto* word = block.at + (offset + c / Engine::pair) * block.width;
      if constexpr (Engine::pair > 1)
        if (c + 1 < channels && block.valid % Vec::lanes == 0) {
          for (int64_t k = 0; k < block.valid; k += Vec::lanes) {
            for (int64_t ahead : {16, 17}) __builtin_prefetch(row + ahead * per_k + k);
            Engine::store_pairs(row + k, row + per_k + k, word + k);
          }
          continue;
        }
      pack_words<Engine>(row, per_k, c + 1 < channels, std::integral_constant<int64_t, 1>{}, block.valid, word);
    }
}

/// Packs K, KD, KH, KW, C/groups into the order of direct_run.
template <class T, class Engine>
void direct_pack(const DirectPlan& d, const Tensor& weight, typename Engine::Word* to, int threads) {
  using Block = PackedBlock<typename Engine::Word>;
  const DirectShape& s = d.shape;
  const T* from = weight.data<T>();
  const Shape& w = weight.shape();
  const int64_t blocks = ceil_div(d.padded_out, d.block), per_tap = w.c(), per_k = s.row_taps() * s.kernel[2] * per_tap;
  const int64_t together = s.forward ? 1 : 4, runs = ceil_div(blocks, together);
  parallel_ranges(s.groups * runs * d.chunks, threads, 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t chunk = i % d.chunks, run = i / d.chunks % runs, group = i / (d.chunks * runs);
      const int64_t c_first = chunk * d.chunk, channels = std::min(d.chunk, s.in - c_first),
                    words = d.words_of(channels);
      std::array<Block, 4> list;
      size_t count = 0;
      for (int64_t k = run * together * d.block; k < std::min((run + 1) * together * d.block, d.padded_out);
           k += d.block) {
        const int64_t width = std::min(d.block, d.padded_out - k);
        const Block block{k, std::min(width, s.out - k), width, to + d.block_words(group, k, width, chunk)};
        // Lanes past the last channel and the filling of runs.
        if (block.valid < width || d.run_multiple > 1)
          std::memset(block.at, 0, static_cast<size_t>(s.row_taps() * d.tap_words(words) * width * 4));
        list[count++] = block;
      }
      int64_t offset = 0;
      for (int64_t t = 0; t < s.row_taps(); ++t)
        for (const ColumnPhase& phase : s.phases) {
          for (size_t tap = 0; tap < phase.taps.size(); ++tap) {
            const int64_t here = offset + static_cast<int64_t>(tap) * (phase.contiguous ? words : d.padded_run(words));
            const T* taps = from + (t * s.kernel[2] + phase.taps[tap].weight) * per_tap;
            if (s.forward) {  // the sum runs over the weight's C, results are its K
              const Block& block = list[0];
              pack_turned<Engine>(taps + (group * s.out + block.first) * per_k + c_first, per_k, block.valid, channels,
                                  block.width, per_tap, block.at + here * block.width);
            } else {
              pack_side_by_side<Engine>(taps + (group * s.in + c_first) * per_k, per_k, channels, here,
                                        std::span<const Block>(list).first(count));
            }
          }
          offset += d.phase_words(phase, words);
        }
    }
  });
}

/// Asks for the weights (input `input`) in the order of a plan.
template <class Engine>
PackRequest direct_pack_request(const Problem& p, const DirectPlan& d, int input) {
  // The order depends on the pass, the blocking and the kept taps.
  std::string form = "direct" + std::to_string(d.block);
  form += Engine::pair > 1 ? " pairs" : "";
  form += d.run_multiple > 1 ? " tiles" : "";
  form += d.shape.forward ? " forward " : " backward ";
  form += to_text(p.op);
  form.append(" ").append(std::to_string(d.chunk)).append(d.shape.kept_taps());
  return {input, form, d.shape.groups * d.group_words() * 4,
          [plan = d, threads = p.threads](const Tensor& weight, std::byte* packed) {
            Engine::by_type(weight.dtype(), [&](auto zero) {
              direct_pack<decltype(zero), Engine>(plan, weight, reinterpret_cast<typename Engine::Word*>(packed),
                                                  threads);
            });
          }};
}

template <class Engine>
class PreparedDirect final : public Prepared {
 public:
  explicit PreparedDirect(const Problem& p) : problem_(p), plan_(p, {.word_channels = Engine::pair}) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override {
    return std::to_string(plan_.band_rows) + "x" + std::to_string(plan_.tile_positions) + " positions, " +
           std::to_string(plan_.chunks) + " chunks";
  }
  std::vector<PackRequest> packed_weights() const override { return {direct_pack_request<Engine>(problem_, plan_, 1)}; }
  void run(const KernelArgs& args) const override {
    Engine::by_type(problem_.in[0].dtype,
                    [&](auto zero) { direct_run<decltype(zero), Engine>(problem_, plan_, args); });
  }

 private:
  Problem problem_;
  DirectPlan plan_;
};

Support supports_direct(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
  if (!p.in[1].dense()) return Support::no("needs dense weights, found " + p.in[1].str());
  if (p.op.kind == OpKind::conv_pool_forward) return supports_window(p.op.as<ConvPoolAttrs>());
  if (is_depthwise(p)) return Support::no("leaves depthwise convolutions to their own kernel");
  return Support::yes();
}

template <class Engine>
std::unique_ptr<Prepared> prepare_direct_with(const Problem& p) {
  return std::make_unique<PreparedDirect<Engine>>(p);
}
