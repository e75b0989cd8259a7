// Direct convolution on AMX tiles, and the same on emulated tiles for tests (loop nests alone: portable_tiles.cpp); see
// tile_direct.inl and tile_weights.inl.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/conv/pair_kernels.h"
#include "kernels/simd/tile_config.h"

#pragma GCC push_options
#pragma GCC target("avx512bf16,amx-tile,amx-bf16")
#include "kernels/simd/avx512_begin.inl"
#include "kernels/simd/avx512_words.inl"
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/tile_direct.inl"
#include "kernels/conv/tile_weights.inl"
#include "kernels/conv/tile_lines.inl"
#include "kernels/conv/emulated_tiles.inl"
#include "kernels/conv/hardware_tiles.inl"
#include "kernels/simd/set_end.inl"
#pragma GCC pop_options

namespace convoy {

std::vector<KernelPtr> direct_amx_kernels() {
  return tile_kernels("direct_amx", Isa::amx, set::supports_tiles, set::prepare_tiles<set::HardwareTiles>,
                      set::prepare_tile_weights<set::HardwareTiles>);
}

std::vector<KernelPtr> emulated_amx_kernels() {
  // The loops around the tiles are those of CPUs with AMX, whatever emulates the tiles; Knights Landing has fewer
  // instructions.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !cpu_features().avx512_bf16)
    return {};
  return tile_kernels("emulated_amx", Isa::avx512, set::supports_tiles, set::prepare_tiles<set::EmulatedTiles>,
                      set::prepare_tile_weights<set::EmulatedTiles>);
}

}  // namespace convoy
