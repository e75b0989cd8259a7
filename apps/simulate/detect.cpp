// Storms found in the fields alone, by the usual criteria in their simplest form.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "apps/simulate/atmosphere.h"

namespace convoy::simulate {
namespace {

enum Channel { tmq, u850, v850, ubot, vbot, qrefht, ps, psl, t200, t500 };

class Detector {
 public:
  Detector(const Grid& grid, const std::vector<float>& values)
      : g_(grid), values_(values), classes_(static_cast<size_t>(grid.pixels())) {}

  std::vector<uint8_t> run(double threshold) {
    rivers(threshold);
    cyclones();
    return std::move(classes_);
  }

 private:
  int64_t wrap(int64_t column) const { return (column % g_.width + g_.width) % g_.width; }
  double value(int64_t row, int64_t column, Channel c) const {
    return double(values_[static_cast<size_t>((row * g_.width + wrap(column)) * 16 + c)]);
  }

  /// Pixels connected to `seed` (periodic in longitude) for which `inside` holds; marks them as seen.
  template <class F>
  std::vector<int64_t> flood(int64_t seed, std::vector<bool>& seen, F&& inside) const {
    std::vector<int64_t> region, todo{seed};
    seen[static_cast<size_t>(seed)] = true;
    while (!todo.empty()) {
      const int64_t pixel = todo.back(), row = pixel / g_.width, column = pixel % g_.width;
      todo.pop_back();
      region.push_back(pixel);
      for (const auto& [r, c] : {std::pair{row + 1, column}, {row - 1, column}, {row, column + 1}, {row, column - 1}}) {
        if (r < 0 || r >= g_.height) continue;
        const int64_t next = r * g_.width + wrap(c);
        if (seen[static_cast<size_t>(next)] || !inside(r, wrap(c))) continue;
        seen[static_cast<size_t>(next)] = true;
        todo.push_back(next);
      }
    }
    return region;
  }

  /// Vapour, damped by 1 - exp(-(latitude/19 degrees)^2/2), above the threshold; longer than 1500 km and on average
  /// narrower than 1000 km.
  void rivers(double threshold) {
    const auto inside = [&](int64_t row, int64_t column) {
      const double d = g_.latitude(row) * 180 / std::numbers::pi;
      return value(row, column, tmq) * (1 - std::exp(-d * d / (2 * 19 * 19))) > threshold;
    };
    std::vector<bool> seen(classes_.size());
    for (int64_t pixel = 0; pixel < g_.pixels(); ++pixel) {
      if (seen[static_cast<size_t>(pixel)] || !inside(pixel / g_.width, pixel % g_.width)) continue;
      const std::vector<int64_t> region = flood(pixel, seen, inside);
      int64_t south = g_.height, north = 0, west = 0, east = 0;
      double area = 0;
      for (int64_t p : region) {
        const int64_t row = p / g_.width, offset = wrap(p % g_.width - pixel % g_.width + g_.width / 2) - g_.width / 2;
        south = std::min(south, row), north = std::max(north, row);
        west = std::min(west, offset), east = std::max(east, offset);
        area += g_.spacing_north() * g_.spacing_east(row);
      }
      const double length = std::hypot(double(north - south) * g_.spacing_north(),
                                       double(east - west) * g_.spacing_east((north + south) / 2));
      if (length < 1.5e6 || area / length > 1e6) continue;
      for (int64_t p : region) classes_[static_cast<size_t>(p)] = static_cast<uint8_t>(ClimateClass::river);
    }
  }

  /// A pressure minimum between 5 and 35 degrees at least 8 hPa below its surroundings, warm at 500 hPa, with gales
  /// around: the connected pixels of gale.
  void cyclones() {
    const auto reach = static_cast<int64_t>(std::ceil(600e3 / g_.spacing_north()));
    const auto gale = [&](int64_t row, int64_t column) {
      return std::hypot(value(row, column, u850), value(row, column, v850)) > 19;
    };
    for (int64_t row = reach; row < g_.height - reach; ++row) {
      const double d = std::abs(g_.latitude(row)) * 180 / std::numbers::pi;
      if (d < 5 || d > 35) continue;
      for (int64_t column = 0; column < g_.width; ++column) {
        const double centre = value(row, column, psl);
        bool lowest = true;
        for (int64_t r = -2; r <= 2 && lowest; ++r)
          for (int64_t c = -2; c <= 2; ++c) lowest = lowest && value(row + r, column + c, psl) >= centre;
        if (!lowest) continue;
        double around = 0, cold = 0;
        for (const auto& [r, c] :
             {std::pair{reach, int64_t{0}}, {-reach, int64_t{0}}, {int64_t{0}, reach}, {int64_t{0}, -reach}})
          around += 0.25 * value(row + r, column + c, psl), cold += 0.25 * value(row + r, column + c, t500);
        if (around - centre < 800 || value(row, column, t500) - cold < 1) continue;
        std::vector<bool> seen(classes_.size());
        const auto near = [&](int64_t r, int64_t c) {
          const int64_t dx = wrap(c - column + g_.width / 2) - g_.width / 2;
          return std::abs(r - row) <= reach && std::abs(dx) <= reach && gale(r, c);
        };
        for (int64_t p : flood(row * g_.width + column, seen, near))
          classes_[static_cast<size_t>(p)] = static_cast<uint8_t>(ClimateClass::cyclone);
      }
    }
  }

  const Grid& g_;
  const std::vector<float>& values_;
  std::vector<uint8_t> classes_;
};

}  // namespace

std::vector<uint8_t> detect_storms(const Grid& grid, const std::vector<float>& values, double threshold) {
  return Detector(grid, values).run(threshold);
}

}  // namespace convoy::simulate
