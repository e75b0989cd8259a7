// The factory of one instruction set's pool-sparse weight gradients. Included after the target pragma has ended: it
// takes addresses of functions, and runs on every CPU.

// In bf16 with AMX tiles, which come first in the list: four channels fill a quarter of a step, and maps of few
// positions less than one.
const auto beats_tiles = [](const Problem& p) {
  const Shape& x = p.in[0].shape;
  return p.in[0].dtype == DType::bf16 && (x.c() == 4 || x.elements() / x.c() < 16384);
};
std::vector<KernelPtr> list;
list.push_back(std::make_unique<IsaKernel>(isa == Isa::avx512 ? "pool_sparse_avx512" : "pool_sparse_avx2", isa,
                                           OpKind::conv_pool_backward_weights, set::supports_pool_sparse,
                                           set::prepare_pool_sparse,
                                           isa == Isa::avx512 ? IsaKernel::Prefers(beats_tiles) : nullptr));
return list;
