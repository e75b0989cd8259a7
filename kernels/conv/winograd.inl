// 3-D Winograd F(2x2x2, 3x3x3), channels last, forward and backward_data: 64 multiplications where the direct sum takes
// 216, 3.375 times fewer (Winograd 1980; Lavin & Gray 2016; in N dimensions Jia et al. 2018).
//
// Loops: tiles of 2x2x2 outputs are taken a block at a time. Per block
//   1. input transform   V[p][tile][c] = B^T d B over the three axes, a vector of channels at a time through L1;
//   2. 64 products       M[p] = V[p] (tiles x C) * U[p] (C x K), `rows` x 2 vectors of accumulators in registers;
//   3. output transform  2x2x2 outputs per tile = A^T M A, plus bias, rounded once to the storage type.
// V and M of a block share the second-level cache; U comes packed (p, K/2 vectors, C, 2 vectors) from a Pack node.
// Storage may be f32, bf16 or f16; everything inside is f32. Limit: the f32 FMA rate times 3.375 in dense-count GFLOP/s;
// transforms cost about a quarter at C = K/2 = 32.
//
// Error: with integer-weighted transforms (entries 0, 1, 1/2) the result differs from the exact one by at most
// 27 C eps sum|x||w|, the same bound as a direct f32 sum; measured it is within a factor of 3 of direct summation.
//
// Refuses: other kernels than 3x3x3, stride, dilation, groups, channels that are no multiple of 16, strided tensors, and
// problems with fewer than 256 tiles, where the transformed weights (8/27 * 64 times the size) stream too often.

constexpr int64_t gemm_rows = Vec::lanes == 16 ? 8 : 4;
constexpr int64_t gemm_columns = 2 * Vec::lanes;
constexpr int64_t point_pad = 16;  // floats between points, so that 64 streams do not meet in one cache set

struct WinogradShape {
  Shape x, y;          // what is read and written (dy and dx for backward_data)
  Int3 pad;            // zeros in front of x
  Int3 tiles;
  int64_t tile_count, block, blocks, v_stride, m_stride;
};

inline WinogradShape winograd_shape(const Problem& p) {
  WinogradShape s;
  const auto& a = p.op.as<ConvAttrs>();
  s.x = p.in[0].shape, s.y = p.out[0].shape;
  for (int i = 0; i < 3; ++i) {
    s.pad[i] = p.op.kind == OpKind::conv_forward ? a.pad_low[i] : 2 - a.pad_low[i];
    s.tiles[i] = (s.y[i + 1] + 1) / 2;
  }
  s.tile_count = s.y.n() * s.tiles[0] * s.tiles[1] * s.tiles[2];
  // About 600 KiB for V and M of one block: they stay in a second-level cache of 1 MiB beside the streaming weights.
  const int64_t fit = (600 << 10) / (64 * 4 * (s.x.c() + s.y.c()));
  s.block = std::clamp<int64_t>(fit / gemm_rows * gemm_rows, gemm_rows, 64);
  s.blocks = (s.tile_count + s.block - 1) / s.block;
  s.v_stride = s.block * s.x.c() + point_pad;
  s.m_stride = s.block * s.y.c() + point_pad;
  return s;
}

inline int64_t winograd_thread_floats(const WinogradShape& s) { return 64 * (s.v_stride + s.m_stride); }

/// The corner of a tile's 2x2x2 outputs.
inline std::array<int64_t, 4> tile_corner(const WinogradShape& s, int64_t tile) {
  const int64_t w = tile % s.tiles[2], h = tile / s.tiles[2] % s.tiles[1], d = tile / (s.tiles[2] * s.tiles[1]) % s.tiles[0];
  return {tile / (s.tiles[2] * s.tiles[1] * s.tiles[0]), 2 * d, 2 * h, 2 * w};
}

/// B^T on four values: d0-d2, d1+d2, d2-d1, d1-d3.
inline void input_line(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec t0 = a - c, t1 = b + c, t2 = c - b, t3 = b - d;
  a = t0, b = t1, c = t2, d = t3;
}

