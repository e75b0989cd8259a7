// Weight gradients of 1x1 convolutions (any stride, no padding) as a matrix product X^T * dY over all positions, f32
// sums: of f32 values (f32, bf16 and f16 storage), or of two positions in a word (pointwise_pairs.inl). Shares sums and
// their final turn with direct_weights.inl.
//
// In channels-last order the values that a register block broadcasts, a few channels of one position, stand one row of
// channels apart from position to position: every step would open another cache line, and rows of a power of two share
// few sets. So, band of steps (a step: the positions of one word) by band, all threads copy
//   input     to panels [12 channels][step][channel]: a block walks along one of them in order,
//   gradient  to [64 channels][step][channel], 256 bytes per 24 multiply-adds from the second-level cache,
// once, and then share the band's blocks of sums among themselves; a task's sums [channel][64] stay in its cache.
// Copies cost 1/K + 1/C of the multiply-adds. Every sum belongs to one task and runs over the positions in order: the
// same bits for any number of threads.
// Limit: the product rate.

constexpr int64_t panel_channels = 12;  // 6 x 4 and 12 x 2 blocks (AVX2: 6 x 2 and 12 x 1) walk along it
static_assert(pointwise_task_inputs % panel_channels == 0);
constexpr int64_t run_steps = 384;       // of one register block
constexpr int64_t band_bytes = 1 << 20;  // per thread: copies are read before they leave the second-level cache

/// A word per position: f32 values of any storage type.
struct SinglePositions {
  using Dot = F32Dot;
  static constexpr int64_t positions = 1;
  static constexpr float one = 1;
  /// The words of a step from its positions.
  template <class T, class N>
  static Vec words(const T* const* at, int64_t channel, N n) {
    return get(at[0] + channel, n);
  }
};

template <class Product>
struct PointwiseWeightsPlan : WeightsPlan {
  explicit PointwiseWeightsPlan(const Problem& p) : WeightsPlan(p) {
    grain = panel_channels, task_width = pointwise_task_outputs / block_width, parts = 1;
    cut_channels(pointwise_task_inputs);
    steps = ceil_div(shape.rows() * shape.positions, Product::positions);
    const int64_t runs = std::max<int64_t>(1, p.threads * band_bytes / ((shape.in + shape.out) * 4 * run_steps));
    bands = ceil_div(steps, runs * run_steps);
    band_steps = ceil_div(steps, bands);
  }
  int64_t steps, band_steps;
  /// Chunk by chunk of the input: threads' shares then differ by part of a small chunk at most.
  WeightsTask task(int64_t index) const {
    return WeightsPlan::task(index % task_blocks() * chunks + index / task_blocks());
  }
  /// A line more than the steps take: panels and blocks are written side by side, and powers of two apart would share
  /// few of the cache's sets.
  int64_t panel_words() const { return band_steps * panel_channels + line_words; }
  int64_t block_words() const { return band_steps * block_width + line_words; }
  int64_t panels_bytes() const { return round_up(ceil_div(shape.in, panel_channels) * panel_words() * 4, 64); }
  int64_t gradient_bytes() const { return round_up(blocks * block_words() * 4, 64); }
};

/// A band's operands, shared by all threads.
template <class Product>
struct PointwiseBand {
  using Word = typename Product::Dot::Word;
  PointwiseBand(const PointwiseWeightsPlan<Product>& plan, std::byte* at)
      : d(plan), panels(reinterpret_cast<Word*>(at)), gradient(reinterpret_cast<Word*>(at + plan.panels_bytes())) {}
  const PointwiseWeightsPlan<Product>& d;
  Word *panels, *gradient;

