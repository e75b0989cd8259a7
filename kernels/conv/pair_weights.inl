// Weight and bias gradients on pairs of a 16-bit type, for the engines of pair_words.inl: products of two neighbouring
// positions, f32 sums. Tasks, parts and the final turn are those of direct_weights.inl; only the operands differ:
//   input     turned while it is copied: [source row][channel][residue of the stride][column], so that a run along the
//             positions is contiguous for every tap, and a tap is an offset, odd ones included;
//   gradient  [pair of positions][channel].
// The register block's rows are channels, its run goes along the positions of a row.
// Limit: the engine's product rate.

template <class Engine>
struct PairWeightsPlan : WeightsPlan {
  explicit PairWeightsPlan(const Problem& p)
      : WeightsPlan(p, {.parts_bytes = product_parts_bytes, .product_width = 12}) {
    const int64_t advance = shape.phases[0].advance, columns = ceil_div(shape.columns(tile_positions), advance);
    run = ceil_div(tile_positions, 2);
    pitch = (columns + 1) / 2 * 2 + 2 * run;
    // Eight halves more, so that a power of two of channels does not meet in one cache set.
    pitch += pitch % 32 == 0 ? 8 : 0;
    channel_words = advance * pitch / 2;
    divide_channels(p.threads, 16);  // fewer are turned one by one
  }
  int64_t run;            // words of a row of positions
  int64_t pitch;          // halves of a (channel, residue)
  int64_t channel_words;  // from channel to channel
  int64_t row_words() const { return chunk * channel_words; }
  int64_t patch_bytes() const { return round_up(patch_rows * row_words() * 4, 64); }
  int64_t gradient_bytes() const { return round_up(band_rows * run * block_width * 4, 64); }
  int64_t thread_bytes() const { return patch_bytes() + gradient_bytes() + table_bytes(); }
};

/// 32 positions of 16 channels, `step` values apart, to [channel][position].
template <class T>
void turn_block(const T* from, int64_t step, T* to, int64_t to_pitch) {
  WordVec words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    words[i] = pair_positions(from + 2 * i * step, from + (2 * i + 1) * step, std::integral_constant<int64_t, 0>{});
  turn_words(words);
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) store_words(reinterpret_cast<uint32_t*>(to + c * to_pitch), words[c]);
}

/// `count` positions, `step` values apart, of all channels to [channel][position]. The last block of a side overlaps
/// the one before.
template <class T>
void turn_positions(const T* from, int64_t step, int64_t count, int64_t channels, T* to, int64_t to_pitch) {
  if (count < 32 || channels < 16) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < channels; ++c) to[c * to_pitch + i] = from[i * step + c];
    return;
  }
  for (int64_t i = 0; i < count; i += 32)
    for (int64_t c = 0; c < channels; c += 16) {
      const int64_t at = std::min(i, count - 32), channel = std::min(c, channels - 16);
      // The next positions of a cache line's channels.
      if (c % 32 == 0)
        for (int64_t j = at + 32; j < at + 64; ++j) __builtin_prefetch(from + j * step + c);
      turn_block(from + at * step + channel, step, to + channel * to_pitch + at, to_pitch);
    }
}

/// Columns [first, first + columns) of an input row, turned; zero outside the image.
template <class T>
void turn_columns(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels,
                  int64_t advance, int64_t pitch, T* to) {
  for (int64_t residue = 0; residue < advance; ++residue, to += pitch) {
    // Position i of the residue is column first + residue + i * advance.
    const int64_t count = residue < columns ? ceil_div(columns - residue, advance) : 0, start = first + residue;
    const int64_t low = std::clamp<int64_t>(start < 0 ? ceil_div(-start, advance) : 0, 0, count);
    const int64_t high =
        std::clamp<int64_t>(start < desc.shape.w() ? ceil_div(desc.shape.w() - start, advance) : 0, low, count);
    for (int64_t c = 0; c < channels; ++c) {
      std::fill(to + c * advance * pitch, to + c * advance * pitch + low, T{});
      std::fill(to + c * advance * pitch + high, to + c * advance * pitch + count, T{});
    }
    turn_positions(row + (start + low * advance) * desc.stride[3], advance * desc.stride[3], high - low, channels,
                   to + low, advance * pitch);
  }
}

