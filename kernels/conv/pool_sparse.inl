// Weight gradient of a convolution whose output went through a 2x2x2 max-pool: exactly one of eight positions per cell and
// channel carries a gradient, so the sums run over cells, not positions: an eighth of the dense arithmetic, and the
// un-pooled gradient is never stored.
//
// Loops: a strip of pooled cells along W at a time. The 4x4 input rows that its windows can touch are copied, zero-padded
// and widened to f32, into a buffer that stays in the first cache levels; gradients and window offsets (from the arg-max
// byte) of the strip go beside it. Then for every output channel the 9 (kd, kh) x `runs` accumulators stay in registers
// over the strip: per cell one broadcast and 9 * runs multiply-adds with the input as memory operand.
// Channels: 4 (three taps of four channels are 12 contiguous floats: one run) or multiples of 16 (three runs per slice).
//
// Refuses: other geometries than 3x3x3 stride 1 padding 1 before 2x2x2 stride 2, odd extents, strided tensors. The sum over
// threads runs in thread order: the same bits for the same thread count.

constexpr int64_t strip_cells = 16;

struct SparseShape {
  Shape x, cells;
  int64_t slices, lane_step, row, buffer, taps;  // floats: between w positions, per input row, of the patch; per channel
};

inline SparseShape sparse_shape(const Problem& p) {
  SparseShape s;
  s.x = p.in[0].shape, s.cells = p.in[1].shape;
  s.slices = s.x.c() == 4 ? 1 : s.x.c() / 16;
  s.lane_step = s.x.c() == 4 ? 4 : 16;
  s.row = (2 * strip_cells + 2) * s.lane_step;
  s.buffer = s.slices * 16 * s.row + 16;  // the last run reads up to 16 floats past its window
  s.taps = s.slices * (s.x.c() == 4 ? 9 : 27) * 16;
  return s;
}

inline int64_t sparse_thread_floats(const SparseShape& s) {
  const int64_t strip = strip_cells * s.cells.c();
  return (s.buffer + 2 * strip + s.cells.c() * (s.taps + 1) + 63) / 16 * 16;
}

/// Input rows 2d-1..2d+2, 2h-1..2h+2 and columns from 2w-1, zero outside the image, one slice of 16 channels after another.
template <class T>
void copy_patch(const SparseShape& s, const TensorDesc& desc, const T* x, int64_t n, int64_t d, int64_t h, int64_t w, int64_t cells, float* to) {
  const int64_t channels = s.x.c(), width = std::min<int64_t>(channels, 16);
  for (int64_t slice = 0; slice < s.slices; ++slice)
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t id = 2 * d - 1 + i / 4, ih = 2 * h - 1 + i % 4;
      float* row = to + (slice * 16 + i) * s.row;
      const int64_t columns = 2 * cells + 2;
      if (id < 0 || id >= s.x.d() || ih < 0 || ih >= s.x.h()) {
        std::fill(row, row + columns * s.lane_step, 0.0f);
        continue;
      }
      const T* from = x + desc.offset(n, id, ih, 0) + slice * 16;
      const int64_t first = 2 * w - 1, low = std::max<int64_t>(0, -first), high = std::min(columns, s.x.w() - first);
      std::fill(row, row + low * s.lane_step, 0.0f);
      std::fill(row + high * s.lane_step, row + columns * s.lane_step, 0.0f);
      if (channels == width) {  // one contiguous run
        for_vectors(0, (high - low) * width, [&](int64_t k, auto count) { put(row + low * width + k, get(from + (first + low) * width + k, count), count); });
      } else {
        for (int64_t c = low; c < high; ++c)
          for_vectors(0, width, [&](int64_t k, auto count) { put(row + c * 16 + k, get(from + (first + c) * channels + k, count), count); });
      }
    }
}

