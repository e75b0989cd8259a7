// Direct convolution on AMX tiles, and the same loop nests on emulated tiles for tests; see direct.inl,
// tile_engine.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
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
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/tile_engine.inl"
#include "kernels/conv/hardware_tiles.inl"
}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options

namespace convoy {
namespace {

template <class Tiles>
std::vector<KernelPtr> tile_kernels(std::string_view name, Isa isa) {
  using Engine = set::TileEngine<Tiles>;
  return pair_kernels(name, isa, set::supports_pairs<Engine>, set::prepare_direct_with<Engine>,
                      set::prepare_pair_weights<Engine>);
}

}  // namespace

std::vector<KernelPtr> direct_amx_kernels() {
  return tile_kernels<set::HardwareTiles>("direct_amx", Isa::amx);
}

std::vector<KernelPtr> emulated_amx_kernels() {
  return tile_kernels<set::EmulatedTiles>("emulated_amx", Isa::avx512);
}

}  // namespace convoy
