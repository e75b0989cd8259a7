// backward_data of images into few channels, which is also the forward pass of a transposed convolution with few
// outputs (a decoder's last layer): channels last, any kernel, stride and padding; f32, bf16 and f16 storage, f32
// arithmetic.
//
// A vector of output channels would be nearly empty. Instead every position of dy is multiplied by all taps and
// channels at once, P[position][tap][channel], a dense product, and rows of P are added where their taps fall: a row of
// taps of a position is one contiguous run of a row of dx. Threads take bands of rows of dx; the rows of P that meet a
// row of dx are kept in a ring, so only those between two bands are computed twice.
// Limit: the f32 FMA rate less the lanes that fill up the last vector (27 of 32 for 3x3x3).
//
// Refuses: volumes, groups, dilation, 16 channels and more, more than 128 taps times channels, strided weights and
// channels of dx that are a slice.

#include "kernels/conv/gemm_tile.inl"

struct Col2im {
  explicit Col2im(const Problem& p)
      : dy(p.in[0]),
        dx(p.out[0]),
        weights(p.in[1].shape),
        attrs(p.op.as<ConvAttrs>()),
        run(weights.w() * weights.c()),
        columns(weights.h() * run),
        padded(round_up(columns, gemm_columns)),
        ring(ceil_div(weights.h(), attrs.stride[1])),
        band(std::max(4 * weights.h(), std::min<int64_t>(dx.shape.h() * dx.shape.n() / (4 * p.threads), 128))),
        bands(ceil_div(dx.shape.h(), band)) {
    const int64_t reached =
        std::max((dy.shape.w() - 1) * attrs.stride[2] + weights.w(), dx.shape.w() + attrs.pad_low[2]);
    sums = round_up(reached * weights.c(), 16);
  }
  int64_t row_floats() const { return (dy.shape.w() + gemm_rows) * padded; }
  int64_t thread_floats() const { return ring * row_floats() + 2 * sums + gemm_rows * dy.shape.c(); }

  TensorDesc dy, dx;
  Shape weights;
  ConvAttrs attrs;
  int64_t run;      ///< columns of a row of taps
  int64_t columns;  ///< taps times channels
  int64_t padded;   ///< to whole blocks of vectors
  int64_t ring;     ///< rows of dy that meet a row of dx
  int64_t band, bands;
  int64_t sums;  ///< floats of a row of dx with its padding
};

/// P of a row of dy. Rows of a block past the end repeat what is there and are not read.
template <class T>
void col2im_products(const Col2im& s, const T* dy, const float* u, float* values, float* products) {
  const int64_t channels = s.dy.shape.c();
  for (int64_t w = 0; w < s.dy.shape.w(); w += gemm_rows) {
    for (int64_t r = 0; r < std::min(gemm_rows, s.dy.shape.w() - w); ++r)
      for_vectors(0, channels, [&](int64_t c, auto n) {
        const T* from = dy + (w + r) * s.dy.stride[3] + c;
        __builtin_prefetch(from + gemm_rows * s.dy.stride[3]);  // of the next block, while this one is multiplied
        put(values + r * channels + c, get(from, n), n);
      });
    for (int64_t k = 0; k < s.padded; k += gemm_columns)
      gemm_tile<gemm_rows, 2>(
          {values, channels, u + k * channels, products + w * s.padded + k, s.padded, u, 0});  // u stays in cache
  }
}

