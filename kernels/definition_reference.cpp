// The reference of a fused op is its definition: the plain ops of its lowering rule, one after another, each in its own
// reference kernel, with intermediates in the types that the plain ops store.
#include "core/passes/passes.h"
#include "kernels/kernel_list.h"
#include "kernels/reference.h"

namespace convoy {
namespace {

const Kernel& reference_of(const Problem& p) {
  for (const auto& kernel : kernel_list())
    if (kernel->name() == reference_name && kernel->supports(p).ok) return *kernel;
  fail_runtime("no reference kernel for " + p.text());
}

void run_definition(const Problem& p, const KernelArgs& args) {
  walk_definition(
      p, args.in, args.out, [](const TensorDesc& d) { return Tensor::zeros(d); },
      [](const Problem& q, std::span<const Tensor> in, std::span<const Tensor> out) {
        reference_of(q).prepare(q)->run({in, out, {}, nullptr});
      });
}

}  // namespace

std::vector<KernelPtr> definition_reference_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_activation_forward, OpKind::conv_pool_forward, OpKind::conv_pool_backward_data,
                      OpKind::conv_pool_backward_weights})
    list.push_back(make_reference(kind, run_definition));
  return list;
}

}  // namespace convoy
