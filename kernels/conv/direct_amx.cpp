// Direct convolution on AMX tiles, and the same loop nests on emulated tiles for tests; see direct.inl,
// tile_engine.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/conv/pair_kernels.h"
#include "kernels/simd/tile_config.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c,amx-tile,amx-bf16")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx512.inl"
#include "kernels/simd/common.inl"
#include "kernels/conv/register_block.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/direct.inl"
#include "kernels/conv/direct_weights.inl"
#include "kernels/conv/pair_words.inl"
#include "kernels/conv/tile_engine.inl"
#include "kernels/conv/hardware_tiles.inl"
#include "kernels/conv/pair_weights.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {
namespace {

Support supports_tiles(const Problem& p) {
  if (p.in[0].dtype != DType::bf16) return Support::no("handles bf16, found " + p.in[0].str());
  return p.op.kind == OpKind::conv_backward_weights ? set::supports_direct_weights(p) : set::supports_direct(p);
}

template <class Tiles>
std::vector<KernelPtr> tile_kernels(std::string_view name, Isa isa) {
  using Engine = set::TileEngine<Tiles>;
  return pair_kernels(name, isa, supports_tiles, set::prepare_direct_with<Engine>, set::prepare_pair_weights<Engine>);
}

}  // namespace

std::vector<KernelPtr> direct_amx_kernels() {
  return tile_kernels<set::HardwareTiles>("direct_amx", Isa::amx);
}

std::vector<KernelPtr> emulated_amx_kernels() {
  return tile_kernels<set::EmulatedTiles>("emulated_amx", Isa::avx512);
}

}  // namespace convoy
