// Weight gradient of a convolution whose output went through a 2x2x2 max-pool: exactly one of eight positions per cell
// and channel carries a gradient, so the sums run over cells, not positions: an eighth of the dense arithmetic, and the
// un-pooled gradient is never stored.
//
// Loops: a task is a slice of 16 input channels, a group of output channels (all of them, unless fewer leave the
// slowest thread less) and a part of the blocks of pooled cells. The input under a block is copied, zero-padded and
// widened to f32, into a patch that stays in the first-level cache; gradients and window offsets (from the arg-max
// byte) of the block go beside it, turned so that a channel's follow each other. Then for every output channel the
// accumulators of all taps, or of as many as there are registers for (AVX2), stay in registers over the cells of the
// block: per cell one broadcast, and multiply-adds with the input as memory operand.
// Channels: multiples of 16, or 4 (three taps of four channels are 12 contiguous floats).
// Parts depend on the problem alone and their sums are added in order: the same bits for any number of threads.
// Limit: an eighth of the dense count at the FMA rate; accumulators pass through the second-level cache once per block.
//
// Refuses: other geometries than 3x3x3 stride 1 padding 1 before 2x2x2 stride 2, odd extents, strided tensors.

constexpr int64_t sparse_tasks = 32;            // at least, where there are blocks and memory for them
constexpr int64_t sparse_sum_bytes = 24 << 20;  // of all tasks' accumulators at most
constexpr int64_t sparse_few_bytes = 12 << 20;  // there are more parts while their accumulators are so few,
constexpr int64_t sparse_few_blocks = 4;        // and their blocks enough to be worth those
constexpr int64_t sparse_copying = 8;           // a block's copies, in output channels whose sums take as long

/// The patch under a block of cells, with a border of one, in floats: constants, so that the 27 windows are offsets in
/// the instructions. `runs`: accumulators of 16 floats per (kd, kh).
template <int64_t depth, int64_t height, int64_t width, int64_t lanes, int runs_>
struct SparsePatch {
  static constexpr Int3 block{depth, height, width};  // cells along D, H, W
  static constexpr int64_t lane_step = lanes, row = (2 * width + 2) * lanes, plane = (2 * height + 2) * row;
  static constexpr int64_t floats = (2 * depth + 2) * plane + 16;  // the last run reads up to 16 floats past its window
  static constexpr int runs = runs_;
  static_assert(floats % 16 == 0);  // what follows the patch starts on a cache line
};
// 32 and 38 KiB; 17 and 23 KiB for AVX2, whose machines have first-level caches of 32 KiB.
using FourChannels = SparsePatch<2, 4, Vec::lanes, 4, 1>;
using SixteenChannels = SparsePatch<2, Vec::lanes / 4, 4, 16, 3>;

struct SparseShape {
  Shape x, cells;
  Int3 block;  // cells of a block along D, H, W
  Int3 blocks;
  int64_t slices, patch, cell_pitch, block_count, parts;      // cell_pitch: cells of a block, in whole vectors
  int64_t taps;                                               // accumulator floats of one output channel
  int64_t width, groups;                                      // output channels of a task, tasks that they make
  int64_t task_floats() const { return width * (taps + 1); }  // sums, then the bias
  int64_t tasks() const { return slices * groups * parts; }
  int64_t first_task(int64_t slice, int64_t group) const { return (slice * groups + group) * parts; }
  int64_t thread_floats() const { return patch + 2 * cell_floats(); }
  int64_t cell_floats() const { return cell_pitch * round_up(width, 16); }
};

/// Into how many parts blocks are cut, whatever the number of threads.
inline int64_t sparse_parts(const SparseShape& s) {
  const int64_t wanted = ceil_div(sparse_tasks, s.slices), bytes = s.slices * s.cells.c() * (s.taps + 1) * 4;
  for (int64_t times : {6, 3})  // 192 or 96 tasks divide evenly for most numbers of threads
    if (times * wanted <= std::min(sparse_few_bytes / bytes, s.block_count / sparse_few_blocks)) return times * wanted;
  return std::clamp<int64_t>(wanted, 1, std::min(std::max<int64_t>(1, sparse_sum_bytes / bytes), s.block_count));
}

