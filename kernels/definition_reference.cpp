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
  const auto [tape, in, out] = definition_of(p.op, p.in);
  std::vector<Tensor> values(tape.values().size());
  for (size_t i = 0; i < in.size(); ++i) values[static_cast<size_t>(in[i])] = args.in[i];
  for (size_t i = 0; i < out.size(); ++i) values[static_cast<size_t>(out[i])] = args.out[i];
  for (const Node& node : tape.nodes()) {
    std::vector<Tensor> node_in, node_out;
    for (ValueId id : node.in) node_in.push_back(values[static_cast<size_t>(id)]);
    for (ValueId id : node.out) {
      Tensor& value = values[static_cast<size_t>(id)];
      if (value.empty()) value = Tensor::zeros(tape.desc(id));
      node_out.push_back(value);
    }
    const Problem q{node.op, tape.descs(node.in), tape.descs(node.out), p.device, p.threads};
    reference_of(q).prepare(q)->run({node_in, node_out, {}, nullptr});
  }
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
