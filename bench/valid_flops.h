// Multiply-adds of a convolution whose taps fall inside the image: what is left of the dense count at the borders.
#pragma once

#include "core/kernel.h"

namespace convoy::bench {

/// 2 per multiply-add with an input inside the image; the dense count for other ops.
inline int64_t valid_tap_flops(const Problem& p) {
  const OpKind kind = p.op.kind;
  if (kind != OpKind::conv_forward && kind != OpKind::conv_activation_forward && kind != OpKind::conv_backward_data &&
      kind != OpKind::conv_backward_weights)
    return p.flops();
  const auto& a = p.op.as<ConvAttrs>();
  const bool data = kind == OpKind::conv_backward_data, weights = kind == OpKind::conv_backward_weights;
  const Shape &x = data ? p.out[0].shape : p.in[0].shape, &w = weights ? p.out[0].shape : p.in[1].shape;
  const Shape& y = data ? p.in[0].shape : weights ? p.in[1].shape : p.out[0].shape;
  int64_t pairs = 1;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t inside = 0;
    for (int64_t o = 0; o < y[axis + 1]; ++o)
      for (int64_t t = 0; t < w[axis + 1]; ++t) {
        const int64_t at = o * a.stride[axis] - a.pad_low[axis] + t * a.dilation[axis];
        inside += at >= 0 && at < x[axis + 1];
      }
    pairs *= inside;
  }
  return 2 * x.n() * pairs * w.n() * w.c();
}

}  // namespace convoy::bench
