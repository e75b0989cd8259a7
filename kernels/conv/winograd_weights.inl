// Winograd weight and bias gradients in two and three dimensions, channels last; dilated kernels on the sub-lattices of
// their dilation. f32, bf16 and f16 storage, f32 inside.
//
// Over a tile of m outputs the gradient of k taps is itself a short correlation: k results from m values of dy and
// m + k - 1 of x. It meets in the points of F(m,k) and needs as many times fewer multiplications as the forward pass
// (winograd.inl); the lines of dy and of the results are those of F(k,m).
//
// Loops: a task is a chunk of input channels, output channels in blocks of 64 (AVX2: 16), and a part of the tiles: up
// to 64 by 256 channels, or 128 by 128 where there are more of both (AVX2: as many as keep M within 3 MB). A run of
// tiles at a time
//   1. V[p][tile][c] = B^T x B and U[p][block][tile][k] = G dy G^T, a vector of channels at a time through L1;
//   2. M[p][block][c][k] += V[p]^T U[p]: the register block of the direct kernels, along the tiles.
// A task ends with A^T M A; the parts are added in order. Parts and runs depend on the problem alone, and a sum is the
// same in any chunk, so that the gradients have the same bits for any number of threads.
// Limit: the f32 FMA rate times the factor of the scheme in dense-count GFLOP/s; M, read and written once per run,
// comes from the last-level cache, where a thread's share of that holds it (2.4 MB with six points, 4.2 MB with eight,
// 6.6 MB with ten, up to 14 MB in 3-D, with AVX2 3.5).
//
// Error: as in winograd.inl, the terms' growth along the lines times (tiles * eps) * sum|x||dy|; tests hold it to the
// bound of a direct sum over all positions. It grows with the root of the tiles: 5x5 gradients of normal data on 768 x
// 1152 positions deviate from direct sums by 8.5e-5 of their size with tiles of six (outer taps 1.7e-4), by 2.6e-5 with
// tiles of four, on 384 x 576 by half of that.
//
// With a stride of 2 (f32): the outer taps are F(2,3), the middle one a product per output: 1.65 times fewer in 2-D.
//
// Refuses: other kernels and strides, groups, channels that are no multiple of 16, fewer than 12 tiles, gradients that
// are not dense, taps that meet little but padding, a stride in dilated images or volumes, and tiles that stick out so
// far that less than half of the multiplications are saved (with a stride: 1.4 times). Tiles of six outputs also refuse
// volumes, 3x3 taps of fewer than 64 channels, and images that they do not fit so well that they take a seventh less
// than tiles of four.

constexpr int64_t weights_tasks = 64;              // for as many threads, where there are tiles and memory for them
constexpr int64_t weights_tasks_least = 16;        // runs get shorter for that, down to shortest_run
constexpr int64_t shortest_run = 16;               // tiles
constexpr int64_t weights_chunk = 64;              // input channels of a task at most
constexpr int64_t weights_blocks = 4;              // blocks of output channels of a task, and up to
constexpr int64_t weights_outputs = 256;           // channels of them, so that fewer tasks transform x again,
constexpr int64_t weights_sums = 3 << 20;          // where M stays within so many bytes
constexpr int64_t weights_square = 128;            // channels of both, where both have more and M is of images:
constexpr int64_t most_square_sums = 64;           // AVX2's narrow M of more points would gain no transforms
constexpr int64_t fewest_of_six = 64;              // channels of both, or 3x3 taps save what transforms cost
constexpr int64_t weights_operands = 2 << 20;      // bytes of V and U of a run, if that leaves the shortest
constexpr int64_t weights_parts_bytes = 16 << 20;  // of gradients at most for splitting tiles

/// Of a forward scheme: its lines for x, mirrored ones for dy and the gradients.
template <class S>
struct WeightsScheme {
  using Lines = S;
  using Results = Scheme<Mirrored<typename S::Depth>, Mirrored<typename S::Height>, Mirrored<typename S::Width>>;
  static constexpr int taps = S::k[0] * S::k[1] * S::k[2];
  static constexpr int outputs = S::m[0] * S::m[1] * S::m[2];
};

