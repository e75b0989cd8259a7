// Smooth random fields on the sphere, whose value at a point does not depend on the grid that asks for it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "apps/simulate/atmosphere.h"

namespace convoy::simulate {

/// A double Fourier series, damped towards the poles where circles of latitude close, that drifts east; mean 0 or
/// nearly so, root mean square 1.
class SmoothField {
 public:
  struct Waves {
    int low, high;  ///< wave numbers
    double slope;   ///< amplitude goes as wave number to this power
    double speed;   ///< eastward, m/s at the equator
  };
  /// Drawn from (seed, name, stream) alone.
  SmoothField(uint64_t seed, std::string_view name, uint64_t stream, const Waves& waves);
  /// The value at a point (radians).
  double at(double latitude, double longitude, double seconds) const;
  /// Values at the cell centres of a grid.
  std::vector<float> on(const Grid& grid, double seconds, int threads) const;

 private:
  /// What cos(n latitude) and sin(n latitude) add to both coefficients of order m.
  struct Mode {
    size_t m, n;
    double cosine[2], sine[2];
  };
  /// A circle of latitude: coefficients of cos(m longitude) and sin(m longitude), by order m, and what they are made
  /// of.
  struct Circle {
    explicit Circle(size_t orders) : cosine(orders), sine(orders), cosine_north(orders), sine_north(orders) {}
    std::vector<double> cosine, sine, cosine_north, sine_north;
  };
  size_t orders() const { return static_cast<size_t>(waves_.high) + 1; }
  void fill(Circle& circle, double latitude, double seconds) const;

  Waves waves_;
  std::vector<Mode> modes_;
  double factor_ = 1;
};

}  // namespace convoy::simulate
