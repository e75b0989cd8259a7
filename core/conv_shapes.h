// The convolution inside a problem, whatever the pass and whether activation and pool are fused with it.
#pragma once

#include <optional>

#include "core/kernel.h"

namespace convoy {

/// x and y as the forward convolution reads and writes them (y before a pool), w as K, KD, KH, KW, C/groups; attrs of
/// the plain forward convolution: no activation, no size asked for.
struct ConvShapes {
  ConvAttrs attrs;
  Shape x, w, y;
};

/// A convolution's gradient of its input, alone or on top of a value.
inline bool is_data_gradient(OpKind kind) {
  return kind == OpKind::conv_backward_data || kind == OpKind::conv_backward_data_add;
}

/// Whether the problem is a convolution's data gradient on top of its third input.
inline bool adds_to_value(const Problem& p) {
  return p.op.kind == OpKind::conv_backward_data_add;
}

/// The convolution alone where a problem adds it to something; any other problem is itself.
inline Problem without_addend(const Problem& p) {
  if (!adds_to_value(p)) return p;
  Problem alone = p;
  alone.op.kind = OpKind::conv_backward_data;
  alone.in.pop_back();
  return alone;
}

/// Positions of the result along an axis at which a tap meets the input and not its padding.
inline int64_t positions_inside(const ConvAttrs& a, int axis, int64_t tap, int64_t inputs, int64_t results) {
  int64_t inside = 0;
  for (int64_t i = 0; i < results; ++i) {
    const int64_t at = i * a.stride[axis] - a.pad_low[axis] + tap * a.dilation[axis];
    inside += at >= 0 && at < inputs;
  }
  return inside;
}

/// Nothing for ops that are no convolution.
inline std::optional<ConvShapes> conv_shapes(const Problem& p) {
  const auto shape = [&](size_t input) { return p.in[input].shape; };
  ConvShapes s;
  if (const auto* both = std::get_if<ConvPoolAttrs>(&p.op.attrs))
    s.attrs = both->conv;
  else if (const auto* plain = std::get_if<ConvAttrs>(&p.op.attrs))
    s.attrs = *plain;
  switch (p.op.kind) {
    case OpKind::conv_forward:
    case OpKind::conv_activation_forward:
    case OpKind::conv_pool_forward:
      s.x = shape(0), s.w = shape(1);
      break;
    case OpKind::conv_backward_data:
    case OpKind::conv_backward_data_add:
      s.x = p.out[0].shape, s.w = shape(1);
      break;
    case OpKind::conv_pool_backward_data:
      s.x = p.out[0].shape, s.w = shape(3);
      break;
    case OpKind::conv_backward_weights:
    case OpKind::conv_pool_backward_weights:
      s.x = shape(0), s.w = p.out[0].shape;
      break;
    default:
      return std::nullopt;
  }
  s.attrs.result_size = {0, 0, 0}, s.attrs.slope = 1;
  s.y = infer({OpKind::conv_forward, s.attrs}, std::vector{TensorDesc(s.x, DType::f32), TensorDesc(s.w, DType::f32)})[0]
            .shape;
  return s;
}

/// Pairs of a result position and a tap that meet the input and not its padding.
inline int64_t pairs_inside(const ConvShapes& s) {
  int64_t pairs = s.y.n();
  for (int axis = 0; axis < 3; ++axis) {
    int64_t inside = 0;
    for (int64_t tap = 0; tap < s.w[axis + 1]; ++tap)
      inside += positions_inside(s.attrs, axis, tap, s.x[axis + 1], s.y[axis + 1]);
    pairs *= inside;
  }
  return pairs;
}

/// Their share among all pairs.
inline double share_inside(const ConvShapes& s) {
  return double(pairs_inside(s)) / (double(s.y.rows()) * double(s.w.d() * s.w.h() * s.w.w()));
}

}  // namespace convoy
