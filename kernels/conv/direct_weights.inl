// Direct weight and bias gradients, channels last: any rank, stride, dilation, padding, groups and tensor strides; f32,
// bf16 and f16 storage, f32 sums.
//
// Loops: a task is up to four blocks of 64 (AVX2: 16) output channels, a chunk of input channels and a part of the
// output rows. Per band of rows the distinct input rows are copied, widened and zero-padded, and for each block its
// gradients; the block's sums (row taps x column taps x channels x 64) stay in the second-level cache. For every row
// tap the register block takes 6 values of (column tap, channel) against the gradient's vectors and runs along the
// positions of the band. Where columns are dilated, positions that meet padding alone are cut off.
// Parts and bands depend on the problem alone, and a sum is the same in any chunk: the same bits for any number of
// threads.
// Limit: the f32 FMA rate; the gradient streams from the second-level cache, 21 bytes per cycle at two FMA per cycle.

constexpr int64_t weight_tasks = 64;              // about, for as many threads
constexpr int64_t weight_parts_bytes = 16 << 20;  // of sums at most for splitting positions
constexpr int64_t product_parts_bytes =
    6 << 20;  // the same for 1x1 in f32 and for narrow types, where clearing and adding up more shows

/// What a task covers.
struct WeightsTask {
  int64_t group, first_block, last_block, chunk, part;
};

/// Positions of a band and of one of its rows; bytes of a value in the patch, and at most of the sums of a block, of
/// the patch and of the sums of all parts; of 1x1 convolutions blocks of output channels of a task and, where more,
/// positions; positions of a step.
struct WeightsLayout {
  int64_t positions = 192, row_positions = 128, value_bytes = 4, sums_bytes = weight_cache, patch_bytes = patch_cache,
          parts_bytes = weight_parts_bytes, product_width = 4, product_positions = 256, step = 1;
};

struct WeightsPlan {
  explicit WeightsPlan(const Problem& p, const WeightsLayout& layout = WeightsLayout());
  DirectShape shape;
  int64_t grain = 8;       ///< channels that stay together
  int64_t task_width = 4;  ///< blocks of output channels per task
  int64_t chunk;           ///< channels of the largest chunk
  int64_t chunks, blocks, parts, bands, tiles, tile_positions, band_rows, patch_rows, row_floats, taps;
  Range channels(int64_t chunk_index) const {
    return split_range(shape.in, static_cast<int>(chunk_index), static_cast<int>(chunks), grain);
  }
  /// Cuts the input channels into chunks of nearly equal size, at most `fit` (a multiple of the grain).
  void cut_channels(int64_t fit) {
    chunks = ceil_div(shape.in, fit);
    chunk = even_chunk(chunks);
  }
  int64_t even_chunk(int64_t count) const {
    return std::min(shape.in, ceil_div(ceil_div(shape.in, grain), count) * grain);
  }
  /// Fewer channels a chunk, `step` by step, where that leaves the slowest thread less to do: a sum is the same in any
  /// chunk. Parts and bands stay those of the largest.
  void divide_channels(int threads, int64_t step) {
    constexpr int64_t copying = 16;  // a task's operands, in channels whose products take as long
    const int64_t tasks_each = shape.groups * task_blocks() * parts;
    cut_channels(smaller_chunk(chunk, step, [&](int64_t fit) {
      const int64_t count = ceil_div(shape.in, fit);
      return ceil_div(tasks_each * count, threads) * (even_chunk(count) + copying);
    }));
    row_floats = shape.columns(tile_positions) * chunk;
  }
  int64_t task_blocks() const { return ceil_div(blocks, task_width); }
  int64_t tasks() const { return shape.groups * task_blocks() * chunks * parts; }
  /// Sums of one block of output channels in one chunk and part: [tap][channel][64], then the bias.
  int64_t sum_floats() const { return (shape.row_taps() * taps * chunk + 1) * block_width; }
  /// Where output channel k of a block of `valid` stands in its sums.
  int64_t column(int64_t k, int64_t /*valid*/) const { return k; }
  float* sums(std::byte* workspace, int64_t group, int64_t block, int64_t chunk_index, int64_t part) const {
    return reinterpret_cast<float*>(workspace) +
           (((group * blocks + block) * chunks + chunk_index) * parts + part) * sum_floats();
  }
  WeightsTask task(int64_t index) const {
    const Range range = split_range(blocks, static_cast<int>(index / (parts * chunks) % task_blocks()),
                                    static_cast<int>(task_blocks()));
    return {index / (parts * chunks * task_blocks()), range.begin, range.end, index / parts % chunks, index % parts};
  }
  void clear(std::byte* workspace, const WeightsTask& t) const {
    for (int64_t block = t.first_block; block < t.last_block; ++block) {
      float* to = sums(workspace, t.group, block, t.chunk, t.part);
      std::fill(to, to + sum_floats(), 0.0f);
    }
  }
  int64_t sums_bytes() const { return round_up(shape.groups * blocks * chunks * parts * sum_floats() * 4, 64); }
  int64_t patch_bytes() const { return round_up(patch_rows * row_floats * 4, 64); }
  int64_t gradient_bytes() const { return round_up(band_rows * tile_positions * block_width * 4, 64); }
  /// A thread's memory beside the operands: segments, slots, sources.
  int64_t table_bytes() const {
    return round_up(band_rows * int64_t(sizeof(Segment<float>)), 64) + round_up(band_rows * shape.row_taps() * 4, 64) +
           round_up(patch_rows * 8, 64);
  }
  int64_t thread_bytes() const { return patch_bytes() + gradient_bytes() + table_bytes(); }
};

