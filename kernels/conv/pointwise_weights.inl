// Weight gradients of 1x1 convolutions (any stride, no padding) as a matrix product X^T * dY over all positions; f32, bf16
// and f16 storage, f32 sums. Shares sums and their final turn with direct_weights.inl.
//
// In channels-last order the values that a register block broadcasts, a few channels of one position, stand one row of
// channels apart from position to position: every step would open another cache line, and rows of a power of two share few
// sets. So, band of positions by band, all threads copy
//   input     to panels [12 channels][position][channel]: a block walks along one of them in order,
//   gradient  to [64 channels][position][channel], 256 bytes per 24 multiply-adds from the second-level cache,
// once, and then share the band's blocks of sums among themselves; a task's sums [channel][64] stay in its cache.
// Copies cost 1/K + 1/C of the multiply-adds. Every sum belongs to one task and runs over the positions in order: the same
// bits for any number of threads.
// Limit: the f32 FMA rate.

constexpr int64_t panel_channels = 12;  // 6 x 4 and 12 x 2 blocks (AVX2: 6 x 2 and 12 x 1) walk along it
constexpr int64_t run_positions = 384;  // of one register block
constexpr int64_t band_bytes = 16 << 20;

struct PointwisePlan : WeightsPlan {
  explicit PointwisePlan(const Problem& p) : WeightsPlan(p) {
    grain = panel_channels, task_width = 512 / block_width, parts = 1;
    cut_channels(4 * panel_channels);
    total = shape.rows() * shape.positions;
    const int64_t runs = std::max<int64_t>(1, band_bytes / ((shape.in + shape.out) * 4 * run_positions));
    bands = ceil_div(total, runs * run_positions);
    band_positions = ceil_div(total, bands);
  }
  int64_t total, band_positions;
  int64_t panel_floats() const { return band_positions * panel_channels; }
  int64_t panels_bytes() const { return aligned(ceil_div(shape.in, panel_channels) * panel_floats() * 4); }
  int64_t gradient_bytes() const { return aligned(blocks * band_positions * block_width * 4); }
  static int64_t aligned(int64_t bytes) { return DirectPlan::aligned(bytes); }
};

/// A band's operands, shared by all threads.
struct PointwiseBand {
  PointwiseBand(const PointwisePlan& plan, std::byte* at) : d(plan), panels(reinterpret_cast<float*>(at)), gradient(reinterpret_cast<float*>(at + plan.panels_bytes())) {}
  const PointwisePlan& d;
  float *panels, *gradient;

  /// Copies positions [range.begin, range.end) of the band that starts at `first`.
  template <class T>
  void copy(const KernelArgs& args, int64_t first, Range range) const {
    const DirectShape& s = d.shape;
    const int64_t step = s.phases[0].advance * s.x.stride[3];
    const T *x = nullptr, *dy = nullptr;
    for (int64_t i = range.begin; i < range.end; ++i, x += step, dy += s.y.stride[3]) {
      const int64_t row = (first + i) / s.positions, column = (first + i) % s.positions;
      if (i == range.begin || column == 0) {
        x = args.in[0].data<T>() + DirectShape::row_offset(s.x, s.source_row(row, 0)) + column * step;
        dy = args.in[1].data<T>() + DirectShape::row_offset(s.y, row) + column * s.y.stride[3];
      }
      float* to = panels + i * panel_channels;
      for (int64_t c = 0; c < s.in; c += panel_channels, to += d.panel_floats())
        for (int64_t q = c; q < std::min(c + panel_channels, s.in); q += Vec::lanes) {
          const Vec value = s.in - q >= Vec::lanes ? load(x + q) : load(x + q, s.in - q);
          // What a whole vector writes past the panel's channels, the next position writes again.
          if (i + 1 < range.end) store(to + q - c, value);
          else store(to + q - c, value, std::min<int64_t>(Vec::lanes, c + panel_channels - q));
        }
      for (int64_t block = 0; block < d.blocks; ++block) {
        float* row_to = gradient + (block * d.band_positions + i) * block_width;
        const int64_t k_first = block * block_width, valid = std::min(block_width, s.out - k_first);
        std::fill(row_to + valid / Vec::lanes * Vec::lanes, row_to + block_width, 0.0f);
        for_vectors(0, valid, [&](int64_t k, auto n) { put(row_to + k, get(dy + k_first + k, n), n); });
      }
    }
  }

  /// Adds a band of `size` positions to a task's sums.
  void add(std::byte* workspace, const WeightsTask& at, int64_t size) const {
    const Range input = d.channels(at.chunk);
    for (int64_t begin = 0; begin < size; begin += run_positions) {
      const int64_t run = std::min(run_positions, size - begin);
      for (int64_t block = at.first_block; block < at.last_block; ++block) {
        const int64_t valid = std::min(block_width, d.shape.out - block * block_width), vectors = ceil_div(valid, Vec::lanes);
        float *sums = d.sums(workspace, 0, block, at.chunk, 0), *bias = sums + d.sum_floats() - block_width;
        const float* rows = gradient + (block * d.band_positions + begin) * block_width;
        for (int64_t i = 0; i < run && at.chunk == 0; ++i)
          for (int64_t k = 0; k < vectors * Vec::lanes; k += Vec::lanes) store(bias + k, load(bias + k) + load(rows + i * block_width + k));
        for (int64_t c = 0; c < input.size(); c += panel_channels) {
          const Segment<float> segment{panels + (input.begin + c) / panel_channels * d.panel_floats() + begin * panel_channels, rows, run, 0, 1};
          for_row_blocks(std::min(panel_channels, input.size() - c), vectors, [&](int64_t m, int64_t rows_of_block) {
            float* sum = sums + (c + m) * block_width;
            run_block<RegisterBlock<F32Dot, false>>(rows_of_block, vectors, {&segment, 1, 0, m, 1, panel_channels, block_width, sum, block_width, sum, block_width});
          });
        }
      }
    }
  }
};

template <class T>
void pointwise_run(const PointwisePlan& d, int threads, const KernelArgs& args) {
  const PointwiseBand band(d, args.workspace + d.sums_bytes());
  for (int64_t first = 0; first < d.total; first += d.band_positions) {
    const int64_t size = std::min(d.band_positions, d.total - first);
    parallel_threads(threads, [&](int thread) { band.copy<T>(args, first, split_range(size, thread, threads)); });
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
  if (const Support support = supports_direct_weights(p); !support.ok) return support;
  const auto& a = p.op.as<ConvAttrs>();
  if (a.result_size != Int3{1, 1, 1} || a.pad_low != Int3{} || a.pad_high != Int3{}) return Support::no("needs a 1x1 kernel without padding");
  if (a.groups != 1) return Support::no("needs one group");
  return Support::yes();
}

inline std::unique_ptr<Prepared> prepare_pointwise_weights(const Problem& p) {
  const PointwisePlan plan(p);
  return std::make_unique<PreparedFunction>([plan, threads = p.threads, type = p.in[0].dtype](const KernelArgs& args) {
    by_storage(type, [&](auto zero) { pointwise_run<decltype(zero)>(plan, threads, args); });
  }, plan.sums_bytes() + plan.panels_bytes() + plan.gradient_bytes(), std::to_string(plan.bands) + " bands of " + std::to_string(plan.band_positions) + " positions");
}
