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

void sgd(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<SgdAttrs>();
  const Common s(args);
  if (!s.finite) return;
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double step = s.rate * args.in[0].at(i...) * s.inverse_scale;
    const double v = a.momentum * args.out[1].at(i...) - step;
    args.out[1].set(i..., v);
    args.out[0].set(i..., args.out[0].at(i...) + (a.nesterov ? a.momentum * v - step : v));
  });
}

void adam(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<AdamAttrs>();
  const Common s(args);
  if (!s.finite) return;
  const double c1 = 1 - std::pow(a.beta1, s.applied + 1), c2 = 1 - std::pow(a.beta2, s.applied + 1);
  for_each_index(p.in[0].shape, [&](auto... i) {
    const double g = args.in[0].at(i...) * s.inverse_scale;
    const double m = a.beta1 * args.out[1].at(i...) + (1 - a.beta1) * g;
    const double v = a.beta2 * args.out[2].at(i...) + (1 - a.beta2) * g * g;
    args.out[1].set(i..., m);
    args.out[2].set(i..., v);
    args.out[0].set(i..., args.out[0].at(i...) - s.rate * (m / c1) / (std::sqrt(v / c2) + a.epsilon));
  });
}

}  // namespace

std::vector<KernelPtr> optimizer_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::sgd_update, sgd));
  list.push_back(make_reference(OpKind::adam_update, adam));
  return list;
}

}  // namespace convoy