/// Gradient rows of a band as pairs of positions; adds them to the bias sums.
template <class Engine>
void copy_gradient_pairs(const PairWeightsPlan<Engine>& d, const typename Engine::Value* dy, Range rows, int64_t first,
                         int64_t last, int64_t channel, int64_t valid, uint32_t* to, float* bias) {
  using T = typename Engine::Value;
  const TensorDesc& desc = d.shape.y;
  const int64_t count = last - first, step = desc.stride[3];
  const int64_t vectors = ceil_div(valid, Vec::lanes), last_alone = vectors % 2 ? vectors - 1 : -1;
  Vec total[block_vectors];
  for_block_vectors(
      valid, [&](int q, auto n) __attribute__((always_inline)) { total[q] = get(bias + q * Vec::lanes, n); });
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    uint32_t* row = to + (r - rows.begin) * d.run * block_width;
    // Lanes past the last channel and positions past the last are zero.
    const int64_t kept = valid < block_width ? 0 : ceil_div(count, 2) * block_width;
    std::memset(row + kept, 0, static_cast<size_t>((d.run * block_width - kept) * 4));
    const T* from = dy + DirectShape::row_offset(desc, r) + first * step + channel;
    for (int64_t j = 0; j < count; j += 2, from += 2 * step, row += block_width) {
      const bool both = j + 1 < count;
      for (int64_t ahead = 16; ahead < 18; ++ahead) prefetch(from + ahead * step, valid * int64_t{sizeof(T)});
      for_block_vectors(
          valid, [&](int q, auto n) __attribute__((always_inline)) {
            const int64_t k = q * Vec::lanes;
            total[q] = total[q] + get(from + k, n);
            if (both) total[q] = total[q] + get(from + step + k, n);
            if (!Engine::weaves || q == last_alone)
              store_words(row + k, both ? pair_positions(from + k, from + step + k, n) : low_halves(from + k, n));
          });
      if constexpr (Engine::weaves)
        for (int64_t k = 0; k + Vec::lanes < valid; k += 2 * Vec::lanes) {
          const int64_t n = std::min<int64_t>(valid - k, 2 * Vec::lanes);
          store_woven(load_pairs(from + k, n), both ? load_pairs(from + step + k, n) : no_words(), row + k);
        }
    }
  }
  for_block_vectors(
      valid, [&](int q, auto n) __attribute__((always_inline)) { put(bias + q * Vec::lanes, total[q], n); });
}

template <class Engine>
void pair_weights_task(const PairWeightsPlan<Engine>& d, const KernelArgs& args, int64_t task, std::byte* memory) {
  using T = typename Engine::Value;
  const DirectShape& s = d.shape;
  const ColumnPhase& phase = s.phases[0];
  const auto [patch, gradient, segments, slots, sources] = WeightsScratch<uint32_t>(d, memory);
  const WeightsTask at = d.task(task);
  const Range input = d.channels(at.chunk);
  const int64_t channels = input.size();
  const T *x = args.in[0].data<T>() + at.group * s.in + input.begin, *dy = args.in[1].data<T>();
  d.clear(args.workspace, at);
  // What a run reads past a row's columns meets zero gradients, and must not be NaN.
  std::memset(patch, 0, static_cast<size_t>(d.patch_bytes()));

  NextOperands<T> next(d, at, x, dy + at.group * s.out);
  const int64_t per_part = d.bands / d.parts;
  for (int64_t b = at.part * per_part; b < (at.part + 1) * per_part; ++b) {
    const Range rows = RowSet::band(s, b, d.bands);
    const int64_t count = RowSet::collect(s, rows.begin, rows.size(), slots, sources);
    for (int64_t first = 0; first < phase.count; first += d.tile_positions) {
      const int64_t last = std::min(first + d.tile_positions, phase.count);
      for (int64_t i = 0; i < count; ++i)
        turn_columns(s.x, x + DirectShape::row_offset(s.x, sources[i]), phase.advance * first + s.column_low,
                     s.columns(last - first), channels, phase.advance, d.pitch,
                     reinterpret_cast<T*>(patch + i * d.row_words()));
      next.start(b, first);
      for (int64_t block = at.first_block; block < at.last_block; ++block) {
        const int64_t k_first = block * block_width, valid = std::min(block_width, s.out - k_first),
                      vectors = ceil_div(valid, Vec::lanes);
        float *sums = d.sums(args.workspace, at.group, block, at.chunk, at.part),
              *bias = sums + d.sum_floats() - block_width;
        copy_gradient_pairs(d, dy, rows, first, last, at.group * s.out + k_first, valid, gradient, bias);
        next.start_block(block, vectors);
        for (int64_t t = 0; t < s.row_taps(); ++t)
          for (int64_t q = 0; q < d.taps; ++q) {
            const int64_t offset = phase.taps[static_cast<size_t>(q)].column - s.column_low;
            int64_t found = 0;
            for (int64_t r = 0; r < rows.size(); ++r)
              if (const int32_t slot = slots[r * s.row_taps() + t]; slot >= 0) {
                const auto* row = reinterpret_cast<const T*>(patch + slot * d.row_words());
                segments[found++] = {
                    reinterpret_cast<const uint32_t*>(row + offset % phase.advance * d.pitch + offset / phase.advance),
                    gradient + r * d.run * block_width, ceil_div(last - first, 2), 0, channels};
              }
            if (!found) continue;
            Engine::for_blocks(channels, vectors, [&](int64_t c, int64_t size) {
              next.ask();
              float* sum = sums + ((t * d.taps + q) * channels + c) * block_width;
              Engine::block(size, vectors,
                            {segments, found, 0, c * d.channel_words, d.channel_words, 1, block_width, sum, block_width,
                             sum, block_width});
            });
          }
      }
    }
  }
}

template <class Engine>
std::unique_ptr<Prepared> prepare_pair_weights(const Problem& p) {
  return prepare_weights<typename Engine::Scope>(p, PairWeightsPlan<Engine>(p), pair_weights_task<Engine>);
}
