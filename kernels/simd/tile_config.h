// The 64 bytes that LDTILECFG reads (Intel SDM, palette 1): all eight tiles at 16 rows of 64 bytes.
#pragma once

#include <cstdint>

namespace convoy {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// In static memory: g++ 12 tells the optimizer that LDTILECFG reads eight bytes, so a local may lose the rest.
inline constexpr TileConfig tile_config{};

}  // namespace convoy
