// A convolution's geometry as CUDA kernels of any stride, dilation and padding are told it.
#pragma once

#include "core/conv_shapes.h"
#include "core/round_up.h"

namespace convoy::cuda {

inline int pieces(int64_t whole, int64_t piece) {
  return int(ceil_div(whole, piece));
}

/// Depth, height and width; output position i reads input i*stride - pad + tap*dilation.
struct ConvGeometry {
  int x[3], y[3], kernel[3], stride[3], dilation[3], pad[3];
  int64_t n;
  int c, k, groups;  ///< channels of the whole tensors
};

inline ConvGeometry conv_geometry(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  ConvGeometry g{};
  for (int i = 0; i < 3; ++i) {
    const auto axis = static_cast<size_t>(i);
    g.x[i] = int(s.x[i + 1]), g.y[i] = int(s.y[i + 1]), g.kernel[i] = int(s.w[i + 1]);
    g.stride[i] = int(s.attrs.stride[axis]), g.dilation[i] = int(s.attrs.dilation[axis]);
    g.pad[i] = int(s.attrs.pad_low[axis]);
  }
  g.n = s.x.n(), g.c = int(s.x.c()), g.k = int(s.y.c()), g.groups = int(s.attrs.groups);
  return g;
}

}  // namespace convoy::cuda