struct WinogradWeights {
  WinogradShape shape;
  int taps = 0, sums = 0;  ///< sums: of products, fewer than points where some share one
  int64_t chunk = 0, chunks = 0, blocks = 0, task_blocks = 0, groups = 0, parts = 0, run = 0;
  int64_t u_stride = 0, m_stride = 0;  ///< floats between points; those of V in shape
  int64_t width() const { return task_blocks * block_width; }
  int64_t tasks() const { return groups * chunks * parts; }
  /// Gradients of a task: [tap][c][result_width], then the bias.
  int64_t result_width() const { return std::min(width(), shape.channels_out()); }
  int64_t result_floats() const { return (taps * chunk + 1) * result_width(); }
  int64_t thread_floats() const { return shape.scheme.points * (shape.v_stride + u_stride) + sums * m_stride; }
  int64_t workspace() const { return tasks() * result_floats() * 4; }
};

/// Fewer input channels a task where that leaves the slowest thread less to do, although every task transforms dy
/// again: a sum is the same for any. Costs of a tile are in products of an input and an output channel.
inline void set_chunk(WinogradWeights& w, int64_t in, int threads) {
  constexpr int64_t transform = 24;  // of a channel
  w.chunk = smaller_chunk(w.chunk, 16, [&](int64_t chunk) {
    const int64_t tasks = w.groups * ceil_div(in, chunk) * w.parts;
    return ceil_div(tasks, threads) * (chunk * w.width() + transform * (chunk + w.width()));
  });
  w.chunks = ceil_div(in, w.chunk);
}

/// With the forward pass's scheme.
inline WinogradWeights winograd_weights(const Problem& p, const SchemeNumbers& scheme) {
  WinogradWeights w;
  WinogradShape& s = w.shape;
  s.scheme = scheme, s.x = p.in[0], s.y = p.in[1];
  s.dilation = p.op.as<ConvAttrs>().dilation, s.pad = p.op.as<ConvAttrs>().pad_low;
  set_tiles(s);
  const int64_t in = s.channels_in(), out = s.channels_out();
  w.taps = scheme.k[0] * scheme.k[1] * scheme.k[2], w.sums = scheme.weights;
  // Both transforms again for every other 128 channels, instead of dy's for every 64: of as large sums, the fewest.
  const int64_t squares = in > weights_square && out > weights_square && w.sums <= most_square_sums ? 2 : 1;
  w.chunks = ceil_div(in, weights_chunk * squares);
  w.chunk = ceil_div(in / 16, w.chunks) * 16;
  w.chunks = ceil_div(in, w.chunk);
  w.blocks = ceil_div(out, block_width);
  const int64_t fit =
      std::min(weights_outputs / squares / block_width, weights_sums / (w.sums * w.chunk * block_width * 4));
  w.task_blocks = std::min(w.blocks, std::max(weights_blocks / squares, fit));
  w.groups = ceil_div(w.blocks, w.task_blocks);
  const int64_t whole = w.groups * w.chunks;  // tasks before tiles are split
  const int64_t least = ceil_div(weights_tasks_least, whole), share = ceil_div(s.tile_count, least);
  w.run = std::clamp<int64_t>(weights_operands / (scheme.points * 4 * (w.chunk + w.width())), shortest_run, 128);
  w.run = std::min(w.run, std::max(shortest_run, share));
  const int64_t affordable = std::max<int64_t>(1, weights_parts_bytes / (whole * w.result_floats() * 4));
  const int64_t runs = ceil_div(s.tile_count, w.run);
  w.parts = std::min({even_parts(whole, weights_tasks), affordable, runs});
  set_chunk(w, in, p.threads);  // parts and runs stay those of the largest chunk
  s.v_stride = w.run * w.chunk + point_pad;
  w.u_stride = w.run * w.width() + point_pad;
  w.m_stride = w.chunk * w.width() + point_pad;
  return w;
}

