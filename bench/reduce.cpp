#include "bench/reduce.h"

#include <algorithm>
#include <cmath>

#include "core/conv_shapes.h"
#include "core/problem_limits.h"

namespace convoy::bench {
namespace {

/// The type of `original` at another shape; what lies between the rows and pixels of a slice stays.
TensorDesc like(const TensorDesc& original, const Shape& shape) {
  TensorDesc desc(shape, original.dtype);
  if (original.dense()) return desc;
  desc.stride[3] = original.stride[3];
  for (size_t i = 3; i-- > 0;) {
    const int axis = static_cast<int>(i) + 1;
    desc.stride[i] =
        shape[axis] * desc.stride[i + 1] + original.stride[i] - original.shape[axis] * original.stride[i + 1];
  }
  return desc;
}

/// Outputs of the op, as slices where they were; then the updated states.
void set_outputs(Problem& q, const Problem& p) {
  q.out = infer(q.op, q.in);
  for (size_t i = 0; i < q.out.size(); ++i) q.out[i] = like(p.out[i], q.out[i].shape);
  const auto updated = static_cast<std::ptrdiff_t>(op_def(q.op.kind).updated_inputs);
  q.out.insert(q.out.end(), q.in.end() - updated, q.in.end());
}

Problem reduced_convolution(const Problem& p, const ConvShapes& shapes, Reduction reduction) {
  const ConvAttrs& forward = shapes.attrs;
  const auto* pooled = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  Shape x = shapes.x, w = shapes.w;
  const auto fewer = [&](int64_t channels) {
    return forward.groups > 1 || channels <= reduction.channels ? channels : reduction.channels + channels % 16;
  };
  x = {std::min(x.n(), reduction.samples), x.d(), x.h(), x.w(), fewer(x.c())},
  w = {fewer(w.n()), w.d(), w.h(), w.w(), forward.groups > 1 ? w.c() : x.c()};
  for (int i = 0; i < 3; ++i) {
    const int64_t outputs = pooled ? pooled->pool.pool.kernel[static_cast<size_t>(i)] : 1;
    const int64_t reach = (outputs - 1) * forward.stride[i] + forward.dilation[i] * (w[i + 1] - 1) + 1 -
                          forward.pad_low[i] - forward.pad_high[i];
    int64_t extent = std::max({reduction.extent, reach, i == 2 ? reduction.columns : 0});
    if (pooled) extent = (extent + 3) / 4 * 4;  // pooled backwards only from even extents
    x[i + 1] = std::min(x[i + 1], extent);
  }
  const DType type = p.in[0].dtype;
  const Shape y =
      infer({OpKind::conv_forward, forward}, std::vector{TensorDesc(x, type), TensorDesc(w, type)})[0].shape;
  Problem q = p;
  const auto input = [&](size_t i, const Shape& shape) { q.in[i] = like(p.in[i], shape); };
  const auto bias = [&](int64_t channels) {
    if (p.in.size() > 2) input(2, Shape::vector(channels));
  };
  if (pooled) {
    ConvPoolAttrs both = *pooled;
    both.pool.pool.result_size = {0, 0, 0};
    const Shape cells = infer({OpKind::activation_max_pool, both.pool}, std::vector{TensorDesc(y, type)})[0].shape;
    if (p.op.kind == OpKind::conv_pool_forward) {
      input(0, x), input(1, w), bias(w.n());
    } else {
      both.pool.pool.result_size = spatial(y);
      const bool data = p.op.kind == OpKind::conv_pool_backward_data;
      if (data) both.conv.result_size = spatial(x);
      for (size_t i = 0; i < 4; ++i) input(i, cells);
      data ? input(3, w) : input(0, x);
    }
    q.op.attrs = both;
  } else if (is_data_gradient(p.op.kind)) {
    ConvAttrs data = forward;
    data.result_size = spatial(x), q.op.attrs = data;
    input(0, y), input(1, w);
    adds_to_value(p) ? input(2, x) : bias(x.c());
  } else if (p.op.kind == OpKind::conv_backward_weights) {
    input(0, x), input(1, y);
  } else {
    input(0, x), input(1, w), bias(w.n());
  }
  set_outputs(q, p);
  return q;
}

/// Channels that one operation each goes over alike.
int64_t fewer_channels(int64_t channels) {
  return channels <= 64 ? channels : 48 + channels % 16;
}

/// The same remainder of windows at the end, a few whole ones in front of it.
int64_t pooled_extent(int64_t extent, int64_t kernel, int64_t stride) {
  const int64_t most = kernel + 4 * stride;
  return extent <= most ? extent : most - (most - extent % stride) % stride;
}

/// `forward`: the pool itself, whose backward pass may be p.
Problem reduced_pool(const Problem& p, Op forward, PoolAttrs& geometry) {
  const bool back = p.op.kind == OpKind::max_pool_backward || p.op.kind == OpKind::avg_pool_backward ||
                    p.op.kind == OpKind::activation_max_pool_backward;
  const Int3 extents = back ? geometry.result_size : spatial(p.in[0].shape);
  Shape x(std::min<int64_t>(2, p.in[0].shape.n()), 1, 1, 1, fewer_channels(p.in[0].shape.c()));
  for (int i = 0; i < 3; ++i)
    x[i + 1] = pooled_extent(extents[static_cast<size_t>(i)], geometry.kernel[static_cast<size_t>(i)],
                             geometry.stride[static_cast<size_t>(i)]);
  Problem q = p;
  if (back) geometry.result_size = spatial(x);
  if (auto* fused = std::get_if<ActivationPoolAttrs>(&q.op.attrs))
    fused->pool = geometry;
  else
    q.op.attrs = geometry;
  forward.attrs = q.op.attrs;
  const Shape in = back ? infer(forward, std::vector{TensorDesc(x, p.in[0].dtype)})[0].shape : x;
  for (size_t i = 0; i < p.in.size(); ++i) q.in[i] = like(p.in[i], in);
  set_outputs(q, p);
  return q;
}

/// Both sizes shrink alike, so that a kernel for a whole factor keeps it.
Problem reduced_resize(const Problem& p) {
  constexpr int64_t small = 7, large = 64;
  Problem q = p;
  auto attrs = p.op.as<ResizeAttrs>();
  Shape in = p.in[0].shape;
  in[0] = std::min<int64_t>(2, in.n()), in[4] = fewer_channels(in.c());
  in[1] = attrs.result_size[0] = std::min<int64_t>(3, in.d());
  for (int i = 2; i < 4; ++i) {
    int64_t &from = in[i], &to = attrs.result_size[static_cast<size_t>(i - 1)];
    int64_t &less = from < to ? from : to, &more = from < to ? to : from;
    const double factor = double(more) / double(less);
    less = std::min(less, small);
    more = std::min({more, large, std::max<int64_t>(less, std::llround(factor * double(less)))});
  }
  q.op.attrs = attrs;
  q.in[0] = like(p.in[0], in);
  set_outputs(q, p);
  return q;
}

/// Few samples and outputs; all features but where they are too many for the reference.
Problem reduced_dense(const Problem& p) {
  constexpr int64_t many = 1 << 17, few_positions = 4;
  const bool data = p.op.kind == OpKind::dense_backward_data, weights = p.op.kind == OpKind::dense_backward_weights;
  Shape x = data ? p.out[0].shape : p.in[0].shape;
  if (x.elements() / x.n() > many)
    for (int i = 1; i < 4; ++i) x[i] = std::min(x[i], few_positions);
  x[0] = x.n() <= 16 ? x.n() : 8 + x.n() % 8;
  const int64_t outputs = fewer_channels(weights ? p.in[1].shape.c() : p.in[1].shape.n());
  const Shape y(x.n(), 1, 1, 1, outputs), w(outputs, 1, 1, 1, x.elements() / x.n());
  Problem q = p;
  if (data) q.op.attrs = ConvAttrs{.result_size = spatial(x)};
  q.in[0] = like(p.in[0], data ? y : x);
  q.in[1] = like(p.in[1], weights ? y : w);
  if (p.in.size() > 2) q.in[2] = like(p.in[2], Shape::vector(outputs));
  set_outputs(q, p);
  return q;
}

/// Every tensor over fewer positions; vectors and scalars stay.
Problem reduced_map(const Problem& p) {
  constexpr Int3 most{3, 5, 7};
  Problem q = p;
  for (TensorDesc& desc : q.in) {
    Shape s = desc.shape;
    s[0] = std::min<int64_t>(2, s.n());
    for (int i = 0; i < 3; ++i) s[i + 1] = std::min(s[i + 1], most[static_cast<size_t>(i)]);
    desc = like(desc, s);
  }
  set_outputs(q, p);
  return q;
}

std::optional<Problem> reduce_other(const Problem& p) {
  switch (p.op.kind) {
    case OpKind::bucket:
    case OpKind::unbucket:
    case OpKind::all_reduce_start:
    case OpKind::all_reduce_wait:
    case OpKind::all_reduce_later:
    case OpKind::pack:
      return std::nullopt;
    case OpKind::max_pool:
    case OpKind::max_pool_backward:
    case OpKind::avg_pool:
    case OpKind::avg_pool_backward: {
      PoolAttrs geometry = p.op.as<PoolAttrs>();
      const bool max = p.op.kind == OpKind::max_pool || p.op.kind == OpKind::max_pool_backward;
      return reduced_pool(p, {max ? OpKind::max_pool : OpKind::avg_pool, {}}, geometry);
    }
    case OpKind::activation_max_pool:
    case OpKind::activation_max_pool_backward: {
      PoolAttrs geometry = p.op.as<ActivationPoolAttrs>().pool;
      return reduced_pool(p, {OpKind::activation_max_pool, {}}, geometry);
    }
    case OpKind::resize:
    case OpKind::resize_backward:
      return reduced_resize(p);
    case OpKind::dense_forward:
    case OpKind::dense_backward_data:
    case OpKind::dense_backward_weights:
      return reduced_dense(p);
    default:
      return reduced_map(p);
  }
}

}  // namespace

std::optional<Problem> reduced(const Problem& p, Reduction reduction) {
  const auto shapes = conv_shapes(p);
  if (!shapes) return std::nullopt;
  try {
    return reduced_convolution(p, *shapes, reduction);
  } catch (const Error&) {  // of infer: an odd geometry has no small form
    return std::nullopt;
  }
}

std::optional<Problem> reduced_positions(const Problem& p) {
  constexpr double affordable = 1 << 24;  // elements
  try {
    std::optional<Problem> q = conv_shapes(p) ? std::nullopt : reduce_other(p);
    double elements = 0;
    if (q)
      for (const TensorDesc& desc : q->in) elements += count_elements(desc.shape);
    return elements <= affordable ? q : std::nullopt;
  } catch (const Error&) {  // the same
    return std::nullopt;
  }
}

}  // namespace convoy::bench
