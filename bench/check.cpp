#include "bench/check.h"

#include <algorithm>
#include <cmath>

#include "core/conv_shapes.h"
#include "tests/kernel_check.h"

namespace convoy::bench {

std::optional<Problem> reduced(const Problem& p, Reduction reduction) {
  const auto shapes = conv_shapes(p);
  if (!shapes) return std::nullopt;
  const DType type = p.in[0].dtype;
  const ConvAttrs& forward = shapes->attrs;
  Shape x = shapes->x, w = shapes->w;
  const auto fewer = [&](int64_t channels) {
    return forward.groups > 1 || channels <= reduction.channels ? channels : reduction.channels + channels % 16;
  };
  x = {1, x.d(), x.h(), x.w(), fewer(x.c())},
  w = {fewer(w.n()), w.d(), w.h(), w.w(), forward.groups > 1 ? w.c() : x.c()};
  const bool pools = std::holds_alternative<ConvPoolAttrs>(p.op.attrs);
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = forward.dilation[i] * (w[i + 1] - 1) + 1 - forward.pad_low[i] - forward.pad_high[i];
    int64_t extent = std::max(reduction.extent, reach);
    if (pools) extent = (extent + 3) / 4 * 4;  // pooled backwards only from even extents
    x[i + 1] = std::min(x[i + 1], extent);
  }
  const TensorDesc input(x, type), weight(w, type);
  const TensorDesc y = infer({OpKind::conv_forward, forward}, std::vector{input, weight})[0];
  const bool bias = p.in.size() > 2 && !pools;
  Problem q = p;
  Op& op = q.op;
  const Int3 extents{x.d(), x.h(), x.w()};
  switch (p.op.kind) {
    case OpKind::conv_forward:
    case OpKind::conv_activation_forward:
      q.in = {input, weight};
      if (bias) q.in.emplace_back(Shape::vector(w.n()), p.in[2].dtype);
      break;
    case OpKind::conv_backward_data: {
      ConvAttrs data = forward;
      data.result_size = extents;
      op.attrs = data;
      q.in = {y, weight};
      if (bias) q.in.emplace_back(Shape::vector(x.c()), p.in[2].dtype);
      break;
    }
    case OpKind::conv_backward_weights:
      q.in = {input, y};
      break;
    default: {
      ConvPoolAttrs both = p.op.as<ConvPoolAttrs>();
      both.pool.pool.result_size = {0, 0, 0};
      const TensorDesc cells = infer({OpKind::activation_max_pool, both.pool}, std::vector{y})[0],
                       arg(cells.shape, DType::u8);
      if (p.op.kind == OpKind::conv_pool_forward) {
        q.in = {input, weight};
        if (p.in.size() > 2) q.in.emplace_back(Shape::vector(w.n()), p.in[2].dtype);
      } else {
        both.pool.pool.result_size = {y.shape.d(), y.shape.h(), y.shape.w()};
        if (p.op.kind == OpKind::conv_pool_backward_data)
          both.conv.result_size = extents, q.in = {cells, cells, arg, weight};
        else
          q.in = {input, cells, cells, arg};
      }
      op.attrs = both;
    }
  }
  q.out = infer(op, q.in);
  return q;
}

Check check(const KernelList& list, const Kernel& kernel, const Problem& p) {
  constexpr int64_t all = int64_t{1} << 40;
  for (const Reduction& reduction : {Reduction{4, all}, Reduction{p.in[0].shape.d() > 1 ? 18 : 50, 32}}) {
    const auto small = reduced(p, reduction);
    if (!small) return Check::none;
    if (!kernel.supports(*small).ok) continue;
    testing::Run ours = testing::make_run(*small, testing::Fill::integers, 3),
                 expected = testing::make_run(*small, testing::Fill::integers, 3);
    testing::execute(kernel, *small, ours);
    for (const auto& reference : list)
      if (reference->name() == reference_name && reference->supports(*small).ok)
        testing::execute(*reference, *small, expected);
    const bool plain =
        !std::holds_alternative<ConvPoolAttrs>(small->op.attrs) && small->op.kind != OpKind::conv_activation_forward;
    const bool rounds = kernel.name().starts_with("winograd");
    for (size_t i = 0; i < small->out.size(); ++i) {
      const DType type = small->out[i].dtype;
      if (!is_float(type) && rounds) continue;  // which of two equal values won its pool
      const double tolerance = !rounds && (plain || !is_float(type)) ? 0 : std::max(1e-3, 2 * epsilon_of(type));
      const std::vector<double> found = testing::values(ours.out[i]), wanted = testing::values(expected.out[i]);
      const bool equal = std::equal(found.begin(), found.end(), wanted.begin(), [&](double a, double b) {
        return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b));
      });
      if (!equal) return Check::wrong;
    }
    return Check::right;
  }
  return Check::none;
}

}  // namespace convoy::bench
