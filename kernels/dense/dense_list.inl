// The factory of one instruction set's fully connected layers. Included after the target pragma has ended: it takes
// addresses of functions, and runs on every CPU.

std::vector<KernelPtr> list;
const auto add = [&](OpKind kind, FunctionKernel::Prepare prepare) {
  list.push_back(std::make_unique<IsaKernel>(isa == Isa::avx512 ? "dense_avx512" : "dense_avx2", isa, kind,
                                             set::supports_dense, prepare));
};
add(OpKind::dense_forward, set::prepare_dense<OpKind::dense_forward>);
add(OpKind::dense_backward_data, set::prepare_dense<OpKind::dense_backward_data>);
add(OpKind::dense_backward_weights, set::prepare_dense<OpKind::dense_backward_weights>);
return list;
