// Batch normalisation by definition, in double.
#include "kernels/reference.h"

namespace convoy {
namespace {

double channel(const Tensor& t, int64_t c) {
  return t.at(0, 0, 0, 0, c);
}

void channel_moments(const Problem& p, const KernelArgs& args) {
  const int64_t channels = p.in[0].shape.c();
  std::vector<double> sum(static_cast<size_t>(2 * channels));
  for_each_index(p.in[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const double x = args.in[0].at(n, d, h, w, c);
    sum[static_cast<size_t>(c)] += x;
    sum[static_cast<size_t>(channels + c)] += x * x;
  });
  for (int64_t c = 0; c < 2 * channels; ++c)
    args.out[0].set(0, 0, 0, 0, c, sum[static_cast<size_t>(c)] / double(p.in[0].shape.rows()));
}

/// What a channel is shifted and scaled by.
struct Normal {
  double mean, inverse, gamma, beta;
  double normalised(double x) const { return (x - mean) * inverse; }
  double output(double x) const { return normalised(x) * gamma + beta; }
};

/// `first` is the position of x among the inputs.
Normal normal(const Problem& p, const KernelArgs& args, size_t first, int64_t c) {
  const double epsilon = p.op.as<BatchNormAttrs>().epsilon;
  const bool running = p.op.kind == OpKind::batch_norm && p.in.size() == 5;
  const Tensor& moments = args.in[first + 3];
  const double mean = channel(moments, c);
  const double variance =
      running ? channel(args.in[4], c) : channel(moments, moments.shape().c() / 2 + c) - mean * mean;
  return {mean, 1 / std::sqrt(std::max(variance, 0.0) + epsilon), channel(args.in[first + 1], c),
          channel(args.in[first + 2], c)};
}

void batch_norm(const Problem& p, const KernelArgs& args) {
  const bool relu = p.op.as<BatchNormAttrs>().relu != 0;
  for_each_index(p.out[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const double y = normal(p, args, 0, c).output(args.in[0].at(n, d, h, w, c));
    args.out[0].set(n, d, h, w, c, relu && y < 0 ? 0.0 : y);
  });
}

/// Gradient that passes the clamp.
double passed(const Problem& p, const Normal& norm, double dy, double x) {
  return p.op.as<BatchNormAttrs>().relu && !(norm.output(x) > 0) ? 0.0 : dy;
}

void batch_norm_sums(const Problem& p, const KernelArgs& args) {
  const int64_t channels = p.in[0].shape.c();
  std::vector<double> sum(static_cast<size_t>(2 * channels));
  for_each_index(p.in[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const Normal norm = normal(p, args, 1, c);
    const double x = args.in[1].at(n, d, h, w, c), dy = passed(p, norm, args.in[0].at(n, d, h, w, c), x);
    sum[static_cast<size_t>(c)] += dy;
    sum[static_cast<size_t>(channels + c)] += dy * norm.normalised(x);
  });
  for (int64_t c = 0; c < 2 * channels; ++c)
    args.out[0].set(0, 0, 0, 0, c, sum[static_cast<size_t>(c)] / double(p.in[0].shape.rows()));
}

void batch_norm_backward_data(const Problem& p, const KernelArgs& args) {
  const int64_t channels = p.in[0].shape.c();
  for_each_index(p.out[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const Normal norm = normal(p, args, 1, c);
    const double x = args.in[1].at(n, d, h, w, c), dy = passed(p, norm, args.in[0].at(n, d, h, w, c), x);
    args.out[0].set(n, d, h, w, c,
                    norm.gamma * norm.inverse *
                        (dy - channel(args.in[5], c) - norm.normalised(x) * channel(args.in[5], channels + c)));
  });
}

void batch_norm_backward_parameters(const Problem& p, const KernelArgs& args) {
  const double count = p.op.as<ScaleAttrs>().alpha;
  const int64_t channels = p.in[1].shape.c();
  for (int64_t c = 0; c < channels; ++c) {
    args.out[0].set(0, 0, 0, 0, c, count * channel(args.in[0], channels + c));
    args.out[1].set(0, 0, 0, 0, c, count * channel(args.in[0], c));
  }
}

/// Moments of a diverged step, and those beyond f32, are left out: the running ones must survive them.
void batch_norm_update(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<RunningAttrs>();
  const int64_t channels = p.in[1].shape.c();
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = channel(args.in[0], c),
                 variance = std::max(0.0, channel(args.in[0], channels + c) - mean * mean) * double(a.count) /
                            double(std::max<int64_t>(1, a.count - 1));
    if (!std::isfinite(float(mean)) || !std::isfinite(float(variance))) continue;
    args.out[0].set(0, 0, 0, 0, c, (1 - a.momentum) * channel(args.out[0], c) + a.momentum * mean);
    args.out[1].set(0, 0, 0, 0, c, (1 - a.momentum) * channel(args.out[1], c) + a.momentum * variance);
  }
}

}  // namespace

std::vector<KernelPtr> norm_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::channel_moments, channel_moments));
  list.push_back(make_reference(OpKind::batch_norm, batch_norm));
  list.push_back(make_reference(OpKind::batch_norm_sums, batch_norm_sums));
  list.push_back(make_reference(OpKind::batch_norm_backward_data, batch_norm_backward_data));
  list.push_back(make_reference(OpKind::batch_norm_backward_parameters, batch_norm_backward_parameters));
  list.push_back(make_reference(OpKind::batch_norm_update, batch_norm_update));
  return list;
}

}  // namespace convoy
