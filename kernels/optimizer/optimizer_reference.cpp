// State updates by definition, in double.
#include "core/tape.h"
#include "kernels/reference.h"

namespace convoy {
namespace {

struct Common {
  double rate, inverse_scale, applied;
  bool finite;
  explicit Common(const KernelArgs& args)
      : rate(args.in[1].data<double>()[int(StepField::learning_rate)]),
        inverse_scale(1 / args.in[2].data<double>()[int(ScaleField::scale)]),
        applied(args.in[2].data<double>()[int(ScaleField::applied)]),
        finite(args.in[3].data<float>()[0] != 0) {}
};

double norm(const Tensor& t, double factor) {
  double sum = 0;
  for_each_index(t.shape(), [&](auto... i) { sum += t.at(i...) * t.at(i...); });
  return factor * std::sqrt(sum);
}

/// What LARC multiplies a tensor's gradient by.
template <class A>
double larc_factor(const A& a, const Common& s, const KernelArgs& args) {
  if (a.larc == 0 || s.rate == 0) return 1;
  const double weights = norm(args.out[0], 1), gradient = norm(args.in[0], s.inverse_scale);
  const double local = weights > 0 && gradient > 0 ? a.larc * weights / gradient : a.larc_epsilon;
  return std::min(1.0, local / s.rate);
}

void sgd(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<SgdAttrs>();
  const Common s(args);
  if (!s.finite) return;
  const double factor = s.inverse_scale * larc_factor(a, s, args);
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double step = s.rate * args.in[0].at(i...) * factor;
    const double v = a.momentum * args.out[1].at(i...) - step;
    args.out[1].set(i..., v);
    args.out[0].set(i..., args.out[0].at(i...) + v);
  });
}

void adam(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<AdamAttrs>();
  const Common s(args);
  if (!s.finite) return;
  const double c1 = 1 - std::pow(a.beta1, s.applied + 1), c2 = 1 - std::pow(a.beta2, s.applied + 1);
  const double factor = s.inverse_scale * larc_factor(a, s, args);
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double w = args.out[0].at(i...), g = args.in[0].at(i...) * factor + a.l2 * w;
    const double m = a.beta1 * args.out[1].at(i...) + (1 - a.beta1) * g;
    const double v = a.beta2 * args.out[2].at(i...) + (1 - a.beta2) * g * g;
    args.out[1].set(i..., m);
    args.out[2].set(i..., v);
    args.out[0].set(i..., w - s.rate * (m / c1 / (std::sqrt(v / c2) + a.epsilon) + a.weight_decay * w));
  });
}

void lamb(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<LambAttrs>();
  const Common s(args);
  if (!s.finite) return;
  const double c1 = 1 - std::pow(a.beta1, s.applied + 1), c2 = 1 - std::pow(a.beta2, s.applied + 1);
  const double all = args.in[4].data<double>()[0];
  const double clip = s.inverse_scale * (a.max_grad_norm > 0 ? std::min(1.0, a.max_grad_norm / all) : 1.0);
  const Tensor &w = args.out[0], &m = args.out[1], &v = args.out[2];
  double weights = 0, updates = 0;
  std::vector<double> update;
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double g = args.in[0].at(i...) * clip;
    const double mean = a.beta1 * m.at(i...) + (1 - a.beta1) * g, square = a.beta2 * v.at(i...) + (1 - a.beta2) * g * g;
    m.set(i..., mean);
    v.set(i..., square);
    update.push_back(mean / c1 / (std::sqrt(square / c2) + a.epsilon) + a.weight_decay * w.at(i...));
    weights += w.at(i...) * w.at(i...);
    updates += update.back() * update.back();
  });
  const double ratio = weights > 0 && updates > 0 ? std::sqrt(weights / updates) : 1.0;
  size_t next = 0;
  for_each_index(p.in[0].shape, [&](auto... i) { w.set(i..., w.at(i...) - s.rate * ratio * update[next++]); });
}

void gradient_norm(const Problem&, const KernelArgs& args) {
  const double inverse = 1 / args.in.back().data<double>()[int(ScaleField::scale)];
  double sum = 0;
  for (const Tensor& t : args.in.first(args.in.size() - 1)) sum += std::pow(norm(t, inverse), 2);
  args.out[0].data<double>()[0] = std::sqrt(sum);
}

void accumulate(const Problem& p, const KernelArgs& args) {
  const bool first = args.in[1].data<double>()[int(StepField::micro_step)] == 0;
  for_each_index(p.in[0].shape,
                 [&](auto... i) { args.out[0].set(i..., args.in[0].at(i...) + (first ? 0.0 : args.out[0].at(i...))); });
}

}  // namespace

std::vector<KernelPtr> optimizer_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::sgd_update, sgd));
  list.push_back(make_reference(OpKind::adam_update, adam));
  list.push_back(make_reference(OpKind::lamb_update, lamb));
  list.push_back(make_reference(OpKind::gradient_norm, gradient_norm));
  list.push_back(make_reference(OpKind::accumulate, accumulate));
  return list;
}

}  // namespace convoy
