// The factory of one instruction set's kernels for 1x1 convolutions into few channels. Included after the target pragma
// has ended: it takes addresses of functions, and runs on every CPU.

std::vector<KernelPtr> list;
const auto add = [&](OpKind kind, FunctionKernel::Prepare prepare) {
  list.push_back(std::make_unique<IsaKernel>(isa == Isa::avx512 ? "few_outputs_avx512" : "few_outputs_avx2", isa, kind,
                                             set::supports_few_outputs, prepare, few_outputs_is_measured_faster));
};
add(OpKind::conv_forward, set::prepare_few_outputs<set::PreparedFewOutputs>);
add(OpKind::conv_backward_weights, set::prepare_few_outputs<set::PreparedFewOutputsWeights>);
return list;