inline SparseShape sparse_shape(const Problem& p) {
  SparseShape s;
  s.x = p.in[0].shape, s.cells = p.in[1].shape;
  const bool four = s.x.c() == 4;
  s.slices = four ? 1 : s.x.c() / 16, s.patch = four ? FourChannels::floats : SixteenChannels::floats;
  const Int3 wanted = four ? FourChannels::block : SixteenChannels::block;
  s.block_count = s.cells.n();
  for (int i = 0; i < 3; ++i) {
    s.block[i] = std::min(wanted[i], s.cells[i + 1]);
    s.blocks[i] = ceil_div(s.cells[i + 1], s.block[i]);
    s.block_count *= s.blocks[i];
  }
  s.cell_pitch = round_up(s.block[0] * s.block[1] * s.block[2], 16);
  s.taps = 9 * 16 * (four ? FourChannels::runs : SixteenChannels::runs);
  s.parts = sparse_parts(s);
  const int64_t out = s.cells.c();
  const auto width = [&](int64_t groups) { return std::min(out, round_up(ceil_div(out, groups), 16)); };
  s.width = width(cheapest(ceil_div(out, 16), [&](int64_t groups) {
    const int64_t tasks = s.slices * ceil_div(out, width(groups)) * s.parts;
    return ceil_div(tasks, p.threads) * (width(groups) + sparse_copying);
  }));
  s.groups = ceil_div(out, s.width);
  return s;
}

struct CellBlock {
  int64_t n;
  Int3 first, count;  // cells
};
inline CellBlock cell_block(const SparseShape& s, int64_t index) {
  const int64_t at[3] = {index / (s.blocks[1] * s.blocks[2]) % s.blocks[0], index / s.blocks[2] % s.blocks[1],
                         index % s.blocks[2]};
  CellBlock b{index / (s.blocks[0] * s.blocks[1] * s.blocks[2]), {}, {}};
  for (int i = 0; i < 3; ++i)
    b.first[i] = at[i] * s.block[i], b.count[i] = std::min(s.block[i], s.cells[i + 1] - b.first[i]);
  return b;
}

/// The input under a block with a border of one, zero outside the image, one slice of channels.
template <class Patch, class T>
void copy_patch(const SparseShape& s, const TensorDesc& desc, const T* x, const CellBlock& b, int64_t slice,
                float* to) {
  const int64_t channels = s.x.c(), width = std::min<int64_t>(channels, 16), columns = 2 * b.count[2] + 2,
                left = 2 * b.first[2] - 1;
  const int64_t low = std::max<int64_t>(0, -left), high = std::min(columns, s.x.w() - left);
  for (int64_t i = 0; i < 2 * b.count[0] + 2; ++i)
    for (int64_t j = 0; j < 2 * b.count[1] + 2; ++j) {
      const int64_t d = 2 * b.first[0] - 1 + i, h = 2 * b.first[1] - 1 + j;
      float* row = to + i * Patch::plane + j * Patch::row;
      if (d < 0 || d >= s.x.d() || h < 0 || h >= s.x.h()) {
        std::fill(row, row + columns * Patch::lane_step, 0.0f);
        continue;
      }
      const T* from = x + desc.offset(b.n, d, h, 0) + slice * 16;
      std::fill(row, row + low * Patch::lane_step, 0.0f);
      std::fill(row + high * Patch::lane_step, row + columns * Patch::lane_step, 0.0f);
      // The next block's columns are asked for: rows are too short for a prefetcher.
      const T* next = from + (left + columns) * channels;
      if (channels == width) {  // one contiguous run
        prefetch(next, 2 * Patch::block[2] * width * int64_t{sizeof(T)});
        for_vectors(0, (high - low) * width, [&](int64_t k, auto count) {
          put(row + low * width + k, get(from + (left + low) * width + k, count), count);
        });
      } else {
        for (int64_t c = 0; c < 2 * Patch::block[2]; ++c) __builtin_prefetch(next + c * channels);
        for (int64_t c = low; c < high; ++c)
#pragma GCC unroll 2
          for (int64_t k = 0; k < 16; k += Vec::lanes) store(row + c * 16 + k, load(from + (left + c) * channels + k));
      }
    }
}

