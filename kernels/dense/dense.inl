// Fully connected layers, small batches against large weights: forward, backward_data, backward_weights; f32, bf16 and
// f16 storage, f32 sums. 1x1 convolutions of few pixels (behind a global average pool) are the same: their weights are
// read where they are, which packing them for other kernels takes longer than.
//
// All three walk the weights (or their gradient) once, row by row, in tiles of features whose operands stay in cache:
//   forward           4 samples x 4 outputs of vector sums over a tile, folded into one sum per output after the tile;
//   backward_data     a tile of dx in f32 takes eight weight rows at a time;
//   backward_weights  one vector of sums over the samples for each of 4 outputs, written once.
// Limit: memory below some 10 samples (the weights are read once), the FMA rate above. Sums do not depend on threads.

constexpr int64_t dense_tile = 1024;  // features
constexpr int dense_block = 4;
constexpr int64_t most_pixels = 8;  // of a convolution

struct DenseShape {
  int64_t samples, outputs, features;
};

Support supports_dense(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  return needs_dense(p);
}

Support supports_few_pixels(const Problem& p) {
  if (const Support dense = supports_dense(p); !dense.ok) return dense;
  if (const Support product = needs_pointwise(p); !product.ok) return product;
  if (p.op.as<ConvAttrs>().stride != Int3{1, 1, 1} || p.in[0].shape.rows() > most_pixels)
    return Support::no("takes at most " + std::to_string(most_pixels) + " pixels without a stride");
  if (p.op.kind == OpKind::conv_backward_data && p.in.size() > 2) return Support::no("adds no bias to data gradients");
  return Support::yes();
}

/// Calls f(load) for all of [0, length), where load(p) is a vector of values of p[0, length), of all p the same ones.
template <class T, class F>
void for_factors(int64_t length, F&& f) {
  int64_t begin = 0;
  if constexpr (std::is_same_v<T, bf16>)
    for (constexpr int64_t pairs = 2 * Vec::lanes; begin + pairs <= length; begin += pairs) {
      f([begin](const T* p) { return load_even(p + begin); });
      f([begin](const T* p) { return load_odd(p + begin); });
    }
  for_vectors(begin, length, [&](int64_t at, auto n) { f([at, n](const T* p) { return get(p + at, n); }); });
}

/// Four dot products per sample: sums[sample][output] += x * w over a tile. Rows past the end repeat the last one.
template <class T>
void dense_dots(const T* const* x, const T* const* w, int64_t length, float (*sums)[dense_block]) {
  Vec total[dense_block][dense_block];
  for (auto& row : total)
    for (Vec& v : row) v = Vec::all(0.0f);
  for_factors<T>(length, [&](auto&& load) {
    Vec weight[dense_block];
#pragma GCC unroll 4
    for (int k = 0; k < dense_block; ++k) weight[k] = load(w[k]);
#pragma GCC unroll 4
    for (int i = 0; i < dense_block; ++i) {
      const Vec value = load(x[i]);
#pragma GCC unroll 4
      for (int k = 0; k < dense_block; ++k) total[i][k] = fma(value, weight[k], total[i][k]);
    }
  });
  for (int i = 0; i < dense_block; ++i)
    for (int k = 0; k < dense_block; ++k) sums[i][k] = sum(total[i][k]);
}

/// One sample: eight outputs at a time keep enough loads in flight.
template <class T>
void dense_dots_one(const T* x, const T* w, int64_t features, int64_t rows, int64_t length, float* sums) {
  Vec total[8];
  for (Vec& v : total) v = Vec::all(0.0f);
  for_factors<T>(length, [&](auto&& load) {
    const Vec value = load(x);
#pragma GCC unroll 8
    for (int64_t k = 0; k < 8; ++k) total[k] = fma(value, load(w + std::min(k, rows - 1) * features), total[k]);
  });
  for (int64_t k = 0; k < rows; ++k) sums[k] += sum(total[k]);
}

template <class T>
void dense_forward_outputs(const DenseShape& s, const KernelArgs& args, Range outputs, float* sums) {
  const T *x = args.in[0].data<T>(), *w = args.in[1].data<T>();
  const float* bias = args.in.size() > 2 ? args.in[2].data<float>() : nullptr;
  const int64_t count = outputs.size();
  for (int64_t n = 0; n < s.samples; ++n)
    for (int64_t k = 0; k < count; ++k) sums[n * count + k] = bias ? bias[outputs.begin + k] : 0.0f;
  // What one sample needs of x stays in cache in any case, and weights come faster in long runs.
  const int64_t tile = s.samples == 1 ? 16 * dense_tile : dense_tile;
  for (int64_t f = 0; f < s.features; f += tile) {
    const int64_t length = std::min(tile, s.features - f);
    for (int64_t k = 0; s.samples == 1 && k < count; k += 8)
      dense_dots_one(x + f, w + (outputs.begin + k) * s.features + f, s.features, std::min<int64_t>(8, count - k),
                     length, sums + k);
    for (int64_t k = 0; s.samples > 1 && k < count; k += dense_block)
      for (int64_t n = 0; n < s.samples; n += dense_block) {
        const T *xs[dense_block], *ws[dense_block];
        for (int64_t i = 0; i < dense_block; ++i) {
          xs[i] = x + std::min(n + i, s.samples - 1) * s.features + f;
          ws[i] = w + (outputs.begin + std::min(k + i, count - 1)) * s.features + f;
        }
        float part[dense_block][dense_block];
        dense_dots(xs, ws, length, part);
        for (int64_t i = 0; i < std::min<int64_t>(dense_block, s.samples - n); ++i)
          for (int64_t j = 0; j < std::min<int64_t>(dense_block, count - k); ++j)
            sums[(n + i) * count + k + j] += part[i][j];
      }
  }
  T* y = args.out[0].data<T>();
  for (int64_t n = 0; n < s.samples; ++n)
    for_vectors(0, count, [&](int64_t k, auto lanes) {
      put(y + n * s.outputs + outputs.begin + k, get(sums + n * count + k, lanes), lanes);
    });
}

