// Multiply-adds of a convolution whose taps fall inside the image: what is left of the dense count at the borders.
#pragma once

#include "core/conv_shapes.h"

namespace convoy::bench {

/// 2 per multiply-add with an input inside the image; the dense count for other ops.
inline int64_t valid_tap_flops(const Problem& p) {
  const auto s = conv_shapes(p);
  if (!s) return p.flops();
  return 2 * pairs_inside(*s) * s->w.n() * s->w.c();
}

}  // namespace convoy::bench