template <class T>
void input_transform(const WinogradShape& s, const TensorDesc& desc, const T* x, int64_t tile, int64_t slot, float* v) {
  const auto [n, d0, h0, w0] = tile_corner(s, tile);
  const int64_t channels = s.x.c();
  alignas(64) float line[64 * Vec::lanes];
  for (int64_t c = 0; c < channels; c += Vec::lanes) {
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t d = d0 + i - s.pad[0], h = h0 + j - s.pad[1], w = w0 - s.pad[2];
        float* to = line + (i * 4 + j) * 4 * Vec::lanes;
        Vec in[4] = {Vec::all(0.0f), Vec::all(0.0f), Vec::all(0.0f), Vec::all(0.0f)};
        if (d >= 0 && d < s.x.d() && h >= 0 && h < s.x.h()) {
          const T* row = x + desc.offset(n, d, h, 0) + c;
          for (int64_t k = 0; k < 4; ++k)
            if (w + k >= 0 && w + k < s.x.w()) in[k] = load(row + (w + k) * channels);
        }
        input_line(in[0], in[1], in[2], in[3]);
        for (int64_t k = 0; k < 4; ++k) store(to + k * Vec::lanes, in[k]);
      }
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t k = 0; k < 4; ++k) {
        float* at = line + (i * 16 + k) * Vec::lanes;
        Vec a = load(at), b = load(at + 4 * Vec::lanes), e = load(at + 8 * Vec::lanes), f = load(at + 12 * Vec::lanes);
        input_line(a, b, e, f);
        store(at, a), store(at + 4 * Vec::lanes, b), store(at + 8 * Vec::lanes, e), store(at + 12 * Vec::lanes, f);
      }
    for (int64_t jk = 0; jk < 16; ++jk) {
      const float* at = line + jk * Vec::lanes;
      Vec a = load(at), b = load(at + 16 * Vec::lanes), e = load(at + 32 * Vec::lanes), f = load(at + 48 * Vec::lanes);
      input_line(a, b, e, f);
      float* to = v + slot * channels + c;
      store(to + jk * s.v_stride, a), store(to + (16 + jk) * s.v_stride, b);
      store(to + (32 + jk) * s.v_stride, e), store(to + (48 + jk) * s.v_stride, f);
    }
  }
}

/// A^T on four values: m0+m1+m2, m1-m2-m3.
inline void output_line(Vec a, Vec b, Vec c, Vec d, Vec& first, Vec& second) {
  first = a + b + c;
  second = b - c - d;
}

template <class T>
void output_transform(const WinogradShape& s, const TensorDesc& desc, const float* m, const float* bias, int64_t tile, int64_t slot, T* y) {
  const auto [n, d0, h0, w0] = tile_corner(s, tile);
  const int64_t channels = s.y.c();
  for (int64_t c = 0; c < channels; c += Vec::lanes) {
    const float* from = m + slot * channels + c;
    Vec half[2][4][4];
    for (int64_t j = 0; j < 4; ++j)
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t jk = j * 4 + k;
        output_line(load(from + jk * s.m_stride), load(from + (16 + jk) * s.m_stride), load(from + (32 + jk) * s.m_stride), load(from + (48 + jk) * s.m_stride), half[0][j][k], half[1][j][k]);
      }
    const Vec offset = bias ? load(bias + c) : Vec::all(0.0f);
    for (int64_t i = 0; i < 2 && d0 + i < s.y.d(); ++i) {
      Vec rows[2][4];
      for (int64_t k = 0; k < 4; ++k) output_line(half[i][0][k], half[i][1][k], half[i][2][k], half[i][3][k], rows[0][k], rows[1][k]);
      for (int64_t j = 0; j < 2 && h0 + j < s.y.h(); ++j) {
        Vec first, second;
        output_line(rows[j][0], rows[j][1], rows[j][2], rows[j][3], first, second);
        T* to = y + desc.offset(n, d0 + i, h0 + j, w0) + c;
        store(to, first + offset);
        if (w0 + 1 < s.y.w()) store(to + channels, second + offset);
      }
    }
  }
}

