// Bookkeeping of a step: four numbers, nothing to vectorise, so the same code is reference and production kernel
// (listed once under its own name and once as the reference).
#include "kernels/optimizer/loss_scale.h"

#include "kernels/reference.h"

namespace convoy {
namespace {

void update(const Problem& p, const KernelArgs& args) {
  advance_loss_scale(p.op.as<LossScaleAttrs>(), args.in[0].data<float>()[0] != 0, args.out[0].data<double>());
}

}  // namespace

std::vector<KernelPtr> loss_scale_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<FunctionKernel>(
      "scalar", OpKind::loss_scale_update, [](const Problem&) { return Support::yes(); },
      [](const Problem& p) -> std::unique_ptr<Prepared> {
        return std::make_unique<PreparedFunction>([p](const KernelArgs& args) { update(p, args); });
      }));
  return list;
}

std::vector<KernelPtr> loss_scale_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::loss_scale_update, update));
  return list;
}

}  // namespace convoy
