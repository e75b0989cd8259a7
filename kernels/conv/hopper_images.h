// What kernels of images that the copy engine brings ask of a problem.
#pragma once

#include <initializer_list>
#include <string>

#include "core/conv_shapes.h"
#include "core/error.h"
#include "kernels/device/tensor_map.h"

namespace convoy::cuda {

/// Compute capability 9.0, 16 bits, images.
inline Support hopper_images(const Problem& p) {
  if (const Support support = runs_wgmma(); !support.ok) return support;
  if (const Support even = even_convolution(p); !even.ok) return even;
  if (p.in[0].dtype == DType::f32) return Support::no("bf16 and f16 only");
  const ConvShapes s = *conv_shapes(p);
  if (s.x.d() != 1 || s.y.d() != 1 || s.w.d() != 1 || s.attrs.pad_low[0] != 0) return Support::no("images only");
  if (s.x.rows() > 1 << 30 || s.y.rows() > 1 << 30 || s.w.elements() > 1 << 30)
    return Support::no("more than 2^30 positions or weights");
  return Support::yes();
}
/// The same without groups.
inline Support ungrouped_images(const Problem& p) {
  const Support images = hopper_images(p);
  return images.ok && conv_shapes(p)->attrs.groups != 1 ? Support::no("groups 1 only") : images;
}
/// Tensors that the copy engine reads: channels in eights.
inline Support copied(std::initializer_list<const TensorDesc*> tensors) {
  for (const TensorDesc* t : tensors)
    if (t->shape.c() % 8 != 0 || t->pixel_pitch() % 8 != 0) return Support::no("multiples of eight channels");
  return Support::yes();
}

/// Throws Error(runtime) in the name of a kernel where `t`, called `what`, begins at no multiple of so many bytes: a
/// slice's place is not known before.
inline void expect_even_place(const std::string& kernel, const Tensor& t, const std::string& what, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(t.bytes()) % bytes != 0)
    fail_runtime(kernel + ": " + what + " does not begin at a multiple of " + std::to_string(bytes) +
                 " bytes; choose another kernel for this layer");
}

/// A tensor of images of this depth, height and width in pieces. Throws as expect_even_place does where the copy engine
/// cannot begin.
inline CUtensorMap image_map(const std::string& kernel, const Tensor& t, const int (&extent)[3], int64_t images,
                             const Piece& piece) {
  expect_even_place(kernel, t, "a slice", 16);
  return tensor_map({t.dtype(), t.bytes(), t.shape().c(), extent[2], extent[1], images, t.desc().pixel_pitch(), piece});
}

}  // namespace convoy::cuda