template <class T>
void col2im_run(const Problem& p, const Col2im& s, const KernelArgs& args) {
  const T* dy = args.in[0].data<T>();
  const auto* u = reinterpret_cast<const float*>(args.packed[0]);
  const float* bias = args.in.size() == 3 ? args.in[2].data<float>() : nullptr;
  T* dx = args.out[0].data<T>();
  const int64_t channels = s.weights.c();
  UnitCounter units(s.dx.shape.n() * s.bands);
  parallel_threads(p.threads, [&](int thread) {
    float* ring = reinterpret_cast<float*>(args.workspace) + thread * s.thread_floats();
    float* sums = ring + s.ring * s.row_floats();
    float* blank = sums + s.sums;  // a row of dx that nothing was added to
    for (int64_t i = 0; i < s.sums; ++i) blank[i] = bias ? bias[i % channels] : 0.0f;
    float* values = blank + s.sums;
    std::fill(values, values + gemm_rows * s.dy.shape.c(), 0.0f);
    for (int64_t unit; (unit = units.take()) >= 0;) {
      const int64_t n = unit / s.bands, first = unit % s.bands * s.band;
      int64_t lowest = INT64_MAX,
              highest = -1;  // rows whose products were made; those that may still be asked for are in the ring
      for (int64_t h = first; h < std::min(first + s.band, s.dx.shape.h()); ++h) {
        std::copy_n(blank, s.sums, sums);
        for (int64_t tap = 0; tap < s.weights.h(); ++tap) {
          const int64_t at = h + s.attrs.pad_low[1] - tap, row = at / s.attrs.stride[1];
          if (at < 0 || at % s.attrs.stride[1] != 0 || row >= s.dy.shape.h()) continue;
          float* products = ring + row % s.ring * s.row_floats();
          if (row < lowest || row > highest) {
            col2im_products(s, dy + s.dy.offset(n, 0, row, 0), u, values, products);
            lowest = std::min(lowest, row), highest = std::max(highest, row);
          }
          for (int64_t w = 0; w < s.dy.shape.w(); ++w) {
            float* to = sums + w * s.attrs.stride[2] * channels;
            const float* from = products + w * s.padded + tap * s.run;
            for (int64_t q = 0; q < s.run; ++q) to[q] += from[q];
          }
        }
        const float* inside = sums + s.attrs.pad_low[2] * channels;
        T* to = dx + s.dx.offset(n, 0, h, 0);
        for_vectors(0, s.dx.shape.w() * channels,
                    [&](int64_t i, auto length) { put(to + i, get(inside + i, length), length); });
      }
    }
  });
}

class PreparedCol2im final : public Prepared {
 public:
  explicit PreparedCol2im(const Problem& p) : problem_(p), shape_(p) {}
  int64_t workspace_bytes() const override { return problem_.threads * shape_.thread_floats() * 4; }
  std::string detail() const override {
    return std::to_string(shape_.columns) + " columns, bands of " + std::to_string(shape_.band) + " rows";
  }
  std::vector<PackRequest> packed_weights() const override {
    return {
        {1, "columns", shape_.weights.n() * shape_.padded * 4, [s = shape_](const Tensor& weight, std::byte* packed) {
           by_storage(weight.dtype(), [&](auto zero) {
             const auto* from = weight.data<decltype(zero)>();
             auto* to = reinterpret_cast<float*>(packed);
             for (int64_t first = 0; first < s.padded; first += gemm_columns)
               for (int64_t k = 0; k < s.weights.n(); ++k)
                 for (int64_t q = first; q < first + gemm_columns; ++q)
                   *to++ = q < s.columns ? static_cast<float>(from[k * s.columns + q]) : 0.0f;
           });
         }}};
  }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype, [&](auto zero) { col2im_run<decltype(zero)>(problem_, shape_, args); });
  }

 private:
  Problem problem_;
  Col2im shape_;
};

Support supports_col2im(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  const ConvAttrs& a = p.op.as<ConvAttrs>();
  const Shape& w = p.in[1].shape;
  if (w.d() != 1 || p.in[0].shape.d() != 1 || p.out[0].shape.d() != 1) return Support::no("needs images");
  if (a.pad_low[0] != 0 || a.pad_high[0] != 0) return Support::no("needs images without padding in depth");
  if (a.groups != 1 || a.dilation != Int3{1, 1, 1}) return Support::no("needs one group and no dilation");
  if (w.c() >= 16 || w.h() * w.w() * w.c() > 128)
    return Support::no("needs fewer than 16 channels and at most 128 taps times channels, found " + w.str());
  if (!p.in[1].dense()) return Support::no("needs dense weights");
  if (p.out[0].stride[3] != w.c()) return Support::no("writes whole rows, not slices of channels");
  return Support::yes();
}

/// Products grow with the columns, those of the direct kernels do not below 16 channels; a single tap is a product
/// already.
bool col2im_is_measured_faster(const Problem& p) {
  const Shape& w = p.in[1].shape;
  return w.h() * w.w() > 1 && w.h() * w.w() * w.c() <= 32;
}
