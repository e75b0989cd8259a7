// What kernels of depthwise 3x3 convolutions on CUDA devices (depthwise_cuda.cu, depthwise_tma.cu) know of a problem.
#pragma once

#include "core/conv_shapes.h"

namespace convoy::cuda::depthwise_3x3 {

constexpr int strip = 4;  ///< neighbouring outputs that a thread takes at once, where it loads to registers
constexpr int taps = 9;

/// A map from one image to another of the same channels: the position that tap k of output i reads is
/// i*stride - pad + k*dilation.
struct Geometry {
  int in[2], out[2], stride[2], pad[2], dilation[2];
  int64_t images;
  int strips() const { return (out[1] + strip - 1) / strip; }
};

inline Geometry geometry(const ConvShapes& s) {
  Geometry g{};
  for (int i = 0; i < 2; ++i) {
    const auto axis = static_cast<size_t>(i + 1);
    g.in[i] = int(s.x[i + 2]), g.out[i] = int(s.y[i + 2]), g.stride[i] = int(s.attrs.stride[axis]);
    g.pad[i] = int(s.attrs.pad_low[axis]), g.dilation[i] = int(s.attrs.dilation[axis]);
  }
  g.images = s.x.n();
  return g;
}

/// The other way round; with a stride, taps that fall between outputs read nothing.
inline Geometry reversed(const Geometry& g) {
  Geometry r = g;
  for (int i = 0; i < 2; ++i) r.in[i] = g.out[i], r.out[i] = g.in[i], r.pad[i] = 2 * g.dilation[i] - g.pad[i];
  return r;
}

inline Support filters_of_channels(const ConvShapes& s) {
  if (s.attrs.groups != s.x.c() || s.attrs.groups != s.y.c()) return Support::no("as many groups as channels only");
  if (s.w.d() != 1 || s.w.h() != 3 || s.w.w() != 3) return Support::no("3x3 only");
  return Support::yes();
}

}  // namespace convoy::cuda::depthwise_3x3