/// Gradients (slope applied, rounded to the storage type) and window offsets of a strip, cell-major.
template <class T>
void read_strip(const SparseShape& s, const Problem& p, const KernelArgs& args, float slope, int64_t n, int64_t d, int64_t h, int64_t w, int64_t cells, float* gradient, int32_t* offset, float* bias) {
  const int64_t channels = s.cells.c(), at = p.in[1].offset(n, d, h, w);
  const T *dy = args.in[1].data<T>() + at, *y = args.in[2].data<T>() + at;
  const uint8_t* arg = args.in[3].data<uint8_t>() + at;
  const Vec none = Vec::all(0.0f), one = Vec::all(1.0f), leak = Vec::all(slope);
  int32_t position[8];
  for (int k = 0; k < 8; ++k) position[k] = static_cast<int32_t>(((k >> 2) * 4 + (k >> 1 & 1)) * s.row + (k & 1) * s.lane_step);
  for (int64_t i = 0; i < cells; ++i) {
    for_vectors(0, channels, [&](int64_t c, auto count) {
      const int64_t k = i * channels + c;
      const Vec g = rounded_to<T>(get(dy + k, count) * select(greater(get(y + k, count), none), one, leak));
      put(gradient + k, g, count);
      put(bias + c, get(bias + c, count) + g, count);
    });
    const auto column = static_cast<int32_t>(2 * i * s.lane_step);
    for (int64_t c = 0; c < channels; ++c) offset[i * channels + c] = position[arg[i * channels + c]] + column;
  }
}

/// total[9][runs] += g * window for the cells of a strip, one output channel.
template <int runs>
inline void accumulate(const float* patch, int64_t row, const float* gradient, const int32_t* offset, int64_t channels, int64_t cells, float* total) {
  Vec sum[9][runs];
#pragma GCC unroll 9
  for (int t = 0; t < 9; ++t)
#pragma GCC unroll 3
    for (int r = 0; r < runs; ++r) sum[t][r] = load(total + (t * runs + r) * 16);
  const int64_t down = 4 * row;
  for (int64_t i = 0; i < cells; ++i) {
    const Vec g = Vec::all(gradient[i * channels]);
    const float* window = patch + offset[i * channels];
#pragma GCC unroll 9
    for (int t = 0; t < 9; ++t)
#pragma GCC unroll 3
      for (int r = 0; r < runs; ++r) sum[t][r] = fma(g, load(window + (t / 3) * down + (t % 3) * row + r * 16), sum[t][r]);
  }
#pragma GCC unroll 9
  for (int t = 0; t < 9; ++t)
#pragma GCC unroll 3
    for (int r = 0; r < runs; ++r) store(total + (t * runs + r) * 16, sum[t][r]);
}

template <class T>
void sparse_rows(const SparseShape& s, const Problem& p, const KernelArgs& args, Range rows, float* memory) {
  const int64_t channels = s.cells.c(), strip = strip_cells * channels;
  const auto slope = static_cast<float>(p.op.as<ConvPoolAttrs>().pool.activation.slope);
  float *patch = memory, *gradient = patch + s.buffer, *total = gradient + 2 * strip, *bias = total + channels * s.taps;
  auto* offset = reinterpret_cast<int32_t*>(gradient + strip);
  std::fill(patch, patch + s.buffer, 0.0f);
  std::fill(total, bias + channels, 0.0f);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t n = r / (s.cells.d() * s.cells.h()), d = r / s.cells.h() % s.cells.d(), h = r % s.cells.h();
    for (int64_t w = 0; w < s.cells.w(); w += strip_cells) {
      const int64_t cells = std::min(strip_cells, s.cells.w() - w);
      copy_patch(s, p.in[0], args.in[0].data<T>(), n, d, h, w, cells, patch);
      read_strip<T>(s, p, args, slope, n, d, h, w, cells, gradient, offset, bias);
      for (int64_t slice = 0; slice < s.slices; ++slice)
        for (int64_t k = 0; k < channels; ++k) {
          const float* from = patch + slice * 16 * s.row;
          if (s.x.c() == 4) accumulate<1>(from, s.row, gradient + k, offset + k, channels, cells, total + k * s.taps);
          else accumulate<3>(from, s.row, gradient + k, offset + k, channels, cells, total + k * s.taps + slice * 27 * 16);
        }
    }
  }
}