/// Gradients (slope applied, rounded to the storage type) and window offsets of a block for output channels [first,
/// last), [channel][s.cell_pitch]: an output channel then walks along cells.
template <class Patch, class T>
void read_cells(const SparseShape& s, const Problem& p, const KernelArgs& args, float slope, const CellBlock& b,
                int64_t first, int64_t last, float* gradient, int32_t* offset, float* bias) {
  constexpr int lanes = Vec::lanes;
  const Vec none = Vec::all(0.0f), leak = Vec::all(slope);
  int32_t in_window[lanes];
  for (int k = 0; k < lanes; ++k)
    in_window[k] =
        static_cast<int32_t>((k >> 2 & 1) * Patch::plane + (k >> 1 & 1) * Patch::row + (k & 1) * Patch::lane_step);
  const Ints positions = load_ints(in_window);
  for_vectors(0, last - first, [&](int64_t c, auto count) {
    Vec gradients[lanes], offsets[lanes];
    int64_t cell = 0;
    const auto turn_to = [&](const Vec* rows, float* to) {
      Vec words[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) words[i] = rows[i];
      turn(words);
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) store(to + (c + i) * s.cell_pitch, words[i]);
    };
    const auto flush = [&](int64_t at) {
      turn_to(gradients, gradient + at), turn_to(offsets, reinterpret_cast<float*>(offset) + at);
    };
    Vec total = none;
    const int64_t next_block = Patch::block[2] * s.cells.c();
    for (int64_t i = 0; i < b.count[0]; ++i)
      for (int64_t j = 0; j < b.count[1]; ++j)
        for (int64_t k = 0; k < b.count[2]; ++k, ++cell) {
          const int64_t at = p.in[1].offset(b.n, b.first[0] + i, b.first[1] + j, b.first[2] + k) + first + c;
          const T *dy = args.in[1].data<T>() + at, *y = args.in[2].data<T>() + at;
          for (const T* ahead : {dy, y}) __builtin_prefetch(ahead + next_block);
          const Vec g = rounded(T{}, leaky_gradient(get(dy, count), get(y, count), leak));
          total = total + g;
          const auto corner = static_cast<int32_t>(2 * (i * Patch::plane + j * Patch::row + k * Patch::lane_step));
          gradients[cell % lanes] = g;
          offsets[cell % lanes] =
              as_floats(look_up_lane(positions, get_bytes(args.in[3].data<uint8_t>() + at, count)) + Ints::all(corner));
          if (cell % lanes == lanes - 1) flush(cell - (lanes - 1));
        }
    if (cell % lanes) {
      for (int64_t i = cell % lanes; i < lanes; ++i) gradients[i] = offsets[i] = none;
      flush(cell - cell % lanes);
    }
    if (bias) put(bias + c, get(bias + c, count) + total, count);
  });
}

/// total[first to first + count][runs] += g * window for the cells of a block, one output channel: as many of the nine
/// (kd, kh) as fit in registers.
template <class Patch, int first, int count>
inline void accumulate_taps(const float* patch, const float* gradient, const int32_t* offset, int64_t cells,
                            float* total) {
  constexpr int vectors = Patch::runs * 16 / Vec::lanes;
  Vec sum[count][vectors];
  total += first * Patch::runs * 16;
#pragma GCC unroll 9
  for (int t = 0; t < count; ++t)
#pragma GCC unroll 6
    for (int r = 0; r < vectors; ++r) sum[t][r] = load(total + (t * vectors + r) * Vec::lanes);
  for (int64_t i = 0; i < cells; ++i) {
    const Vec g = Vec::all(gradient[i]);
    const float* window = patch + offset[i];
#pragma GCC unroll 9
    for (int t = 0; t < count; ++t)
#pragma GCC unroll 6
      for (int r = 0; r < vectors; ++r)
        sum[t][r] =
            fma(g, load(window + ((first + t) / 3) * Patch::plane + ((first + t) % 3) * Patch::row + r * Vec::lanes),
                sum[t][r]);
  }
#pragma GCC unroll 9
  for (int t = 0; t < count; ++t)
#pragma GCC unroll 6
    for (int r = 0; r < vectors; ++r) store(total + (t * vectors + r) * Vec::lanes, sum[t][r]);
}

/// The nine (kd, kh) in as few, nearly equal turns as the registers allow.
template <class Patch, int first = 0>
inline void accumulate(const float* patch, const float* gradient, const int32_t* offset, int64_t cells, float* total) {
  constexpr int vectors = Patch::runs * 16 / Vec::lanes, sums = Vec::lanes == 16 ? 27 : 13,
                turns = ceil_div(9 * vectors, sums);
  constexpr int count = std::min<int>(ceil_div(9, turns), 9 - first);
  accumulate_taps<Patch, first, count>(patch, gradient, offset, cells, total);
  if constexpr (first + count < 9) accumulate<Patch, first + count>(patch, gradient, offset, cells, total);
}

template <class Patch, class T>
void sparse_task(const SparseShape& s, const Problem& p, const KernelArgs& args, int64_t task, float* total,
                 float* memory) {
  const int64_t slice = task / (s.parts * s.groups), first = task / s.parts % s.groups * s.width,
                last = std::min(first + s.width, s.cells.c());
  const auto slope = static_cast<float>(p.op.as<ConvPoolAttrs>().pool.activation.slope);
  float *patch = memory, *gradient = patch + s.patch, *bias = total + s.width * s.taps;
  auto* offset = reinterpret_cast<int32_t*>(gradient + s.cell_floats());
  std::fill(patch, patch + s.patch, 0.0f);
  std::fill(total, total + s.task_floats(), 0.0f);
  const Range mine = split_range(s.block_count, static_cast<int>(task % s.parts), static_cast<int>(s.parts));
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const CellBlock b = cell_block(s, i);
    copy_patch<Patch>(s, p.in[0], args.in[0].data<T>(), b, slice, patch);
    read_cells<Patch, T>(s, p, args, slope, b, first, last, gradient, offset, slice == 0 ? bias : nullptr);
    const int64_t cells = b.count[0] * b.count[1] * b.count[2];
    for (int64_t k = 0; k < last - first; ++k)
      accumulate<Patch>(patch, gradient + k * s.cell_pitch, offset + k * s.cell_pitch, cells, total + k * s.taps);
  }
}

