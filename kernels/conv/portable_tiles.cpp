// The loop nests of direct_amx.cpp in plain C++, the tiles and the lines around them: for tests on CPUs that lack the
// instructions around the tiles, where `emulated_amx` cannot run.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>

#include "core/parallel.h"
#include "kernels/conv/addend.h"
#include "kernels/conv/direct_shape.h"
#include "kernels/conv/pair_kernels.h"

#include "kernels/simd/portable_begin.inl"
#include "kernels/conv/pair_direct.inl"
#include "kernels/conv/tile_direct.inl"
#include "kernels/conv/tile_weights.inl"
#include "kernels/conv/portable_lines.inl"
#include "kernels/conv/emulated_tiles.inl"
#include "kernels/simd/set_end.inl"

namespace convoy {

std::vector<KernelPtr> portable_tiles_kernels() {
  return tile_kernels("portable_amx", Isa::scalar, set::supports_tiles, set::prepare_tiles<set::EmulatedTiles>,
                      set::prepare_tile_weights<set::EmulatedTiles>);
}

}  // namespace convoy
