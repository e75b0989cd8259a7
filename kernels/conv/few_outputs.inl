// 1x1 convolutions into at most four channels, a network's logits: forward and weight gradients, channels last; f32,
// bf16 and f16 storage, f32 sums.
//
// A vector of outputs would be nearly empty, so the lanes are input channels. Forward: dot products of some positions
// with all outputs at a time, added across the lanes at the end. Weight gradients: every vector of the input meets the
// few values of its position's gradient; bands of positions that stay in the first cache pass once per group of
// channels whose sums fill the registers. Parts of the positions depend on the problem alone and are added up in order.
// Limit: reading the input once; its lines are asked for tens of positions ahead.
//
// Refuses: types other than f32, bf16, f16, other kernels and strides, padding, groups, more than four outputs, strided
// weights.

constexpr int64_t band_positions = 32;  // of 256 channels in f32: 32 KiB
constexpr int64_t gradient_parts = 64;  // enough to keep this many threads busy

/// Calls f(std::integral_constant<int, outputs>).
template <class F>
void by_outputs(int64_t outputs, F&& f) {
  switch (outputs) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    default:
      return f(std::integral_constant<int, 4>{});
  }
}

/// Asks for the cache line that a later band reads; the second-level cache has more room for lines on their way.
template <class T>
inline void ask_ahead(const T* p, int64_t step) {
  __builtin_prefetch(p + band_positions * step, 0, 2);
}

/// A row of positions, `x_step` and `y_step` elements apart. Weights as [output][pitch] in f32, filled up with zeros.
template <class T, int outputs>
struct FewOutputsRow {
  const T* x;
  int64_t x_step, channels;
  const float *weights, *bias;
  int64_t pitch;
  T* y;
  int64_t y_step;

  template <int positions>
  void run(int64_t at) const {
    Vec total[positions][outputs];
#pragma GCC unroll 4
    for (int r = 0; r < positions; ++r)
#pragma GCC unroll 4
      for (int k = 0; k < outputs; ++k) total[r][k] = Vec::all(0);
    const T* from = x + at * x_step;
    for_vectors(
        0, channels, [&](int64_t c, auto n) __attribute__((always_inline)) {
          Vec weight[outputs];
#pragma GCC unroll 4
          for (int k = 0; k < outputs; ++k) weight[k] = load(weights + k * pitch + c);
#pragma GCC unroll 4
          for (int r = 0; r < positions; ++r) {
            const T* value = from + r * x_step + c;
            ask_ahead(value, x_step);
            const Vec in = get(value, n);
#pragma GCC unroll 4
            for (int k = 0; k < outputs; ++k) total[r][k] = fma(in, weight[k], total[r][k]);
          }
        });
#pragma GCC unroll 4
    for (int r = 0; r < positions; ++r)
#pragma GCC unroll 4
      for (int k = 0; k < outputs; ++k) y[(at + r) * y_step + k] = static_cast<T>(sum(total[r][k]) + bias[k]);
  }
  void run_all(int64_t count) const {
    constexpr int together = Vec::lanes == 16 ? 4 : 2;
    int64_t at = 0;
    for (; at + together <= count; at += together) run<together>(at);
    for (; at < count; ++at) run<1>(at);
  }
};

class PreparedFewOutputs final : public Prepared {
 public:
  explicit PreparedFewOutputs(const Problem& p) : problem_(p), shape_(p), pitch_(round_up(shape_.in, Vec::lanes)) {}
  int64_t workspace_bytes() const override { return few_outputs_at_most * (pitch_ + 1) * 4; }
  std::string detail() const override { return std::to_string(shape_.out) + " outputs"; }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      by_outputs(shape_.out, [&](auto outputs) { run_typed<decltype(zero), outputs>(args); });
    });
  }

 private:
  template <class T, int outputs>
  void run_typed(const KernelArgs& args) const {
    auto* weights = reinterpret_cast<float*>(args.workspace);
    float* bias = weights + outputs * pitch_;
    for (int k = 0; k < outputs; ++k) {
      bias[k] = args.in.size() > 2 ? args.in[2].data<float>()[k] : 0.0f;
      for (int64_t c = 0; c < pitch_; ++c)
        weights[k * pitch_ + c] = c < shape_.in ? static_cast<float>(args.in[1].data<T>()[k * shape_.in + c]) : 0.0f;
    }
    parallel_ranges(shape_.rows(), problem_.threads, 1, [&](Range rows) {
      for (int64_t row = rows.begin; row < rows.end; ++row)
        FewOutputsRow<T, outputs>{args.in[0].data<T>() + DirectShape::row_offset(shape_.x, row),
                                  shape_.x.stride[3],
                                  shape_.in,
                                  weights,
                                  bias,
                                  pitch_,
                                  args.out[0].data<T>() + DirectShape::row_offset(shape_.y, row),
                                  shape_.y.stride[3]}
            .run_all(shape_.positions);
    });
  }

  Problem problem_;
  DirectShape shape_;
  int64_t pitch_;
};