/// m (rows x columns vectors) = v (rows x C) * u (C x columns vectors); u is packed, `columns` is 1 or 2 vectors.
template <int columns>
inline void gemm_tile(const float* v, int64_t channels, const float* u, float* m, int64_t m_row) {
  Vec total[gemm_rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < gemm_rows; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) total[r][q] = Vec::all(0.0f);
  for (int64_t c = 0; c < channels; ++c) {
    Vec weight[columns];
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) weight[q] = load(u + c * gemm_columns + q * Vec::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < gemm_rows; ++r) {
      const Vec value = Vec::all(v[r * channels + c]);
#pragma GCC unroll 2
      for (int q = 0; q < columns; ++q) total[r][q] = fma(value, weight[q], total[r][q]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < gemm_rows; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) store(m + r * m_row + q * Vec::lanes, total[r][q]);
}

/// Floats of one point's packed weights: column blocks are padded to two vectors.
inline int64_t winograd_point_floats(int64_t in, int64_t out) { return (out + gemm_columns - 1) / gemm_columns * gemm_columns * in; }

inline void multiply_point(const WinogradShape& s, const float* v, const float* u, float* m, int64_t rows) {
  const int64_t in = s.x.c(), out = s.y.c();
  for (int64_t k = 0; k < out; k += gemm_columns)
    for (int64_t r = 0; r < rows; r += gemm_rows) {
      const float* block = u + k * in;
      if (out - k >= gemm_columns) gemm_tile<2>(v + r * in, in, block, m + r * out + k, out);
      else gemm_tile<1>(v + r * in, in, block, m + r * out + k, out);
    }
}

template <class T>
void winograd_run(const Problem& p, const WinogradShape& s, const KernelArgs& args) {
  const T* x = args.in[0].data<T>();
  T* y = args.out[0].data<T>();
  const auto* u = reinterpret_cast<const float*>(args.packed[0]);
  const float* bias = args.in.size() > 2 ? args.in[2].data<float>() : nullptr;
  const int64_t point = winograd_point_floats(s.x.c(), s.y.c());
  parallel_threads(p.threads, [&](int thread) {
    float* v = reinterpret_cast<float*>(args.workspace) + thread * winograd_thread_floats(s);
    float* m = v + 64 * s.v_stride;
    const Range mine = split_range(s.blocks, thread, p.threads);
    for (int64_t b = mine.begin; b < mine.end; ++b) {
      const int64_t first = b * s.block, count = std::min(s.block, s.tile_count - first);
      const int64_t rows = (count + gemm_rows - 1) / gemm_rows * gemm_rows;
      for (int64_t i = 0; i < count; ++i) input_transform(s, p.in[0], x, first + i, i, v);
      for (int64_t q = 0; q < 64; ++q) {
        // The rows that fill up the last register block are computed and thrown away.
        std::fill(v + q * s.v_stride + count * s.x.c(), v + q * s.v_stride + rows * s.x.c(), 0.0f);
        multiply_point(s, v + q * s.v_stride, u + q * point, m + q * s.m_stride, rows);
      }
      for (int64_t i = 0; i < count; ++i) output_transform(s, p.out[0], m, bias, first + i, i, y);
    }
  });
}

/// G on three taps: g0, (g0+g1+g2)/2, (g0-g1+g2)/2, g2.
inline void weight_line(Vec a, Vec b, Vec c, Vec* out) {
  const Vec half = Vec::all(0.5f), sum = (a + c) * half, middle = b * half;
  out[0] = a, out[1] = sum + middle, out[2] = sum - middle, out[3] = c;
}

/// U = G g G^T over three axes for one input channel and a vector of output channels; g is 27 taps x lanes.
inline void transform_taps(const float* g, float* u, int64_t point, int64_t at) {
  Vec first[4][3][3], second[4][4][3];
  for (int j = 0; j < 3; ++j)
    for (int k = 0; k < 3; ++k) {
      Vec out[4];
      weight_line(load(g + (j * 3 + k) * Vec::lanes), load(g + (9 + j * 3 + k) * Vec::lanes), load(g + (18 + j * 3 + k) * Vec::lanes), out);
      for (int i = 0; i < 4; ++i) first[i][j][k] = out[i];
    }
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 3; ++k) {
      Vec out[4];
      weight_line(first[i][0][k], first[i][1][k], first[i][2][k], out);
      for (int j = 0; j < 4; ++j) second[i][j][k] = out[j];
    }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      Vec out[4];
      weight_line(second[i][j][0], second[i][j][1], second[i][j][2], out);
      for (int k = 0; k < 4; ++k) store(u + ((i * 4 + j) * 4 + k) * point + at, out[k]);
    }
}

