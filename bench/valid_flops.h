// Multiply-adds of a convolution whose taps fall inside the image: what is left of the dense count at the borders.
#pragma once

#include "core/conv_shapes.h"

namespace convoy::bench {

/// 2 per multiply-add with an input inside the image; the dense count for other ops.
inline int64_t valid_tap_flops(const Problem& p) {
  const auto s = conv_shapes(p);
  if (!s) return p.flops();
  const ConvAttrs& a = s->attrs;
  int64_t pairs = 1;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t inside = 0;
    for (int64_t t = 0; t < s->w[axis + 1]; ++t) inside += positions_inside(a, axis, t, s->x[axis + 1], s->y[axis + 1]);
    pairs *= inside;
  }
  return 2 * s->x.n() * pairs * s->w.n() * s->w.c();
}

}  // namespace convoy::bench