  /// Copies steps [range.begin, range.end) of the band that starts at `first`.
  template <class T>
  void copy(const KernelArgs& args, int64_t first, Range range) const {
    constexpr std::integral_constant<int64_t, 0> whole;
    const DirectShape& s = d.shape;
    PositionWalk<const T, const T> walk(s, args.in[0].data<T>(), args.in[1].data<T>(),
                                        (first + range.begin) * Product::positions);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const T *x[Product::positions], *dy[Product::positions];
      for (int64_t p = 0; p < Product::positions; ++p) walk.next(&x[p], &dy[p]);
      auto* to = reinterpret_cast<float*>(panels + i * panel_channels);
      for (int64_t c = 0; c < s.in; c += panel_channels, to += d.panel_words())
        for (int64_t q = c; q < std::min(c + panel_channels, s.in); q += Vec::lanes) {
          const Vec value = s.in - q >= Vec::lanes ? Product::words(x, q, whole) : Product::words(x, q, s.in - q);
          // What a whole vector writes past the panel's channels, the next step writes again.
          if (i + 1 < range.end)
            store(to + q - c, value);
          else
            store(to + q - c, value, std::min<int64_t>(Vec::lanes, c + panel_channels - q));
        }
      for (int64_t block = 0; block < d.blocks; ++block) {
        auto* row_to = reinterpret_cast<float*>(gradient + block * d.block_words() + i * block_width);
        const int64_t k_first = block * block_width, valid = std::min(block_width, s.out - k_first);
        std::fill(row_to + valid / Vec::lanes * Vec::lanes, row_to + block_width, 0.0f);
        for_vectors(0, valid, [&](int64_t k, auto n) { put(row_to + k, Product::words(dy, k_first + k, n), n); });
      }
    }
  }

  /// Adds a band of `size` steps to a task's sums.
  void add(std::byte* workspace, const WeightsTask& at, int64_t size) const {
    using Dot = typename Product::Dot;
    const Word one = Product::one;
    const Range input = d.channels(at.chunk);
    for (int64_t begin = 0; begin < size; begin += run_steps) {
      const int64_t run = std::min(run_steps, size - begin);
      for (int64_t block = at.first_block; block < at.last_block; ++block) {
        const int64_t valid = std::min(block_width, d.shape.out - block * block_width),
                      vectors = ceil_div(valid, Vec::lanes);
        float *sums = d.sums(workspace, 0, block, at.chunk, 0), *bias = sums + d.sum_floats() - block_width;
        const Word* rows = gradient + block * d.block_words() + begin * block_width;
        if (at.chunk == 0) {
          Vec total[block_vectors];
#pragma GCC unroll 4
          for (int q = 0; q < block_vectors; ++q) total[q] = load(bias + q * Vec::lanes);
          for (int64_t i = 0; i < run; ++i)
#pragma GCC unroll 4
            for (int q = 0; q < block_vectors; ++q)
              total[q] = Dot::multiply_add(Dot::broadcast(&one),
                                           Dot::load_words(rows + i * block_width + q * Vec::lanes), total[q]);
#pragma GCC unroll 4
          for (int q = 0; q < block_vectors; ++q) store(bias + q * Vec::lanes, total[q]);
        }
        for (int64_t c = 0; c < input.size(); c += panel_channels) {
          const Segment<Word> segment{
              panels + (input.begin + c) / panel_channels * d.panel_words() + begin * panel_channels, rows, run, 0, 1};
          for_row_blocks(std::min(panel_channels, input.size() - c), vectors, [&](int64_t m, int64_t rows_of_block) {
            float* sum = sums + (c + m) * block_width;
            prefetch(sum + rows_of_block * block_width, rows_of_block * block_width * 4);  // the next: 1.01 on Zen 4
            run_block<RegisterBlock<Dot, false>>(
                rows_of_block, vectors,
                {&segment, 1, 0, m, 1, panel_channels, block_width, sum, block_width, sum, block_width});
          });
        }
      }
    }
  }
};

template <class Product, class T>
void pointwise_run(const PointwiseWeightsPlan<Product>& d, int threads, const KernelArgs& args) {
  const PointwiseBand<Product> band(d, args.workspace + d.sums_bytes());
  for (int64_t first = 0; first < d.steps; first += d.band_steps) {
    const int64_t size = std::min(d.band_steps, d.steps - first);
    parallel_threads(threads,
                     [&](int thread) { band.template copy<T>(args, first, split_range(size, thread, threads)); });
    parallel_threads(threads, [&](int thread) {
      const Range mine = split_range(d.tasks(), thread, threads);
      for (int64_t task = mine.begin; task < mine.end; ++task) {
        const WeightsTask at = d.task(task);
        if (first == 0) d.clear(args.workspace, at);
        band.add(args.workspace, at, size);
      }
    });
  }
  weights_finish(d, threads, args);
}

Support supports_pointwise_weights(const Problem& p) {
  const Support support = supports_direct_weights(p);
  return support.ok ? needs_pointwise(p) : support;
}

/// `by_type(type, f)` calls f with a zero of each storage type that the product takes.
template <class Product, class ByType>
std::unique_ptr<Prepared> prepare_pointwise_sums(const Problem& p, ByType by_type) {
  const PointwiseWeightsPlan<Product> plan(p);
  return std::make_unique<PreparedFunction>(
      [plan, threads = p.threads, type = p.in[0].dtype, by_type](const KernelArgs& args) {
        by_type(type, [&](auto zero) { pointwise_run<Product, decltype(zero)>(plan, threads, args); });
      },
      plan.sums_bytes() + plan.panels_bytes() + plan.gradient_bytes(),
      std::to_string(plan.bands) + " bands of " + std::to_string(plan.band_steps * Product::positions) + " positions");
}

inline std::unique_ptr<Prepared> prepare_pointwise_weights(const Problem& p) {
  return prepare_pointwise_sums<SinglePositions>(p, [](DType type, auto f) { by_storage(type, f); });
}