/// A thread's share of the workspace, for any plan of weight gradients.
template <class Word>
struct WeightsScratch {
  template <class Plan>
  WeightsScratch(const Plan& d, std::byte* at) {
    patch = reinterpret_cast<Word*>(at);
    gradient = reinterpret_cast<Word*>(at += d.patch_bytes());
    segments = reinterpret_cast<Segment<Word>*>(at += d.gradient_bytes());
    slots = reinterpret_cast<int32_t*>(at += round_up(d.band_rows * int64_t(sizeof(Segment<Word>)), 64));
    sources = reinterpret_cast<int64_t*>(at += round_up(d.band_rows * d.shape.row_taps() * 4, 64));
  }
  Word *patch, *gradient;
  Segment<Word>* segments;
  int32_t* slots;
  int64_t* sources;
};

WeightsPlan::WeightsPlan(const Problem& p, const WeightsLayout& layout) : shape(p) {
  taps = shape.column_taps;
  const bool product = shape.row_taps() * taps == 1;
  if (product) task_width = layout.product_width;
  const int64_t all = shape.row_taps() * std::max<int64_t>(1, taps);
  // Sums stay in cache, and so does the input of a long run of positions.
  cut_channels(std::clamp<int64_t>(layout.sums_bytes / (all * block_width * 4) / grain * grain, grain, 256));
  blocks = ceil_div(shape.out, block_width);
  tiles = ceil_div(shape.positions,
                   product ? std::max(layout.row_positions, layout.product_positions) : layout.row_positions);
  // One tile fewer or more where their rows fill steps better.
  const auto filled = [&](int64_t count) {
    return count * ceil_div(ceil_div(shape.positions, count), layout.step) * layout.step;
  };
  const int64_t wanted = tiles;
  for (int64_t other : {wanted - 1, wanted + 1})
    if (layout.step > 1 && other >= 1 && filled(other) < filled(tiles)) tiles = other;
  const auto tile_of = [&] { return ceil_div(shape.positions, tiles); };
  while (tile_of() > 12 &&
         shape.columns(tile_of()) * chunk * layout.value_bytes * shape.row_taps() > layout.patch_bytes)
    ++tiles;
  tile_positions = tile_of(), tiles = ceil_div(shape.positions, tile_positions);
  row_floats = shape.columns(tile_positions) * chunk;
  const int64_t affordable = std::max<int64_t>(
      1, (product ? product_parts_bytes : layout.parts_bytes) / (shape.groups * blocks * chunks * sum_floats() * 4));
  parts = std::min({even_parts(shape.groups * task_blocks() * chunks, weight_tasks), affordable, shape.rows()});
  // Which blocks share a task changes no sum: fewer where there are many threads.
  while (task_width > 1 && tasks() < 2 * p.threads) task_width = (task_width + 1) / 2;
  int64_t rows = std::max<int64_t>(
      1, (product ? std::max(layout.positions, layout.product_positions) : layout.positions) / tile_positions);
  for (;; rows = (rows + 1) / 2) {
    bands = parts * ceil_div(ceil_div(shape.rows(), parts), rows);
    patch_rows = std::max<int64_t>(1, RowSet::largest(shape, bands));
    if (rows == 1 || patch_rows * row_floats * layout.value_bytes <= layout.patch_bytes) break;
  }
  band_rows = ceil_div(shape.rows(), bands);
}

