// Storms found in the fields alone, by the usual criteria in their simplest form.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "apps/simulate/atmosphere.h"
#include "apps/simulate/regions.h"

namespace convoy::simulate {
namespace {

constexpr double largest_eye = 150e3;  // distance of a cyclone's gales from its centre at most, m

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
  double value(int64_t row, int64_t column, Channel c) const {
    return double(values_[static_cast<size_t>((row * g_.width + wrapped_column(g_, column)) * 16 + c)]);
  }

  /// Vapour above the threshold and 1.3 times its latitude's mean, which the moist tropics are not, that the wind at
  /// 850 hPa carries at more than 250 kg/m/s; longer than 1500 km and on average narrower than 1000 km.
  void rivers(double threshold) {
    std::vector<double> least(static_cast<size_t>(g_.height));
    for (int64_t row = 0; row < g_.height; ++row) {
      double sum = 0;
      for (int64_t w = 0; w < g_.width; ++w) sum += value(row, w, tmq);
      least[static_cast<size_t>(row)] = std::max(threshold, 1.3 * sum / double(g_.width));
    }
    const auto inside = [&](int64_t row, int64_t column) {
      const double vapour = value(row, column, tmq);
      return vapour > least[static_cast<size_t>(row)] &&
             vapour * std::hypot(value(row, column, u850), value(row, column, v850)) > river_transport;
    };
    std::vector<bool> seen(classes_.size());
    for (int64_t pixel = 0; pixel < g_.pixels(); ++pixel) {
      if (seen[static_cast<size_t>(pixel)] || !inside(pixel / g_.width, pixel % g_.width)) continue;
      const std::vector<int64_t> region = flood(g_, pixel, seen, inside);
      double area = 0;
      for (int64_t p : region) area += g_.spacing_north() * g_.spacing_east(p / g_.width);
      const double length = length_of(g_, region);
      if (length < 1.5e6 || area / length > 1e6) continue;
      for (int64_t p : region) classes_[static_cast<size_t>(p)] = static_cast<uint8_t>(ClimateClass::river);
    }
  }

  /// A pressure minimum between 5 and 35 degrees at least 8 hPa below its surroundings, 2 K warmer at 500 hPa, with
  /// gales around: the connected pixels of gale and the eye.
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
        if (around - centre < 800 || value(row, column, t500) - cold < 2) continue;
        const auto columns_away = [&](int64_t c) {
          return wrapped_column(g_, c - column + g_.width / 2) - g_.width / 2;
        };
        const auto metres_away = [&](int64_t r, int64_t c) {
          return distance(g_.latitude(row), g_.longitude(column), g_.latitude(r), g_.longitude(c));
        };
        // Up to the first gale it is the calm eye, of many pixels on a fine grid; on a coarse one the neighbours count.
        const double north = g_.spacing_north(), east = g_.spacing_east(row),
                     most = std::max(largest_eye, 1.5 * std::hypot(north, east));
        const auto rows = static_cast<int64_t>(most / north), columns = static_cast<int64_t>(most / east);
        double eye = INFINITY;
        for (int64_t r = std::max<int64_t>(0, row - rows); r <= std::min(row + rows, g_.height - 1); ++r)
          for (int64_t c = column - columns; c <= column + columns; ++c)
            if (gale(r, c)) eye = std::min(eye, metres_away(r, c));
        if (eye > most) continue;
        std::vector<bool> seen(classes_.size());
        const auto near = [&](int64_t r, int64_t c) {
          const bool within = std::abs(r - row) <= reach && std::abs(columns_away(c)) <= reach;
          return within && (metres_away(r, c) <= eye || gale(r, c));
        };
        for (int64_t p : flood(g_, row * g_.width + column, seen, near))
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
