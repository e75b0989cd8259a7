// Loss and prediction per pixel by definition, in double.
#include <limits>

#include "kernels/reference.h"
#include "core/tape.h"

namespace convoy {
namespace {

/// Probabilities of one pixel's classes.
std::vector<double> softmax(const Tensor& logits, int64_t n, int64_t d, int64_t h, int64_t w) {
  std::vector<double> p(static_cast<size_t>(logits.shape().c()));
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t k = 0; k < p.size(); ++k)
    largest = std::max(largest, p[k] = logits.at(n, d, h, w, static_cast<int64_t>(k)));
  for (double& v : p) sum += v = std::exp(v - largest);
  for (double& v : p) v /= sum;
  return p;
}

/// Weight of a pixel, 0 where it is ignored; not a number for a label that no class has.
double weight_of(const PixelLossAttrs& a, int64_t label, int64_t classes) {
  if (label == a.ignore) return 0;
  if (label >= classes) return NAN;
  return a.weights[label];
}

double share(const PixelLossAttrs& a, const Shape& logits) {
  return a.reduction == Reduction::mean ? 1.0 / double(logits.rows()) : 1.0;
}

void pixel_loss(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<PixelLossAttrs>();
  double sum = 0;
  for_each_index(p.in[1].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t) {
    const auto label = static_cast<int64_t>(args.in[1].at(n, d, h, w, 0));
    const double weight = weight_of(a, label, p.in[0].shape.c());
    if (weight == 0) return;
    if (std::isnan(weight)) {
      sum = NAN;
      return;
    }
    const double q = softmax(args.in[0], n, d, h, w)[static_cast<size_t>(label)];
    sum -= weight * std::log(q) * (a.loss == PixelLoss::focal ? std::pow(1 - q, a.gamma) : 1.0);
  });
  args.out[0].set(0, 0, 0, 0, 0, sum * share(a, p.in[0].shape));
}

void pixel_loss_backward(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<PixelLossAttrs>();
  const double scale = args.in[2].data<double>()[int(ScaleField::scale)] * share(a, p.in[0].shape);
  for_each_index(p.in[1].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t) {
    const auto label = static_cast<int64_t>(args.in[1].at(n, d, h, w, 0));
    const double weight = weight_of(a, label, p.in[0].shape.c());
    const std::vector<double> q = softmax(args.in[0], n, d, h, w);
    double slope = -1;  // d(loss)/d(log q of the label)
    if (a.loss == PixelLoss::focal && weight != 0 && !std::isnan(weight)) {
      const double own = q[static_cast<size_t>(label)];
      slope = (a.gamma > 0 && own < 1 ? a.gamma * std::pow(1 - own, a.gamma - 1) * own * std::log(own) : 0.0) -
              std::pow(1 - own, a.gamma);
    }
    for (int64_t k = 0; k < p.in[0].shape.c(); ++k)
      args.out[0].set(n, d, h, w, k,
                      weight == 0 ? 0.0 : scale * weight * slope * (double(k == label) - q[static_cast<size_t>(k)]));
  });
}

void arg_max(const Problem& p, const KernelArgs& args) {
  for_each_index(p.out[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t) {
    int64_t best = 0;
    for (int64_t k = 1; k < p.in[0].shape.c(); ++k)
      if (args.in[0].at(n, d, h, w, k) > args.in[0].at(n, d, h, w, best)) best = k;
    args.out[0].set(n, d, h, w, 0, double(best));
  });
}

}  // namespace

std::vector<KernelPtr> pixel_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::pixel_loss, pixel_loss));
  list.push_back(make_reference(OpKind::pixel_loss_backward, pixel_loss_backward));
  list.push_back(make_reference(OpKind::arg_max, arg_max));
  return list;
}

}  // namespace convoy