/// dy under a tile, zero outside the image, through G; adds it to the bias gradient where `bias` is not null.
template <class S, class T>
void gradient_transform(const WinogradShape& s, const T* dy, int64_t tile, int64_t channels, float* u, int64_t stride,
                        int64_t block_floats, float* bias) {
  using L = typename S::Lines;
  const TileCorner corner = tile_corner(s, tile);
  const Shape& ys = s.y.shape;
  int64_t at[S::outputs];
  for (int i = 0; i < L::m[0]; ++i)
    for (int j = 0; j < L::m[1]; ++j)
      for (int k = 0; k < L::m[2]; ++k) {
        const int64_t d = corner.at[0] + i * s.dilation[0], h = corner.at[1] + j * s.dilation[1],
                      w = corner.at[2] + k * s.dilation[2];
        at[(i * L::m[1] + j) * L::m[2] + k] =
            d < ys.d() && h < ys.h() && w < ys.w() ? s.y.offset(corner.n, d, h, w) : -1;
      }
  const int64_t next_tile = s.dilation[2] * L::m[2] * s.y.stride[3];
  alignas(64) float g[S::outputs * Vec::lanes];
  for (int64_t c = 0; c < channels; c += Vec::lanes) {
    Vec sum = Vec::all(0.0f);
    for (int t = 0; t < S::outputs; ++t) {
      const Vec value = at[t] >= 0 ? load(dy + at[t] + c) : Vec::all(0.0f);
      if (at[t] >= 0) __builtin_prefetch(dy + at[t] + c + next_tile);
      sum = sum + value;
      store(g + t * Vec::lanes, value);
    }
    if (bias) store(bias + c, load(bias + c) + sum);
    transform_taps<typename S::Results>(g, u + c / block_width * block_floats + c % block_width, stride);
  }
}

/// M[block][c][k] += V^T U of one point, over `count` tiles.
[[gnu::noinline]] inline void add_point(const WinogradWeights& w, const float* v, const float* u, float* m,
                                        int64_t count, int64_t channels, int64_t valid) {
  for (int64_t k = 0; k < valid; k += block_width) {
    const int64_t block = k / block_width, vectors = ceil_div(std::min(block_width, valid - k), Vec::lanes);
    const Segment<float> segment{v, u + block * w.run * block_width, count, 0, 1};
    float* sums = m + block * w.chunk * block_width;
    for_row_blocks(channels, vectors, [&](int64_t c, int64_t rows) {
      float* sum = sums + c * block_width;
      prefetch(sum + rows * block_width, rows * block_width * 4);  // the next: M comes from far, 1.02 on Zen 4
      run_block<RegisterBlock<F32Dot, false>>(
          rows, vectors, {&segment, 1, 0, c, 1, channels, block_width, sum, block_width, sum, block_width});
    });
  }
}

/// A^T M A of a task: result[tap][c][result_width].
template <class S>
[[gnu::noinline]] void weights_results(const WinogradWeights& w, const float* m, int64_t channels, int64_t valid,
                                       float* result) {
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = 0; k < valid; k += Vec::lanes) {
      Vec taps[S::taps];
      output_lines<typename S::Results>(m + (k / block_width * w.chunk + c) * block_width + k % block_width, w.m_stride,
                                        taps);
      for (int t = 0; t < S::taps; ++t) store(result + (t * w.chunk + c) * w.result_width() + k, taps[t]);
    }
}

template <class S, class T>
void winograd_weights_task(const WinogradWeights& w, const KernelArgs& args, int64_t task, float* scratch) {
  using L = typename S::Lines;
  const WinogradShape& s = w.shape;
  const int64_t part = task % w.parts, chunk = task / w.parts % w.chunks, group = task / (w.parts * w.chunks);
  const int64_t c_first = chunk * w.chunk, channels = std::min(w.chunk, s.channels_in() - c_first);
  const int64_t k_first = group * w.width(), valid = std::min(w.width(), s.channels_out() - k_first);
  float *v = scratch, *u = v + L::points * s.v_stride, *m = u + L::points * w.u_stride;
  float *result = reinterpret_cast<float*>(args.workspace) + task * w.result_floats(),
        *bias = result + w.taps * w.chunk * w.result_width();
  std::fill(m, m + w.sums * w.m_stride, 0.0f);
  std::fill(bias, bias + w.result_width(), 0.0f);
  const T *x = args.in[0].data<T>() + c_first, *dy = args.in[1].data<T>() + k_first;
  const Range tiles = split_range(s.tile_count, int(part), int(w.parts));
  for (int64_t first = tiles.begin; first < tiles.end; first += w.run) {
    const int64_t count = std::min(w.run, tiles.end - first);
    for (int64_t i = 0; i < count; ++i) {
      input_transform<L, T>(s, x, first + i, channels, v + i * channels);
      gradient_transform<S, T>(s, dy, first + i, valid, u + i * block_width, w.u_stride, w.run * block_width,
                               chunk == 0 ? bias : nullptr);
    }
    for (int q = 0; q < L::points; ++q)
      add_point(w, v + q * s.v_stride, u + q * w.u_stride, m + L::weights_of(q) * w.m_stride, count, channels, valid);
  }
  weights_results<S>(w, m, channels, valid, result);
}

