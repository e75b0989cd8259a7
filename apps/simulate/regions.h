// Connected regions of pixels on a grid that is periodic in longitude.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "apps/simulate/atmosphere.h"

namespace convoy::simulate {

/// What air at 850 hPa carries of the column's vapour in a river at least, kg/m/s (Guan & Waliser 2015 and ARTMIP).
inline constexpr double river_transport = 250;

inline int64_t wrapped_column(const Grid& grid, int64_t column) {
  return (column % grid.width + grid.width) % grid.width;
}

/// Pixels connected to `seed` by their sides for which `inside(row, column)` holds; marks them as seen.
template <class F>
std::vector<int64_t> flood(const Grid& grid, int64_t seed, std::vector<bool>& seen, F&& inside) {
  std::vector<int64_t> region, todo{seed};
  seen[static_cast<size_t>(seed)] = true;
  while (!todo.empty()) {
    const int64_t pixel = todo.back(), row = pixel / grid.width, column = pixel % grid.width;
    todo.pop_back();
    region.push_back(pixel);
    for (const auto& [r, c] : {std::pair{row + 1, column}, {row - 1, column}, {row, column + 1}, {row, column - 1}}) {
      if (r < 0 || r >= grid.height) continue;
      const int64_t next = r * grid.width + wrapped_column(grid, c);
      if (seen[static_cast<size_t>(next)] || !inside(r, wrapped_column(grid, c))) continue;
      seen[static_cast<size_t>(next)] = true;
      todo.push_back(next);
    }
  }
  return region;
}

/// Length in metres: the diagonal of the smallest box of rows and columns around a region.
inline double length_of(const Grid& grid, const std::vector<int64_t>& region) {
  int64_t south = grid.height, north = 0, west = 0, east = 0;
  for (int64_t p : region) {
    const int64_t row = p / grid.width, half = grid.width / 2,
                  offset = wrapped_column(grid, p % grid.width - region[0] % grid.width + half) - half;
    south = std::min(south, row), north = std::max(north, row);
    west = std::min(west, offset), east = std::max(east, offset);
  }
  return std::hypot(double(north - south) * grid.spacing_north(),
                    double(east - west) * grid.spacing_east((north + south) / 2));
}

}  // namespace convoy::simulate
