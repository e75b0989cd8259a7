// The factory of the kernels on a set of tile registers. Included after the target pragma has ended: it takes addresses
// of functions, and runs on every CPU.

namespace convoy {
namespace {

template <class Tiles>
std::vector<KernelPtr> tile_kernels(std::string_view name, Isa isa) {
  std::vector<KernelPtr> list =
      pair_kernels(name, isa, set::supports_tiles, set::prepare_tiles<Tiles>, set::prepare_tile_weights<Tiles>);
  list.push_back(std::make_unique<IsaKernel>(name, isa, OpKind::conv_pool_backward_data, set::supports_tiles,
                                             set::prepare_tiles<Tiles>));
  list.push_back(std::make_unique<IsaKernel>(name, isa, OpKind::conv_pool_backward_weights, set::supports_tiles,
                                             set::prepare_tile_weights<Tiles>));
  return list;
}

}  // namespace
}  // namespace convoy