/// Adds the parts in order and turns [tap][c][result_width] into K, KD, KH, KW, C.
inline void winograd_weights_finish(const WinogradWeights& w, int threads, const KernelArgs& args) {
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  const int64_t in = w.shape.channels_in(), width = w.result_width();
  parallel_ranges(w.groups * w.chunks * w.taps, threads, 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t t = i % w.taps, chunk = i / w.taps % w.chunks, group = i / (w.taps * w.chunks);
      const int64_t c_first = chunk * w.chunk, channels = std::min(w.chunk, in - c_first);
      const int64_t k_first = group * w.width(), valid = std::min(width, w.shape.channels_out() - k_first);
      float* results =
          reinterpret_cast<float*>(args.workspace) + (group * w.chunks + chunk) * w.parts * w.result_floats();
      const auto add_parts = [&](float* to, int64_t count) {
        for (int64_t part = 1; part < w.parts; ++part)
          for_vectors(0, count, [&](int64_t at, auto n) {
            put(to + at, get(to + at, n) + get(to + part * w.result_floats() + at, n), n);
          });
      };
      float* from = results + t * w.chunk * width;
      for (int64_t c = 0; c < channels; ++c) add_parts(from + c * width, valid);
      for (int64_t c = 0; c < channels; c += 16)  // sixteen cache lines serve all output channels
        for (int64_t k = 0; k < valid; ++k)
          for (int64_t e = c; e < c + 16; ++e)
            dw[((k_first + k) * w.taps + t) * in + c_first + e] = from[e * width + k];
      if (chunk == 0 && t == 0) {
        float* bias = results + w.taps * w.chunk * width;
        add_parts(bias, valid);
        std::copy(bias, bias + valid, db + k_first);
      }
    }
  });
}

/// Calls f(scheme) with the scheme of a weight gradient whose tiles have so many outputs along an axis, or says no.
template <int outputs, class F>
Support with_weights_scheme(const Problem& p, F&& f) {
  const ConvAttrs& a = p.op.as<ConvAttrs>();
  const Shape& w = p.out[0].shape;
  if (a.stride == Int3{1, 1, 1}) return with_scheme<outputs>(w, f);
  if constexpr (outputs > 2) {
    return Support::no("needs stride 1");
  } else {
    const bool image = w.d() == 1 && a.pad_low[0] == 0 && a.dilation == Int3{1, 1, 1};
    if (!image || w.h() != 3 || w.w() != 3 || a.stride != Int3{1, 2, 2})
      return Support::no("takes a stride of 1x2x2 for undilated 3x3 kernels of images");
    if (p.in[0].dtype != DType::f32) return Support::no("with a stride handles f32, found " + p.in[0].str());
    return f(Scheme<Flat, ThreeDown, ThreeDown>{});
  }
}

/// The numbers of that scheme, or no.
using FindWeightsScheme = Support (*)(const Problem& p, SchemeNumbers& scheme);
template <int outputs>
Support weights_scheme_numbers(const Problem& p, SchemeNumbers& scheme) {
  return with_weights_scheme<outputs>(p, [&](auto wanted) {
    scheme = wanted.numbers;
    return Support::yes();
  });
}

