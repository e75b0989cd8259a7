#include "apps/simulate/smooth_field.h"

#include <algorithm>
#include <cmath>

#include "apps/simulate/earth.h"
#include "core/parallel.h"
#include "core/philox.h"

namespace convoy::simulate {

SmoothField::SmoothField(uint64_t seed, std::string_view name, uint64_t stream, const Waves& waves) : waves_(waves) {
  const PhiloxStream random(seed, hash_name(name) + stream);
  for (int m = 0; m <= waves.high; ++m)
    for (int n = 0; n <= waves.high; ++n) {
      const double wave = std::sqrt(double(n * n) + 1.5 * double(m * m));
      if (wave < waves.low || wave > waves.high) continue;
      const auto index = static_cast<uint64_t>(m * 1000 + n) * 4;
      const double strength = std::pow(wave, waves.slope);
      modes_.push_back({m, n, 2 * pi * random.uniform(index), strength * random.normal(index + 1),
                        strength * random.normal(index + 2)});
    }
  // Scaled on latitudes of its own, so that a coarse grid sees the same field; a circle's mean square is exact.
  const int rows = 2 * waves.high;
  std::vector<double> cosine, sine;
  double squares = 0;
  for (int row = 0; row < rows; ++row) {
    circle((-0.5 + (row + 0.5) / rows) * pi, 0, cosine, sine);
    squares += cosine[0] * cosine[0];
    for (size_t m = 1; m < cosine.size(); ++m) squares += 0.5 * (cosine[m] * cosine[m] + sine[m] * sine[m]);
  }
  factor_ = 1 / std::sqrt(squares / rows);
}

void SmoothField::circle(double latitude, double seconds, std::vector<double>& cosine,
                         std::vector<double>& sine) const {
  const auto orders = static_cast<size_t>(waves_.high) + 1;
  cosine.assign(orders, 0), sine.assign(orders, 0);
  for (const Mode& mode : modes_) {
    const double arc = mode.n * latitude + mode.phase;
    cosine[static_cast<size_t>(mode.m)] += mode.cosine * std::cos(arc);
    sine[static_cast<size_t>(mode.m)] += mode.sine * std::cos(arc + 1.3);
  }
  for (size_t m = 0; m < orders; ++m) {
    const double polar = factor_ * std::pow(std::cos(latitude), std::min<double>(double(m), 6)),
                 turn = double(m) * waves_.speed * seconds / earth_radius;
    const double c = cosine[m] * polar, s = sine[m] * polar;
    cosine[m] = c * std::cos(turn) - s * std::sin(turn);
    sine[m] = c * std::sin(turn) + s * std::cos(turn);
  }
}

double SmoothField::at(double latitude, double longitude, double seconds) const {
  std::vector<double> cosine, sine;
  circle(latitude, seconds, cosine, sine);
  double sum = 0;
  for (size_t m = 0; m < cosine.size(); ++m)
    sum += cosine[m] * std::cos(double(m) * longitude) + sine[m] * std::sin(double(m) * longitude);
  return sum;
}

std::vector<float> SmoothField::on(const Grid& grid, double seconds, int threads) const {
  const auto orders = static_cast<size_t>(waves_.high) + 1, width = static_cast<size_t>(grid.width);
  std::vector<double> cosines(width * orders), sines(cosines.size());
  for (size_t w = 0; w < width; ++w)
    for (size_t m = 0; m < orders; ++m) {
      const double angle = double(m) * grid.longitude(static_cast<int64_t>(w));
      cosines[w * orders + m] = std::cos(angle), sines[w * orders + m] = std::sin(angle);
    }
  std::vector<float> field(static_cast<size_t>(grid.pixels()));
  // Made ahead of the threads, for each: where memory runs out in a thread, the program ends on the spot.
  std::vector<std::vector<double>> scratch(2 * static_cast<size_t>(threads), std::vector<double>(orders));
  parallel_threads(threads, [&](int t) {
    std::vector<double>&cosine = scratch[2 * static_cast<size_t>(t)], &sine = scratch[2 * static_cast<size_t>(t) + 1];
    const Range rows = split_range(grid.height, t, threads, 8);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      circle(grid.latitude(row), seconds, cosine, sine);
      for (size_t w = 0; w < width; ++w) {
        double sum = 0;
        for (size_t m = 0; m < orders; ++m)
          sum += cosine[m] * cosines[w * orders + m] + sine[m] * sines[w * orders + m];
        field[static_cast<size_t>(row) * width + w] = float(sum);
      }
    }
  });
  return field;
}

}  // namespace convoy::simulate