/// Calls f(q, n) for the vectors of a block of `valid` channels. Unrolled: what f keeps for every q stays in registers.
template <class F>
[[gnu::always_inline]] inline void for_block_vectors(int64_t valid, F&& f) {
#pragma GCC unroll 4
  for (int q = 0; q < block_vectors; ++q)
    if (const int64_t left = valid - q * Vec::lanes; left >= Vec::lanes)
      f(q, std::integral_constant<int64_t, 0>{});
    else if (left > 0)
      f(q, left);
}

/// Gradient rows of a band as [position][block_width], channels past the end zero; adds them to the bias sums.
template <class T>
void copy_gradient(const WeightsPlan& d, const T* dy, Range rows, int64_t first, int64_t last, int64_t channel,
                   int64_t valid, float* to, float* bias) {
  const TensorDesc& desc = d.shape.y;
  Vec total[block_vectors] = {};
  for_block_vectors(
      valid, [&](int q, auto n) __attribute__((always_inline)) { total[q] = get(bias + q * Vec::lanes, n); });
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = dy + DirectShape::row_offset(desc, r) + first * desc.stride[3] + channel;
    float* row = to + (r - rows.begin) * d.tile_positions * block_width;
    for (int64_t j = 0; j < last - first; ++j, from += desc.stride[3], row += block_width) {
      prefetch(from + 8 * desc.stride[3], valid * int64_t{sizeof(T)});
      if (valid < block_width) std::fill(row + valid / Vec::lanes * Vec::lanes, row + block_width, 0.0f);
      for_block_vectors(
          valid, [&](int q, auto n) __attribute__((always_inline)) {
            const Vec g = get(from + q * Vec::lanes, n);
            put(row + q * Vec::lanes, g, n);
            total[q] = total[q] + g;
          });
    }
  }
  for_block_vectors(
      valid, [&](int q, auto n) __attribute__((always_inline)) { put(bias + q * Vec::lanes, total[q], n); });
}

/// What a task of a 1x1 convolution copies next, asked for a share at a time between its products, which hide the
/// memory's latency: 1.02 to 1.3 times as fast on Zen 4, most where channels are few. Other kernels compute so long on
/// what they have copied that copying does not show.
template <class T>
class NextOperands {
 public:
  /// x and dy point at the task's first input channel and at the first output channel.
  NextOperands(const WeightsPlan& d, const WeightsTask& at, const T* x, const T* dy)
      : d_(d), s_(d.shape), at_(at), x_(x), dy_(dy), product_(s_.row_taps() * d.taps == 1) {}

  /// The task works on the tile that starts at position `first` of a band.
  void start(int64_t band, int64_t first) {
    if (!product_) return;
    rows_ = next_rows_ = RowSet::band(s_, band, d_.bands), first_ = first, next_first_ = first + d_.tile_positions;
    if (next_first_ >= s_.phases[0].count)
      next_rows_ = RowSet::band(s_, std::min(band + 1, d_.bands - 1), d_.bands), next_first_ = 0;
    next_x_ = lines(s_.x, x_ + next_first_ * x_step(), next_rows_, next_first_, x_step(), d_.channels(at_.chunk).size(),
                    [&](int64_t row) { return std::max<int64_t>(s_.source_row(row, 0), 0); });
  }
  /// Its products for a block of so many vectors of outputs begin.
  void start_block(int64_t block, int64_t vectors) {
    if (!product_) return;
    const int64_t turns = ceil_div(d_.channels(at_.chunk).size(), rows_beside(static_cast<int>(vectors)));
    const bool last = block + 1 == at_.last_block;
    const int64_t after = (last ? at_.first_block : block + 1) * block_width;
    const int64_t first = last ? next_first_ : first_, step = s_.y.stride[3];
    next_dy_ = lines(s_.y, dy_ + first * step + after, last ? next_rows_ : rows_, first, step,
                     std::min(block_width, s_.out - after), [](int64_t row) { return row; });
    next_dy_.share = ceil_div(next_dy_.left, turns);
    next_x_.share = ceil_div(next_x_.left, turns * (at_.last_block - block));
  }
  void ask() { next_x_.ask(), next_dy_.ask(); }