template <class T>
void dense_data_features(const DenseShape& s, const KernelArgs& args, Range features, float* tile) {
  const T *dy = args.in[0].data<T>(), *w = args.in[1].data<T>();
  T* dx = args.out[0].data<T>();
  for (int64_t f = features.begin; f < features.end; f += dense_tile) {
    const int64_t length = std::min(dense_tile, features.end - f);
    std::fill(tile, tile + s.samples * dense_tile, 0.0f);
    const auto add_rows = [&]<int rows>(std::integral_constant<int, rows>, int64_t k) {
      for (int64_t n = 0; n < s.samples; ++n) {
        Vec g[rows];
        for (int64_t j = 0; j < rows; ++j) g[j] = Vec::all(static_cast<float>(dy[n * s.outputs + k + j]));
        float* to = tile + n * dense_tile;
        const T* from = w + k * s.features + f;
        for_vectors(0, length, [&](int64_t i, auto lanes) {
          Vec total = get(to + i, lanes);
#pragma GCC unroll 8
          for (int64_t j = 0; j < rows; ++j) {
            const T* row = from + j * s.features + i;
            __builtin_prefetch(row + 8 * Vec::lanes);
            total = fma(g[j], get(row, lanes), total);
          }
          put(to + i, total, lanes);
        });
      }
    };
    int64_t k = 0;
    for (; k + 8 <= s.outputs; k += 8) add_rows(std::integral_constant<int, 8>{}, k);
    for (; k + 4 <= s.outputs; k += 4) add_rows(std::integral_constant<int, 4>{}, k);
    for (; k < s.outputs; ++k) add_rows(std::integral_constant<int, 1>{}, k);
    for (int64_t n = 0; n < s.samples; ++n)
      for_vectors(0, length, [&](int64_t i, auto lanes) {
        put(dx + n * s.features + f + i, get(tile + n * dense_tile + i, lanes), lanes);
      });
  }
}

template <class T>
void dense_weight_outputs(const DenseShape& s, const KernelArgs& args, Range outputs) {
  const T *x = args.in[0].data<T>(), *dy = args.in[1].data<T>();
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  for (int64_t k = outputs.begin; k < outputs.end; ++k) {
    float total = 0;
    for (int64_t n = 0; n < s.samples; ++n) total += static_cast<float>(dy[n * s.outputs + k]);
    db[k] = total;
  }
  for (int64_t f = 0; f < s.features; f += dense_tile)
    for (int64_t k = outputs.begin; k < outputs.end; k += dense_block) {
      const int64_t rows = std::min<int64_t>(dense_block, outputs.end - k);
      for_vectors(f, std::min(f + dense_tile, s.features), [&](int64_t i, auto lanes) {
        Vec total[dense_block];
        for (Vec& v : total) v = Vec::all(0.0f);
        for (int64_t n = 0; n < s.samples; ++n) {
          const Vec value = get(x + n * s.features + i, lanes);
          for (int64_t j = 0; j < rows; ++j)
            total[j] = fma(value, Vec::all(static_cast<float>(dy[n * s.outputs + k + j])), total[j]);
        }
        for (int64_t j = 0; j < rows; ++j) put(dw + (k + j) * s.features + i, total[j], lanes);
      });
    }
}

template <OpKind kind>
std::unique_ptr<Prepared> prepare_dense(const Problem& p) {
  const Shape& w = kind == OpKind::dense_backward_weights ? p.out[0].shape : p.in[1].shape;
  const bool convolution = p.op.kind != kind;  // whose pixels are samples
  const DenseShape s{convolution ? p.in[0].shape.rows() : p.in[0].shape.n(), w.n(), w.c()};
  const int64_t total = kind == OpKind::dense_backward_data ? s.features : s.outputs;
  const int64_t grain = kind == OpKind::dense_backward_data ? 64 : 8;
  const int used = static_cast<int>(std::clamp<int64_t>(ceil_div(total, grain), 1, p.threads));
  const int64_t share = ceil_div(ceil_div(total, grain), used) * grain;  // of a thread at most
  // Forward: sums of a thread's outputs; backward_data: its tile.
  const int64_t thread_floats = kind == OpKind::dense_forward         ? s.samples * share + 16
                                : kind == OpKind::dense_backward_data ? s.samples * dense_tile
                                                                      : 0;
  return prepared(
      [p, s, total, grain, used, thread_floats](const KernelArgs& args) {
        parallel_some(used, p.threads, [&](int thread) {
          auto* memory = reinterpret_cast<float*>(args.workspace) + thread * thread_floats;
          const Range range = split_range(total, thread, used, grain);
          by_storage(p.in[0].dtype, [&](auto zero) {
            using T = decltype(zero);
            if constexpr (kind == OpKind::dense_forward)
              dense_forward_outputs<T>(s, args, range, memory);
            else if constexpr (kind == OpKind::dense_backward_data)
              dense_data_features<T>(s, args, range, memory);
            else
              dense_weight_outputs<T>(s, args, range);
          });
        });
      },
      used * thread_floats * 4);
}