/// Adds `vectors` vectors of channels of some positions, times their gradients, to sums of [output][pitch].
template <int outputs, int vectors, class T, class N>
[[gnu::always_inline]] inline void add_products(const T* x, int64_t x_step, int64_t count, const float* gradient,
                                                float* sums, int64_t pitch, N n) {
  Vec total[outputs][vectors];
#pragma GCC unroll 4
  for (int k = 0; k < outputs; ++k)
#pragma GCC unroll 8
    for (int q = 0; q < vectors; ++q) total[k][q] = load(sums + k * pitch + q * Vec::lanes);
  for (int64_t i = 0; i < count; ++i, x += x_step) {
    Vec in[vectors];
#pragma GCC unroll 8
    for (int q = 0; q < vectors; ++q) {
      ask_ahead(x + q * Vec::lanes, x_step);
      in[q] = get(x + q * Vec::lanes, n);
    }
#pragma GCC unroll 4
    for (int k = 0; k < outputs; ++k) {
      const Vec value = Vec::all(gradient[i * outputs + k]);
#pragma GCC unroll 8
      for (int q = 0; q < vectors; ++q) total[k][q] = fma(in[q], value, total[k][q]);
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < outputs; ++k)
#pragma GCC unroll 8
    for (int q = 0; q < vectors; ++q) store(sums + k * pitch + q * Vec::lanes, total[k][q]);
}

class PreparedFewOutputsWeights final : public Prepared {
 public:
  explicit PreparedFewOutputsWeights(const Problem& p)
      : problem_(p),
        shape_(p),
        pitch_(round_up(shape_.in, Vec::lanes)),
        parts_(std::min(gradient_parts, shape_.rows())),
        part_floats_(few_outputs_at_most * (pitch_ + Vec::lanes)) {}
  int64_t workspace_bytes() const override { return parts_ * part_floats_ * 4; }
  std::string detail() const override {
    return std::to_string(shape_.out) + " outputs, " + std::to_string(parts_) + " parts";
  }
  void run(const KernelArgs& args) const override {
    auto* sums = reinterpret_cast<float*>(args.workspace);
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      by_outputs(shape_.out, [&](auto outputs) {
        parallel_ranges(parts_, problem_.threads, 1, [&](Range parts) {
          for (int64_t part = parts.begin; part < parts.end; ++part)
            sum_part<decltype(zero), outputs>(args, part, sums + part * part_floats_);
        });
      });
    });
    for (int64_t part = 1; part < parts_; ++part)
      for_vectors(0, part_floats_, [&](int64_t i, auto n) {
        put(sums + i, get(sums + i, n) + get(sums + part * part_floats_ + i, n), n);
      });
    for (int64_t k = 0; k < shape_.out; ++k)
      std::copy_n(sums + k * pitch_, shape_.in, args.out[0].data<float>() + k * shape_.in);
    std::copy_n(sums + few_outputs_at_most * pitch_, shape_.out, args.out[1].data<float>());
  }

 private:
  /// The products, as [output][pitch], and behind few_outputs_at_most of them the gradients' sums.
  template <class T, int outputs>
  void sum_part(const KernelArgs& args, int64_t part, float* sums) const {
    constexpr int vectors = std::min(8, (Vec::lanes == 16 ? 24 : 12) / outputs);
    std::fill(sums, sums + part_floats_, 0.0f);
    float* bias = sums + few_outputs_at_most * pitch_;
    const Range rows = split_range(shape_.rows(), static_cast<int>(part), static_cast<int>(parts_));
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const T* x = args.in[0].data<T>() + DirectShape::row_offset(shape_.x, row);
      const T* dy = args.in[1].data<T>() + DirectShape::row_offset(shape_.y, row);
      for (int64_t first = 0; first < shape_.positions; first += band_positions) {
        const int64_t count = std::min(band_positions, shape_.positions - first), step = shape_.x.stride[3];
        float gradient[band_positions * outputs];
        for (int64_t i = 0; i < count; ++i)
          for (int k = 0; k < outputs; ++k) {
            gradient[i * outputs + k] = static_cast<float>(dy[(first + i) * shape_.y.stride[3] + k]);
            bias[k] += gradient[i * outputs + k];
          }
        const T* from = x + first * step;
        constexpr std::integral_constant<int64_t, 0> whole{};
        int64_t c = 0;
        for (; c + vectors * Vec::lanes <= shape_.in; c += vectors * Vec::lanes)
          add_products<outputs, vectors>(from + c, step, count, gradient, sums + c, pitch_, whole);
        for_vectors(c, shape_.in, [&](int64_t at, auto n) {
          add_products<outputs, 1>(from + at, step, count, gradient, sums + at, pitch_, n);
        });
      }
    }
  }

  Problem problem_;
  DirectShape shape_;
  int64_t pitch_, parts_, part_floats_;
};

Support supports_few_outputs(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (const Support pointwise = needs_pointwise(p); !pointwise.ok) return pointwise;
  if (p.op.as<ConvAttrs>().stride != Int3{1, 1, 1}) return Support::no("needs stride 1");
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights;
  const TensorDesc& weights = sums_weights ? p.out[0] : p.in[1];
  if (!weights.dense()) return Support::no("needs dense weights, found " + weights.str());
  if (weights.shape.n() > few_outputs_at_most)
    return Support::no("needs " + std::to_string(few_outputs_at_most) + " outputs at most, found " +
                       weights.shape.str());
  return Support::yes();
}

template <class T>
std::unique_ptr<Prepared> prepare_few_outputs(const Problem& p) {
  return std::make_unique<T>(p);
}
