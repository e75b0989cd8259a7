// The direct convolutions on pairs of a 16-bit type: one list for every engine of pair_words.inl.
#pragma once

#include "kernels/simd/isa_kernel.h"

namespace convoy {

/// Forward (plain, with activation, into a pool) and backward_data (plain, added to a value, from behind a pool)
/// through `direct`, backward_weights through `weights`; `prefers` says where they go ahead of what the list has before
/// them.
inline std::vector<KernelPtr> pair_kernels(std::string_view name, Isa isa, FunctionKernel::Supports supports,
                                           FunctionKernel::Prepare direct, FunctionKernel::Prepare weights,
                                           IsaKernel::Prefers prefers = nullptr) {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add,
                      OpKind::conv_activation_forward, OpKind::conv_pool_forward, OpKind::conv_pool_backward_data})
    list.push_back(std::make_unique<IsaKernel>(name, isa, kind, supports, direct, prefers));
  list.push_back(std::make_unique<IsaKernel>(name, isa, OpKind::conv_backward_weights, supports, weights, prefers));
  return list;
}

/// The same on tiles of AMX, real or emulated, whose weight gradients take those from behind a pool, too.
inline std::vector<KernelPtr> tile_kernels(std::string_view name, Isa isa, FunctionKernel::Supports supports,
                                           FunctionKernel::Prepare direct, FunctionKernel::Prepare weights) {
  std::vector<KernelPtr> list = pair_kernels(name, isa, supports, direct, weights);
  list.push_back(std::make_unique<IsaKernel>(name, isa, OpKind::conv_pool_backward_weights, supports, weights));
  return list;
}

}  // namespace convoy