/// Packs weights K,3,3,3,C. Forward: C in, K out. Backward_data: K in, C out, taps reversed.
template <class T>
void winograd_pack(bool forward, const Tensor& weight, float* u, int threads) {
  const Shape& w = weight.shape();
  const int64_t in = forward ? w.c() : w.n(), out = forward ? w.n() : w.c(), point = winograd_point_floats(in, out);
  const T* from = weight.data<T>();
  const int64_t groups = (out + Vec::lanes - 1) / Vec::lanes;
  parallel_ranges(groups * in, threads, 16, [&](Range range) {
    alignas(64) float taps[27 * Vec::lanes];
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t first = i / in * Vec::lanes, input = i % in;
      for (int64_t t = 0; t < 27; ++t)
        for (int64_t q = 0; q < Vec::lanes; ++q) {
          const int64_t k = forward ? first + q : input, c = forward ? input : first + q;
          taps[t * Vec::lanes + q] = static_cast<float>(from[(k * 27 + (forward ? t : 26 - t)) * w.c() + c]);
        }
      const int64_t block = first / gemm_columns * gemm_columns;
      transform_taps(taps, u, point, block * in + input * gemm_columns + (first - block));
    }
  });
}

class PreparedWinograd final : public Prepared {
 public:
  explicit PreparedWinograd(const Problem& p) : problem_(p), shape_(winograd_shape(p)) {}
  int64_t workspace_bytes() const override { return problem_.threads * winograd_thread_floats(shape_) * 4; }
  std::string detail() const override { return "F(2,3)^3, " + std::to_string(shape_.block) + " tiles a block"; }
  std::vector<PackRequest> packed_weights() const override {
    const bool forward = problem_.op.kind == OpKind::conv_forward;
    return {{1, forward ? "F(2,3)^3 forward" : "F(2,3)^3 backward", 64 * winograd_point_floats(shape_.x.c(), shape_.y.c()) * 4,
             [forward, threads = problem_.threads](const Tensor& weight, std::byte* packed) {
               by_storage(weight.dtype(), [&](auto zero) { winograd_pack<decltype(zero)>(forward, weight, reinterpret_cast<float*>(packed), threads); });
             }}};
  }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype, [&](auto zero) { winograd_run<decltype(zero)>(problem_, shape_, args); });
  }

 private:
  Problem problem_;
  WinogradShape shape_;
};

Support supports_winograd(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
  const auto& a = p.op.as<ConvAttrs>();
  const Int3 one{1, 1, 1};
  const Shape& w = p.in[1].shape;
  if (w.d() != 3 || w.h() != 3 || w.w() != 3) return Support::no("needs a 3x3x3 kernel, found " + w.str());
  if (a.stride != one || a.dilation != one || a.groups != 1) return Support::no("needs stride 1, dilation 1 and one group");
  for (int i = 0; i < 3; ++i)
    if (a.pad_low[i] > 2) return Support::no("pads at most 2 in front");
  if (w.n() % 16 || w.c() % 16) return Support::no("needs channels in multiples of 16, found " + std::to_string(w.c()) + " and " + std::to_string(w.n()));
  if (const WinogradShape s = winograd_shape(p); s.tile_count < 256) return Support::no("needs 256 tiles of 2x2x2 outputs, found " + std::to_string(s.tile_count));
  return needs_dense(p);
}

std::unique_ptr<Prepared> prepare_winograd(const Problem& p) { return std::make_unique<PreparedWinograd>(p); }