/// With tiles of so many outputs; `find` gives the scheme of a problem.
inline Support supports_winograd_weights(const Problem& p, int outputs, FindWeightsScheme find) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (!p.out[0].dense()) return Support::no("writes dense gradients, found " + p.out[0].str());
  const ConvAttrs& a = p.op.as<ConvAttrs>();
  if (a.groups != 1) return Support::no("needs one group");
  const Shape& w = p.out[0].shape;
  if (w.n() % 16 || w.c() % 16)
    return Support::no("needs channels in multiples of 16, found " + std::to_string(w.c()) + " and " +
                       std::to_string(w.n()));
  // Errors go with the largest sum of a tile: where some taps meet little but padding, their small sums would drown.
  for (int axis = 0; axis < 3; ++axis) {
    int64_t least = p.in[1].shape[axis + 1], most = 0;
    for (int64_t tap = 0; tap < w[axis + 1]; ++tap) {
      const int64_t inside = positions_inside(a, axis, tap, p.in[0].shape[axis + 1], p.in[1].shape[axis + 1]);
      least = std::min(least, inside), most = std::max(most, inside);
    }
    if (2 * least < most) return Support::no("some taps meet little but padding");
  }
  SchemeNumbers scheme;
  if (const Support found = find(p, scheme); !found.ok) return found;
  const WinogradShape s = winograd_weights(p, scheme).shape;
  // The sums of all points are read and written once per run: few tiles do not pay for that.
  if (s.tile_count < 12) return Support::no("needs 12 tiles, found " + std::to_string(s.tile_count));
  if (outputs == 6) {
    if (w.d() > 1) return Support::no("with six outputs a tile takes images only: 384 sums are too many");
    if (w.w() == 3 && std::min(w.n(), w.c()) < fewest_of_six)
      return Support::no("with six outputs a tile and 3x3 taps needs " + std::to_string(fewest_of_six) +
                         " channels, found " + std::to_string(w.c()) + " and " + std::to_string(w.n()));
    if (const Support saves = saves_beside_four(w, s); !saves.ok) return saves;
  }
  const double dense = double(p.in[1].shape.elements() / w.n()) * double(w.d() * w.h() * w.w());
  const double ours = double(s.tile_count) * scheme.points, least = scheme.splits ? 1.4 : 2;
  if (dense < least * ours) return Support::no("saves too few multiplications: tiles stick out of the image");
  return Support::yes();
}
template <int outputs>
Support supports_winograd_weights(const Problem& p) {
  return supports_winograd_weights(p, outputs, weights_scheme_numbers<outputs>);
}

using WeightsTask = void (*)(const WinogradWeights& w, const KernelArgs& args, int64_t task, float* scratch);

class PreparedWinogradWeights final : public Prepared {
 public:
  PreparedWinogradWeights(const Problem& p, const SchemeNumbers& scheme, WeightsTask task)
      : weights_(winograd_weights(p, scheme)), threads_(p.threads), task_(task) {}
  int64_t workspace_bytes() const override { return weights_.workspace() + used() * weights_.thread_floats() * 4; }
  std::string detail() const override {
    const SchemeNumbers& s = weights_.shape.scheme;
    return (s.splits ? std::string("down 2 F(2,3") : "F(" + std::to_string(s.k[2]) + "," + std::to_string(s.m[2])) +
           ")^" + (s.p[0] > 1 ? "3, " : "2, ") + std::to_string(weights_.parts) + " parts, " +
           std::to_string(weights_.run) + " tiles a run";
  }
  void run(const KernelArgs& args) const override {
    const WinogradWeights& w = weights_;
    UnitCounter tasks(w.tasks());
    parallel_some(used(), threads_, [&](int thread) {
      float* scratch =
          reinterpret_cast<float*>(args.workspace) + w.tasks() * w.result_floats() + thread * w.thread_floats();
      for (int64_t task; (task = tasks.take()) >= 0;) task_(w, args, task, scratch);
    });
    winograd_weights_finish(w, threads_, args);
  }

 private:
  int used() const { return static_cast<int>(std::min<int64_t>(threads_, weights_.tasks())); }
  WinogradWeights weights_;
  int threads_;
  WeightsTask task_;
};

template <int outputs>
std::unique_ptr<Prepared> prepare_winograd_weights(const Problem& p) {
  std::unique_ptr<Prepared> made;
  with_weights_scheme<outputs>(p, [&](auto scheme) {
    by_storage(p.in[0].dtype, [&](auto zero) {
      using S = WeightsScheme<decltype(scheme)>;
      made = std::make_unique<PreparedWinogradWeights>(p, scheme.numbers, winograd_weights_task<S, decltype(zero)>);
    });
    return Support::yes();
  });
  return made;
}

/// In f32 the direct kernels are preferred to what stands before them in the list; these are faster still, with a
/// stride from 32 channels on.
inline bool prefers_winograd_weights(const Problem& p) {
  const bool strided = p.op.as<ConvAttrs>().stride != Int3{1, 1, 1};
  const int64_t channels = std::min(p.in[0].shape.c(), p.in[1].shape.c());
  return p.in[0].dtype == DType::f32 && (!strided || channels >= 32);
}
