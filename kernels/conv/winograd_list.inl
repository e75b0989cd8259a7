// The factory of one instruction set's Winograd kernels. Included after the target pragma has ended: it takes addresses
// of functions, and runs on every CPU. `Isa{isa}` is a copy: lambdas need not hold a reference.

std::vector<KernelPtr> list;
for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add,
                    OpKind::conv_activation_forward, OpKind::conv_pool_forward, OpKind::conv_pool_backward_data}) {
  const auto add = [&list, &kind](std::string_view name, auto supports, auto prepare,
                                  IsaKernel::Prefers prefers = nullptr) {
    list.push_back(std::make_unique<IsaKernel>(name, Isa{isa}, kind, supports, prepare, prefers));
  };
  add(isa == Isa::avx512 ? "winograd6_avx512" : "winograd6_avx2", set::supports_winograd<6>, set::prepare_winograd<6>);
  add(isa == Isa::avx512 ? "winograd4_avx512" : "winograd4_avx2", set::supports_winograd<4>, set::prepare_winograd<4>);
  add(isa == Isa::avx512 ? "winograd_avx512" : "winograd_avx2", set::supports_winograd<2>, set::prepare_winograd<2>,
      set::prefers_winograd);
}
return list;
