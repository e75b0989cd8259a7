// The factory of one instruction set's kernels for backward_data into few channels. Included after the target pragma
// has ended: it takes addresses of functions, and runs on every CPU.

const auto prepare = [](const Problem& p) -> std::unique_ptr<Prepared> {
  return std::make_unique<set::PreparedCol2im>(p);
};
std::vector<KernelPtr> list;
list.push_back(std::make_unique<IsaKernel>(isa == Isa::avx512 ? "col2im_avx512" : "col2im_avx2", isa,
                                           OpKind::conv_backward_data, set::supports_col2im, prepare,
                                           set::col2im_is_measured_faster));
return list;