 private:
  struct Lines {
    const std::byte* at = nullptr;
    int64_t step = 0, bytes = 0;              ///< between positions; of one
    int64_t row = 0, row_gap = 0;             ///< positions of a row; bytes from behind it to the next
    int64_t in_row = 0, left = 0, share = 0;  ///< positions left in the row and in all; of a turn
    void ask() {
      const int64_t end = std::max<int64_t>(left - share, 0);
      for (; left > end; --left, at += step) {
        if (in_row == 0) in_row = row, at += row_gap;
        --in_row;
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
      }
    }
  };
  /// `row_of` gives a row's place in the tensor; rows keep the distance of the first two.
  template <class Row>
  Lines lines(const TensorDesc& desc, const T* from, Range rows, int64_t first, int64_t step, int64_t channels,
              Row row_of) const {
    const int64_t start = DirectShape::row_offset(desc, row_of(rows.begin)),
                  row = std::min(d_.tile_positions, s_.phases[0].count - first);
    Lines l{reinterpret_cast<const std::byte*>(from + start), step * size, channels * size, row, 0, row, 0, 0};
    if (rows.size() > 1)
      l.row_gap = (DirectShape::row_offset(desc, row_of(rows.begin + 1)) - start - row * step) * size;
    l.left = rows.size() * row;
    return l;
  }
  int64_t x_step() const { return s_.phases[0].advance * s_.x.stride[3]; }

  static constexpr int64_t size = sizeof(T);
  const WeightsPlan& d_;
  const DirectShape& s_;
  const WeightsTask at_;
  const T *x_, *dy_;
  const bool product_;
  Range rows_{0, 0}, next_rows_{0, 0};
  int64_t first_ = 0, next_first_ = 0;
  Lines next_x_, next_dy_;
};

template <class T>
void weights_task(const WeightsPlan& d, const KernelArgs& args, int64_t task, std::byte* memory) {
  const DirectShape& s = d.shape;
  const ColumnPhase& phase = s.phases[0];
  const auto [patch, gradient, segments, slots, sources] = WeightsScratch<float>(d, memory);
  const WeightsTask at = d.task(task);
  const Range input = d.channels(at.chunk);
  const int64_t channels = input.size();
  const T *x = args.in[0].data<T>() + at.group * s.in + input.begin, *dy = args.in[1].data<T>();
  d.clear(args.workspace, at);
  NextOperands<T> next(d, at, x, dy + at.group * s.out);
  const int64_t per_part = d.bands / d.parts;
  for (int64_t b = at.part * per_part; b < (at.part + 1) * per_part; ++b) {
    const Range rows = RowSet::band(s, b, d.bands);
    const int64_t count = RowSet::collect(s, rows.begin, rows.size(), slots, sources);
    for (int64_t first = 0; first < phase.count; first += d.tile_positions) {
      const int64_t last = std::min(first + d.tile_positions, phase.count);
      for (int64_t i = 0; i < count; ++i)
        copy_columns(s.x, x + DirectShape::row_offset(s.x, sources[i]), phase.advance * first + s.column_low,
                     s.columns(last - first), channels, patch + i * d.row_floats);
      next.start(b, first);
      for (int64_t block = at.first_block; block < at.last_block; ++block) {
        const int64_t k_first = block * block_width, valid = std::min(block_width, s.out - k_first),
                      vectors = ceil_div(valid, Vec::lanes);
        float *sums = d.sums(args.workspace, at.group, block, at.chunk, at.part),
              *bias = sums + d.sum_floats() - block_width;
        copy_gradient(d, dy, rows, first, last, at.group * s.out + k_first, valid, gradient, bias);
        next.start_block(block, vectors);
        for (int64_t t = 0; t < s.row_taps(); ++t)
          for (int64_t q = 0; q < (phase.contiguous ? std::min<int64_t>(1, d.taps) : d.taps); ++q) {
            const int64_t column = phase.taps[static_cast<size_t>(q)].column;
            int64_t low = 0, high = last - first, found = 0;
            if (!phase.contiguous) {
              const Range inside = s.inside(phase, phase.taps[static_cast<size_t>(q)]);
              low = std::clamp(inside.begin - first, low, high), high = std::clamp(inside.end - first, low, high);
            }
            for (int64_t r = 0; r < rows.size() && low < high; ++r)
              if (const int32_t slot = slots[r * s.row_taps() + t]; slot >= 0)
                segments[found++] = {
                    patch + slot * d.row_floats + (column - s.column_low + low * phase.advance) * channels,
                    gradient + (r * d.tile_positions + low) * block_width, high - low, 0, 1};
            if (!found) continue;
            for_row_blocks(phase.contiguous ? d.taps * channels : channels, vectors, [&](int64_t m, int64_t size) {
              next.ask();
              float* sum = sums + ((t * d.taps + q) * channels + m) * block_width;
              run_block<RegisterBlock<F32Dot, false>>(size, vectors,
                                                      {segments, found, 0, m, 1, phase.advance * channels, block_width,
                                                       sum, block_width, sum, block_width});
            });
          }
      }
    }
  }
}

