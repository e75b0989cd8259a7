// What kernels of images that the copy engine brings ask of a problem.
#pragma once

#include "core/conv_shapes.h"
#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// Compute capability 9.0, 16 bits, images without groups, stride 1, inputs whose channels come in eights.
inline Support hopper_images([[maybe_unused]] const Problem& p) {
#ifdef CONVOY_WITH_HOPPER
  if (capability() != 90) return Support::no(capability() ? "not of compute capability 9.0" : "no CUDA device is open");
  if (const Support even = even_floats(p); !even.ok) return even;
  if (p.in[0].dtype == DType::f32) return Support::no("bf16 and f16 only");
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.groups != 1) return Support::no("groups 1 only");
  if (s.x.d() != 1 || s.y.d() != 1 || s.w.d() != 1 || s.attrs.pad_low[0] != 0) return Support::no("images only");
  if (s.attrs.stride[1] != 1 || s.attrs.stride[2] != 1) return Support::no("stride 1 only");
  if (p.in[0].shape.c() % 8 != 0 || p.in[0].pixel_pitch() % 8 != 0) return Support::no("multiples of eight channels");
  if (s.x.rows() > 1 << 30 || s.y.rows() > 1 << 30 || s.w.elements() > 1 << 30)
    return Support::no("more than 2^30 positions or weights");
  return Support::yes();
#else
  return Support::no("not compiled for 9.0a");
#endif
}

}  // namespace convoy::cuda