/// Adds the parts in order and brings them into K, 3, 3, 3, C.
inline void sparse_finish(const SparseShape& s, int threads, const KernelArgs& args) {
  constexpr int64_t depths = 3, prefetched_parts = 4;  // a depth of taps at a time: a contiguous run of every part
  const auto* sums = reinterpret_cast<const float*>(args.workspace);
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  const int64_t channels = s.cells.c(), inputs = s.x.c(), width = std::min<int64_t>(inputs, 16), run = s.taps / depths;
  parallel_ranges(channels * s.slices * depths, threads, 1, [&](Range range) {
    alignas(64) float total[SixteenChannels::runs * depths * 16];
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t depth = i % depths, slice = i / depths % s.slices, k = i / (depths * s.slices), group = k / s.width,
                    in_group = k % s.width;
      const float *of_group = sums + s.first_task(slice, group) * s.task_floats(),
                  *from = of_group + in_group * s.taps + depth * run;
      std::copy(from, from + run, total);
      for (int64_t part = 1; part < s.parts; ++part) {
        from += s.task_floats();
        if (part + prefetched_parts < s.parts)
          prefetch(from + prefetched_parts * s.task_floats(), run * int64_t{sizeof(float)});
        for (int64_t j = 0; j < run; j += Vec::lanes) store(total + j, load(total + j) + load(from + j));
      }
      for (int64_t tap = 0; tap < 9; ++tap) {
        const float* taps = total + (inputs == 4 ? tap / 3 * 16 + tap % 3 * 4 : tap * 16);
        float* to = dw + (k * 27 + 9 * depth + tap) * inputs + slice * 16;
        for_vectors(0, width, [&](int64_t c, auto count) { put(to + c, get(taps + c, count), count); });
      }
      if (slice > 0 || depth > 0) continue;
      const float* bias = of_group + s.width * s.taps + in_group;
      float sum = 0;
      for (int64_t part = 0; part < s.parts; ++part) sum += bias[part * s.task_floats()];
      db[k] = sum;
    }
  });
}

std::unique_ptr<Prepared> prepare_pool_sparse(const Problem& p) {
  const SparseShape s = sparse_shape(p);
  const int64_t sums = round_up(s.tasks() * s.task_floats(), 16);
  return prepared(
      [p, s, sums](const KernelArgs& args) {
        auto* workspace = reinterpret_cast<float*>(args.workspace);
        UnitCounter tasks(s.tasks());
        parallel_threads(p.threads, [&](int thread) {
          for (int64_t task; (task = tasks.take()) >= 0;)
            by_storage(p.in[0].dtype, [&](auto zero) {
              using T = decltype(zero);
              const auto run = s.x.c() == 4 ? sparse_task<FourChannels, T> : sparse_task<SixteenChannels, T>;
              run(s, p, args, task, workspace + task * s.task_floats(), workspace + sums + thread * s.thread_floats());
            });
        });
        sparse_finish(s, p.threads, args);
      },
      (sums + p.threads * s.thread_floats()) * 4);
}

Support supports_pool_sparse(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  const auto& a = p.op.as<ConvPoolAttrs>();
  const Int3 one{1, 1, 1}, two{2, 2, 2}, three{3, 3, 3}, zero{0, 0, 0};
  if (a.conv.result_size != three || a.conv.stride != one || a.conv.dilation != one || a.conv.groups != 1 ||
      a.conv.pad_low != one || a.conv.pad_high != one)
    return Support::no("needs a 3x3x3 convolution, stride 1, padding 1");
  const PoolAttrs& pool = a.pool.pool;
  if (pool.kernel != two || pool.stride != two || pool.pad_low != zero || pool.pad_high != zero)
    return Support::no("needs a 2x2x2 pool without overlap or padding");
  if (a.pool.activation.function != Activation::leaky_relu) return Support::no("fuses leaky_relu only");
  const Shape &x = p.in[0].shape, &cells = p.in[1].shape;
  if (x.d() != 2 * cells.d() || x.h() != 2 * cells.h() || x.w() != 2 * cells.w())
    return Support::no("needs even extents, found " + x.str());
  if (x.c() != 4 && x.c() % 16)
    return Support::no("needs 4 input channels or a multiple of 16, found " + std::to_string(x.c()));
  return needs_dense(p);
}
