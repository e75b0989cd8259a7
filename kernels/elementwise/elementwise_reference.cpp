// Element-wise ops, losses, sums and channel copies by definition, element by element through double.
#include "core/tape.h"
#include "kernels/reference.h"

namespace convoy {
namespace {

/// out0[i] = f(n,d,h,w,c) for every index.
template <class F>
void fill(const KernelArgs& args, F&& f) {
  const Tensor& out = args.out[0];
  for_each_index(out.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    out.set(n, d, h, w, c, f(n, d, h, w, c));
  });
}

void activation(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<ActivationAttrs>();
  fill(args, [&](auto... i) {
    const double x = args.in[0].at(i...);
    return a.scale * (a.function == Activation::tanh ? std::tanh(x) : (x > 0 ? x : a.slope * x));
  });
}

void activation_backward(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<ActivationAttrs>();
  fill(args, [&](auto... i) {
    const double g = args.in[0].at(i...), y = args.in[1].at(i...);
    // d/dx scale*tanh(x) = scale*(1 - tanh^2) = scale - y^2/scale
    return g * (a.function == Activation::tanh ? a.scale - y * y / a.scale : a.scale * (y > 0 ? 1.0 : a.slope));
  });
}

void dropout(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<DropoutAttrs>();
  const double* step = args.in[1].data<double>();
  const auto field = [&](StepField f) { return static_cast<uint32_t>(static_cast<int64_t>(step[int(f)])); };
  const uint64_t key = uint64_t(field(StepField::seed_high)) << 32 | field(StepField::seed_low);
  const Shape& s = p.in[0].shape;
  fill(args, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const int64_t element = ((d * s.h() + h) * s.w() + w) * s.c() + c;
    const PhiloxBlock block = philox({uint32_t(element >> 2), uint32_t(field(StepField::first_sample) + uint32_t(n)),
                                      field(StepField::step), uint32_t(a.stream)},
                                     key);
    return uniform01(block[element & 3]) >= float(a.rate) ? args.in[0].at(n, d, h, w, c) / (1 - a.rate) : 0.0;
  });
}

void loss(const Problem& p, const KernelArgs& args) {
  double sum = 0;
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double e = args.in[0].at(i...) - args.in[1].at(i...);
    sum += p.op.as<LossAttrs>().loss == Loss::mse ? e * e : std::abs(e);
  });
  args.out[0].set(0, 0, 0, 0, 0, sum / double(p.in[0].shape.elements()));
}

void loss_backward(const Problem& p, const KernelArgs& args) {
  const double scale = args.in[2].data<double>()[int(ScaleField::scale)] / double(p.in[0].shape.elements());
  fill(args, [&](auto... i) {
    const double e = args.in[0].at(i...) - args.in[1].at(i...);
    return scale * (p.op.as<LossAttrs>().loss == Loss::mse ? 2 * e : double((e > 0) - (e < 0)));
  });
}

void cast(const Problem&, const KernelArgs& args) {
  fill(args, [&](auto... i) { return args.in[0].at(i...); });
}

void log1p_counts(const Problem&, const KernelArgs& args) {
  fill(args, [&](auto... i) { return std::log1p(args.in[0].at(i...)); });
}

void divide_by_mean(const Problem& p, const KernelArgs& args) {
  const Shape& s = p.in[0].shape;
  std::vector<double> mean(static_cast<size_t>(s.n()));
  for_each_index(s, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    mean[static_cast<size_t>(n)] += args.in[0].at(n, d, h, w, c);
  });
  fill(args, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    return args.in[0].at(n, d, h, w, c) * (double(s.elements() / s.n()) / mean[static_cast<size_t>(n)]);
  });
}

void add(const Problem&, const KernelArgs& args) {
  fill(args, [&](auto... i) { return args.in[0].at(i...) + args.in[1].at(i...); });
}

void scale(const Problem& p, const KernelArgs& args) {
  fill(args, [&](auto... i) { return p.op.as<ScaleAttrs>().alpha * args.in[0].at(i...); });
}

void add_scaled(const Problem& p, const KernelArgs& args) {
  const double factor = p.op.as<ScaleAttrs>().alpha * args.in[2].data<double>()[int(ScaleField::scale)];
  fill(args, [&](auto... i) { return args.in[0].at(i...) + factor * args.in[1].at(i...); });
}