/// Adds the parts in order and turns [tap][channel][64] into K, KD, KH, KW, C.
template <class Plan>
inline void weights_finish(const Plan& d, int threads, const KernelArgs& args) {
  const DirectShape& s = d.shape;
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  const int64_t per_k = s.row_taps() * s.kernel[2] * s.in;
  if (d.taps < s.kernel[2]) std::fill(dw, dw + s.groups * s.out * per_k, 0.0f);     // taps that only meet padding
  const int64_t kept = s.row_taps() * d.taps, slices = std::max<int64_t>(1, kept);  // the bias goes with the first
  parallel_ranges(s.groups * d.blocks * d.chunks * slices, threads, 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t tap = i % slices, chunk = i / slices % d.chunks, block = i / (slices * d.chunks) % d.blocks,
                    group = i / (slices * d.chunks * d.blocks);
      const Range input = d.channels(chunk);
      const int64_t channels = input.size();
      const int64_t k_first = group * s.out + block * block_width,
                    valid = std::min(block_width, s.out - block * block_width);
      float* sums = d.sums(args.workspace, group, block, chunk, 0);
      const auto add_parts = [&](float* to, int64_t count) {
        for (int64_t part = 1; part < d.parts; ++part)
          for_vectors(0, count, [&](int64_t at, auto n) {
            put(to + at, get(to + at, n) + get(to + part * d.sum_floats() + at, n), n);
          });
      };
      if (tap < kept) {
        const int64_t t = tap / d.taps, q = tap % d.taps;
        float* from = sums + tap * channels * block_width;
        add_parts(from, channels * block_width);
        for (int64_t c = 0; c < channels; c += 16)  // sixteen cache lines serve all output channels
          for (int64_t k = 0; k < valid; ++k) {
            const float* column = from + c * block_width + d.column(k, valid);
            float* to = dw + (k_first + k) * per_k +
                        (t * s.kernel[2] + s.phases[0].taps[static_cast<size_t>(q)].weight) * s.in + input.begin + c;
            for (int64_t e = 0; e < std::min<int64_t>(16, channels - c); ++e) to[e] = column[e * block_width];
          }
      }
      if (tap == 0 && chunk == 0) {
        float* bias = sums + d.sum_floats() - block_width;
        add_parts(bias, block_width);
        for (int64_t k = 0; k < valid; ++k) db[k_first + k] = bias[d.column(k, valid)];
      }
    }
  });
}

Support supports_direct_weights(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (!p.out[0].dense()) return Support::no("writes dense gradients, found " + p.out[0].str());
  if (is_depthwise(p)) return Support::no("leaves depthwise convolutions to their own kernel");
  return Support::yes();
}

/// Runs `task(args, index, memory)` for every task of a plan, then adds up. `Scope` lives on each thread meanwhile.
template <class Scope, class Plan, class Task>
std::unique_ptr<Prepared> prepare_weights(const Problem& p, const Plan& d, Task task) {
  const int64_t sums = d.sums_bytes();
  return std::make_unique<PreparedFunction>(
      [threads = p.threads, d, sums, task](const KernelArgs& args) {
        parallel_threads(threads, [&](int thread) {
          const Scope scope;
          const Range mine = split_range(d.tasks(), thread, threads);
          for (int64_t i = mine.begin; i < mine.end; ++i)
            task(d, args, i, args.workspace + sums + thread * d.thread_bytes());
        });
        weights_finish(d, threads, args);
      },
      sums + p.threads * d.thread_bytes(), std::to_string(d.parts) + " parts, " + std::to_string(d.chunks) + " chunks");
}

inline std::unique_ptr<Prepared> prepare_direct_weights(const Problem& p) {
  WeightsPlan plan(p);
  plan.divide_channels(p.threads, plan.grain);
  return prepare_weights<F32Engine::Scope>(
      p, plan, [type = p.in[0].dtype](const WeightsPlan& d, const KernelArgs& args, int64_t task, std::byte* memory) {
        by_storage(type, [&](auto zero) { weights_task<decltype(zero)>(d, args, task, memory); });
      });
}
