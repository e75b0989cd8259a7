// Bilinear resizing, one row of the result at a time: the row's two source rows (forward) or all rows that read it
// (backward) are blended by height into a row of f32, then by width into the result.

/// What one position of the result takes from one position of the source.
struct ResizeTerm {
  int64_t from;
  float weight;
};
using ResizeTerms = std::vector<std::vector<ResizeTerm>>;

/// Terms of all positions of the result along one axis; `transposed` swaps the parts of the two images.
inline ResizeTerms resize_terms(Corners corners, int64_t outputs, int64_t inputs, bool transposed) {
  ResizeTerms terms(size_t(transposed ? inputs : outputs));
  for (int64_t i = 0; i < outputs; ++i) {
    double at = 0;
    if (corners == Corners::half_pixel) at = (double(i) + 0.5) * double(inputs) / double(outputs) - 0.5;
    if (corners == Corners::asymmetric) at = double(i) * double(inputs) / double(outputs);
    if (corners == Corners::aligned && outputs > 1) at = double(i) * double(inputs - 1) / double(outputs - 1);
    at = std::clamp(at, 0.0, double(inputs - 1));
    const int64_t low = int64_t(at), high = std::min(low + 1, inputs - 1);
    const float share = float(at - double(low));
    for (const auto& [position, weight] : {std::pair<int64_t, float>{low, 1 - share}, {high, share}}) {
      if (weight == 0) continue;
      if (transposed)
        terms[size_t(position)].push_back({i, weight});
      else
        terms[size_t(i)].push_back({position, weight});
    }
  }
  return terms;
}

std::unique_ptr<Prepared> prepare_resize(const Problem& p) {
  const bool backward = p.op.kind == OpKind::resize_backward;
  // Every position of the result was a copy of the one pixel.
  if (backward && p.out[0].shape.rows() == p.out[0].shape.n()) return prepare_image_sums(p, 1);
  const Shape &x = p.in[0].shape, &y = p.out[0].shape;
  const Corners corners = p.op.as<ResizeAttrs>().corners;
  const auto terms = [&](int64_t from, int64_t to) {
    return backward ? resize_terms(corners, from, to, true) : resize_terms(corners, to, from, false);
  };
  const int64_t row_floats = round_up(x.w() * x.c(), 16);
  return prepared(
      [p, high = terms(x.h(), y.h()), wide = terms(x.w(), y.w()), row_floats](const KernelArgs& args) {
        const Shape &x = p.in[0].shape, &y = p.out[0].shape;
        const int64_t channels = x.c(), px = p.in[0].pixel_pitch(), py = p.out[0].pixel_pitch();
        by_storage(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          const T* from = args.in[0].data<T>();
          T* to = args.out[0].data<T>();
          const int64_t rows = y.n() * y.d() * y.h();
          parallel_threads(p.threads, [&](int thread) {
            float* blended = reinterpret_cast<float*>(args.workspace) + thread * row_floats;
            const Range mine = split_range(rows, thread, p.threads);
            for (int64_t row = mine.begin; row < mine.end; ++row) {
              const T* plane = from + row / y.h() * x.h() * x.w() * px;
              std::fill(blended, blended + x.w() * channels, 0.0f);
              for (const ResizeTerm& t : high[size_t(row % y.h())]) {
                const Vec weight = Vec::all(t.weight);
                for (int64_t w = 0; w < x.w(); ++w)
                  for_vectors(0, channels, [&](int64_t c, auto n) {
                    float* at = blended + w * channels + c;
                    put(at, fma(weight, get(plane + (t.from * x.w() + w) * px + c, n), get(at, n)), n);
                  });
              }
              for (int64_t w = 0; w < y.w(); ++w)
                for_vectors(0, channels, [&](int64_t c, auto n) {
                  Vec sum = Vec::all(0.0f);
                  for (const ResizeTerm& t : wide[size_t(w)])
                    sum = fma(Vec::all(t.weight), get(blended + t.from * channels + c, n), sum);
                  put(to + (row * y.w() + w) * py + c, sum, n);
                });
            }
          });
        });
      },
      p.threads * row_floats * 4);
}