void sum_squares(const Problem& p, const KernelArgs& args) {
  double sum = 0;
  for_each_index(p.in[0].shape, [&](auto... i) { sum += args.in[0].at(i...) * args.in[0].at(i...); });
  args.out[0].set(0, 0, 0, 0, 0, p.op.as<ScaleAttrs>().alpha * sum);
}

void all_finite(const Problem& p, const KernelArgs& args) {
  bool finite = true;
  for (size_t k = 0; k < p.in.size(); ++k)
    for_each_index(p.in[k].shape, [&](auto... i) { finite = finite && std::isfinite(args.in[k].at(i...)); });
  args.out[0].data<float>()[0] = finite ? 1.0f : 0.0f;
}

void channel_sum(const Problem& p, const KernelArgs& args) {
  std::vector<double> sum(static_cast<size_t>(p.in[0].shape.c()));
  for_each_index(p.in[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    sum[static_cast<size_t>(c)] += args.in[0].at(n, d, h, w, c);
  });
  fill(args, [&](int64_t, int64_t, int64_t, int64_t, int64_t c) { return sum[static_cast<size_t>(c)]; });
}

void channel_dot(const Problem& p, const KernelArgs& args) {
  std::vector<double> sum(static_cast<size_t>(p.in[0].shape.c()));
  for_each_index(p.in[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    sum[static_cast<size_t>(c)] += args.in[0].at(n, d, h, w, c) * args.in[1].at(n, d, h, w, c);
  });
  fill(args, [&](int64_t, int64_t, int64_t, int64_t, int64_t c) { return sum[static_cast<size_t>(c)]; });
}

void channel_scale(const Problem& p, const KernelArgs& args) {
  fill(args, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const double shift = p.in.size() > 2 ? args.in[2].at(0, 0, 0, 0, c) : 0.0;
    return args.in[0].at(n, d, h, w, c) * args.in[1].at(0, 0, 0, 0, c) + shift;
  });
}

void concat(const Problem& p, const KernelArgs& args) {
  int64_t begin = 0;
  for (size_t k = 0; k < p.in.size(); ++k) {
    for_each_index(p.in[k].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
      args.out[0].set(n, d, h, w, begin + c, args.in[k].at(n, d, h, w, c));
    });
    begin += p.in[k].shape.c();
  }
}

void slice(const Problem& p, const KernelArgs& args) {
  const int64_t begin = p.op.as<SliceAttrs>().begin;
  fill(args,
       [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) { return args.in[0].at(n, d, h, w, begin + c); });
}

void pad_channels(const Problem& p, const KernelArgs& args) {
  const int64_t begin = p.op.as<SliceAttrs>().begin, end = begin + p.in[0].shape.c();
  fill(args, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    return c >= begin && c < end ? args.in[0].at(n, d, h, w, c - begin) : 0.0;
  });
}

}  // namespace

std::vector<KernelPtr> elementwise_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::activation, activation));
  list.push_back(make_reference(OpKind::activation_backward, activation_backward));
  list.push_back(make_reference(OpKind::dropout, dropout));
  list.push_back(make_reference(OpKind::loss, loss));
  list.push_back(make_reference(OpKind::loss_backward, loss_backward));
  list.push_back(make_reference(OpKind::cast, cast));
  list.push_back(make_reference(OpKind::log1p, log1p_counts));
  list.push_back(make_reference(OpKind::divide_by_mean, divide_by_mean));
  list.push_back(make_reference(OpKind::add, add));
  list.push_back(make_reference(OpKind::add_scaled, add_scaled));
  list.push_back(make_reference(OpKind::scale, scale));
  list.push_back(make_reference(OpKind::channel_dot, channel_dot));
  list.push_back(make_reference(OpKind::channel_scale, channel_scale));
  list.push_back(make_reference(OpKind::sum_squares, sum_squares));
  list.push_back(make_reference(OpKind::all_finite, all_finite));
  list.push_back(make_reference(OpKind::channel_sum, channel_sum));
  list.push_back(make_reference(OpKind::concat, concat));
  list.push_back(make_reference(OpKind::slice, slice));
  list.push_back(make_reference(OpKind::pad_channels, pad_channels));
  return list;
}

}  // namespace convoy
