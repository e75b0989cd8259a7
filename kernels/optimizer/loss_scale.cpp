// Bookkeeping of a step: four numbers, nothing to vectorise, so the same code is reference and production kernel
// (listed once under its own name and once as the reference).
#include "core/tape.h"
#include "kernels/optimizer/optimizer_kernels.h"
#include "kernels/reference.h"

namespace convoy {
namespace {

void update(const Problem& p, const KernelArgs& args) {
  const auto& a = p.op.as<LossScaleAttrs>();
  double* state = args.out[0].data<double>();
  double &scale = state[int(ScaleField::scale)], &good = state[int(ScaleField::good_steps)];
  if (args.in[0].data<float>()[0] != 0) {
    state[int(ScaleField::applied)] += 1;
    good += 1;
    if (good >= double(a.interval)) scale *= a.growth, good = 0;
  } else {
    state[int(ScaleField::skipped)] += 1;
    scale *= a.backoff;
    good = 0;
  }
}

}  // namespace

KernelPtr make_loss_scale_kernel() {
  return std::make_unique<FunctionKernel>(
      "scalar", OpKind::loss_scale_update, [](const Problem&) { return Support::yes(); },
      [](const Problem& p) -> std::unique_ptr<Prepared> {
        return std::make_unique<PreparedFunction>([p](const KernelArgs& args) { update(p, args); });
      });
}

KernelPtr make_loss_scale_reference() {
  return make_reference(OpKind::loss_scale_update, update);
}

}  // namespace convoy
