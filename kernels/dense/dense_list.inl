// The factory of one instruction set's fully connected layers. Included after the target pragma has ended: it takes
// addresses of functions, and runs on every CPU.

std::vector<KernelPtr> list;
const auto add = [&](OpKind kind, OpKind convolution, FunctionKernel::Prepare prepare) {
  constexpr std::string_view name = isa == Isa::avx512 ? "dense_avx512" : "dense_avx2";
  list.push_back(std::make_unique<IsaKernel>(name, isa, kind, set::supports_dense, prepare));
  list.push_back(std::make_unique<IsaKernel>(name, isa, convolution, set::supports_few_pixels, prepare,
                                             [](const Problem& p) { return set::supports_few_pixels(p).ok; }));
};
add(OpKind::dense_forward, OpKind::conv_forward, set::prepare_dense<OpKind::dense_forward>);
add(OpKind::dense_backward_data, OpKind::conv_backward_data, set::prepare_dense<OpKind::dense_backward_data>);
add(OpKind::dense_backward_weights, OpKind::conv_backward_weights, set::prepare_dense<OpKind::dense_backward_weights>);
return list;