/// Adds the threads' sums in thread order and brings them into K, 3, 3, 3, C.
inline void sparse_finish(const SparseShape& s, int threads, const KernelArgs& args, int64_t thread_floats, int64_t sums_at) {
  const auto* memory = reinterpret_cast<const float*>(args.workspace);
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  const int64_t channels = s.cells.c(), inputs = s.x.c();
  parallel_ranges(channels, threads, 1, [&](Range range) {
    for (int64_t k = range.begin; k < range.end; ++k) {
      for (int64_t tap = 0; tap < 27; ++tap)
        for (int64_t c = 0; c < inputs; ++c) {
          const int64_t at = inputs == 4 ? tap / 3 * 16 + tap % 3 * 4 + c : (c / 16 * 27 + tap) * 16 + c % 16;
          float sum = 0;
          for (int t = 0; t < threads; ++t) sum += memory[t * thread_floats + sums_at + k * s.taps + at];
          dw[(k * 27 + tap) * inputs + c] = sum;
        }
      float sum = 0;
      for (int t = 0; t < threads; ++t) sum += memory[t * thread_floats + sums_at + channels * s.taps + k];
      db[k] = sum;
    }
  });
}

std::unique_ptr<Prepared> prepare_pool_sparse(const Problem& p) {
  const SparseShape s = sparse_shape(p);
  const int64_t floats = sparse_thread_floats(s), sums_at = s.buffer + 2 * strip_cells * s.cells.c();
  return prepared([p, s, floats, sums_at](const KernelArgs& args) {
    parallel_threads(p.threads, [&](int t) {
      float* memory = reinterpret_cast<float*>(args.workspace) + t * floats;
      by_storage(p.in[0].dtype, [&](auto zero) { sparse_rows<decltype(zero)>(s, p, args, split_range(s.cells.n() * s.cells.d() * s.cells.h(), t, p.threads), memory); });
    });
    sparse_finish(s, p.threads, args, floats, sums_at);
  }, p.threads * floats * 4);
}

Support supports_pool_sparse(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
  const auto& a = p.op.as<ConvPoolAttrs>();
  const Int3 one{1, 1, 1}, two{2, 2, 2}, three{3, 3, 3}, zero{0, 0, 0};
  if (a.conv.result_size != three || a.conv.stride != one || a.conv.dilation != one || a.conv.groups != 1 || a.conv.pad_low != one || a.conv.pad_high != one)
    return Support::no("needs a 3x3x3 convolution, stride 1, padding 1");
  const PoolAttrs& pool = a.pool.pool;
  if (pool.kernel != two || pool.stride != two || pool.pad_low != zero || pool.pad_high != zero) return Support::no("needs a 2x2x2 pool without overlap or padding");
  if (a.pool.activation.function != Activation::leaky_relu) return Support::no("fuses leaky_relu only");
  const Shape &x = p.in[0].shape, &cells = p.in[1].shape;
  if (x.d() != 2 * cells.d() || x.h() != 2 * cells.h() || x.w() != 2 * cells.w()) return Support::no("needs even extents, found " + x.str());
  if (x.c() != 4 && x.c() % 16) return Support::no("needs 4 input channels or a multiple of 16, found " + std::to_string(x.c()));
  // Past this the accumulators of all output channels leave the second-level cache and the dense form wins.
  if (const int64_t bytes = sparse_shape(p).taps * cells.c() * 4; bytes > (512 << 10)) return Support::no("its sums of " + std::to_string(bytes >> 10) + " KiB would not stay in cache");
  return needs_dense(p);
}
