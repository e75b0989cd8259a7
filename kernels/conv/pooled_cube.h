// What the CUDA convolutions of 3 x 3 x 3 around a 2x2x2 pool share on the host's side: what they refuse, how they are
// described to their kernels, and how weight gradients end.
#pragma once

#include "core/conv_shapes.h"
#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/sums.h"

namespace convoy::cuda {

/// Null where no pool is part of the op.
inline const ConvPoolAttrs* pooled(const Problem& p) {
  return std::get_if<ConvPoolAttrs>(&p.op.attrs);
}
inline double slope_of(const Problem& p) {
  return pooled(p) ? pooled(p)->pool.activation.slope : 1;
}

inline Support supports_cube(const Problem& p, const ConvShapes& s) {
  const Int3 one{1, 1, 1}, two{2, 2, 2}, zero{0, 0, 0};
  if (s.attrs.stride != one || s.attrs.dilation != one || s.attrs.groups != 1)
    return Support::no("stride, dilation and groups 1 only");
  if (s.w.d() != 3 || s.w.h() != 3 || s.w.w() != 3) return Support::no("3 x 3 x 3 kernels only");
  if (s.x.rows() > (1 << 30) || s.y.rows() > (1 << 30)) return Support::no("more than 2^30 positions");
  if (std::max(s.x.c(), s.y.c()) >= 1 << 21) return Support::no("2^21 channels or more");
  if (const ConvPoolAttrs* both = pooled(p)) {
    if (both->pool.activation.function != Activation::leaky_relu) return Support::no("leaky_relu only");
    if (const PoolAttrs& pool = both->pool.pool;
        pool.kernel != two || pool.stride != two || pool.pad_low != zero || pool.pad_high != zero)
      return Support::no("pools of 2 x 2 x 2 only");
  }
  return Support::yes();
}

/// 256 positions, `columns` of them across (mma_tile.h).
constexpr Int3 mma_tile(int columns) {
  return {4, 64 / columns, columns};
}

/// From `from` to `to`, cut into tiles of so many positions in depth, height and width.
inline MmaConv describe(const Shape& from, const Shape& to, const Int3& pad, double slope, const Int3& tile) {
  MmaConv p{};
  p.n = int(from.n()), p.d = int(from.d()), p.h = int(from.h()), p.w = int(from.w()), p.c = int(from.c());
  p.od = int(to.d()), p.oh = int(to.h()), p.ow = int(to.w()), p.k = int(to.c());
  for (int i = 0; i < 3; ++i) p.pad[i] = int(pad[i]);
  p.slope = float(slope);
  for (int i = 0; i < 3; ++i) p.tiles[i] = int((to[i + 1] + tile[i] - 1) / tile[i]);
  return p;
}

/// A pooled gradient behind the slope of its activation.
template <class T>
struct ScaledGradient {
  const T *gradient, *output;
  int64_t columns;
  float slope;
  __device__ float operator()(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    return to_float(output[i]) > 0 ? to_float(gradient[i]) : rounded<T>(slope * to_float(gradient[i]));
  }
};

/// Weight gradients in `splits` parts and what adds them: the workspace holds the parts, then room for the bias's sums,
/// unless these are in the parts, too (`with_bias`).
struct WeightParts {
  Shape pooled;
  int64_t weights;
  int splits;
  bool with_bias = false;

  int64_t workspace_bytes() const {
    if (with_bias && splits == 1) return 0;
    return 4 *
           (with_bias ? splits * (weights + pooled.c()) : weights * splits + row_sum_floats(pooled.rows(), pooled.c()));
  }
  /// Where a kernel writes its parts; one alone is the result.
  GradientParts target(const KernelArgs& a) const {
    if (splits == 1) return {data<float>(a.out[0]), data<float>(a.out[1]), 0};
    auto* parts = reinterpret_cast<float*>(a.workspace);
    return {parts, with_bias ? parts + weights : nullptr, weights + (with_bias ? pooled.c() : 0)};
  }
  /// Adds the parts to the weight gradient and the pooled gradient to that of the bias.
  template <class T>
  void finish(const KernelArgs& a, float slope) const {
    auto* parts = reinterpret_cast<float*>(a.workspace);
    auto *dw = data<float>(a.out[0]), *db = data<float>(a.out[1]);
    if (splits > 1)
      with_bias ? add_parts(splits, weights + pooled.c(), parts, ToTwoVectors{dw, db, weights})
                : add_parts(splits, weights, parts, ToVector{dw});
    if (!with_bias)
      row_sums(pooled.rows(), pooled.c(),
               ScaledGradient<T>{data<const T>(a.in[1]), data<const T>(a.in[2]), pooled.c(), slope},
               parts + weights * splits, db);
  }
};

}  // namespace convoy::cuda
