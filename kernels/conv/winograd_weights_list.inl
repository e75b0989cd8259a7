// The factory of one instruction set's Winograd weight gradients. Included after the target pragma has ended: it takes
// addresses of functions, and runs on every CPU. `Isa{isa}` is a copy: lambdas need not hold a reference.

std::vector<KernelPtr> list;
const auto add = [&](std::string_view name, FunctionKernel::Supports supports, FunctionKernel::Prepare prepare) {
  list.push_back(std::make_unique<IsaKernel>(name, Isa{isa}, OpKind::conv_backward_weights, supports, prepare,
                                             set::prefers_winograd_weights));
};
add(isa == Isa::avx512 ? "winograd6_avx512" : "winograd6_avx2", set::supports_winograd_weights<6>,
    set::prepare_winograd_weights<6>);
add(isa == Isa::avx512 ? "winograd4_avx512" : "winograd4_avx2", set::supports_winograd_weights<4>,
    set::prepare_winograd_weights<4>);
add(isa == Isa::avx512 ? "winograd_avx512" : "winograd_avx2", set::supports_winograd_weights<2>,
    set::prepare_winograd_weights<2>);
return list;
