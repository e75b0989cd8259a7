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
      // Waves a cos(n latitude + phase) and b cos(n latitude + phase + 1.3).
      const double phase = 2 * pi * random.uniform(index), a = strength * random.normal(index + 1),
                   b = strength * random.normal(index + 2);
      modes_.push_back({static_cast<size_t>(m),
                        static_cast<size_t>(n),
                        {a * std::cos(phase), -a * std::sin(phase)},
                        {b * std::cos(phase + 1.3), -b * std::sin(phase + 1.3)}});
    }
  // Scaled on latitudes of its own, so that a coarse grid sees the same field; a circle's mean square is exact.
  const int rows = 2 * waves.high;
  Circle c(orders());
  double squares = 0;
  for (int row = 0; row < rows; ++row) {
    fill(c, (-0.5 + (row + 0.5) / rows) * pi, 0);
    squares += c.cosine[0] * c.cosine[0];
    for (size_t m = 1; m < orders(); ++m) squares += 0.5 * (c.cosine[m] * c.cosine[m] + c.sine[m] * c.sine[m]);
  }
  factor_ = 1 / std::sqrt(squares / rows);
}

void SmoothField::fill(Circle& circle, double latitude, double seconds) const {
  auto& [cosine, sine, cosine_north, sine_north] = circle;
  for (size_t n = 0; n < orders(); ++n) {
    cosine[n] = sine[n] = 0;
    cosine_north[n] = std::cos(double(n) * latitude), sine_north[n] = std::sin(double(n) * latitude);
  }
  for (const Mode& mode : modes_) {
    cosine[mode.m] += mode.cosine[0] * cosine_north[mode.n] + mode.cosine[1] * sine_north[mode.n];
    sine[mode.m] += mode.sine[0] * cosine_north[mode.n] + mode.sine[1] * sine_north[mode.n];
  }
  for (size_t m = 0; m < orders(); ++m) {
    const double polar = factor_ * std::pow(std::cos(latitude), std::min<double>(double(m), 6)),
                 turn = double(m) * waves_.speed * seconds / earth_radius;
    const double c = cosine[m] * polar, s = sine[m] * polar;
    cosine[m] = c * std::cos(turn) - s * std::sin(turn);
    sine[m] = c * std::sin(turn) + s * std::cos(turn);
  }
}

double SmoothField::at(double latitude, double longitude, double seconds) const {
  Circle c(orders());
  fill(c, latitude, seconds);
  double sum = 0;
  for (size_t m = 0; m < orders(); ++m)
    sum += c.cosine[m] * std::cos(double(m) * longitude) + c.sine[m] * std::sin(double(m) * longitude);
  return sum;
}

std::vector<float> SmoothField::on(const Grid& grid, double seconds, int threads) const {
  const size_t width = static_cast<size_t>(grid.width), count = orders();
  std::vector<double> cosines(width * count), sines(cosines.size());
  for (size_t w = 0; w < width; ++w)
    for (size_t m = 0; m < count; ++m) {
      const double angle = double(m) * grid.longitude(static_cast<int64_t>(w));
      cosines[w * count + m] = std::cos(angle), sines[w * count + m] = std::sin(angle);
    }
  std::vector<float> field(static_cast<size_t>(grid.pixels()));
  // Made ahead of the threads, for each: where memory runs out in a thread, the program ends on the spot.
  std::vector<Circle> circles(static_cast<size_t>(threads), Circle(count));
  parallel_threads(threads, [&](int t) {
    Circle& c = circles[static_cast<size_t>(t)];
    const Range rows = split_range(grid.height, t, threads, 8);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      fill(c, grid.latitude(row), seconds);
      for (size_t w = 0; w < width; ++w) {
        double sum = 0;
        for (size_t m = 0; m < count; ++m)
          sum += c.cosine[m] * cosines[w * count + m] + c.sine[m] * sines[w * count + m];
        field[static_cast<size_t>(row) * width + w] = float(sum);
      }
    }
  });
  return field;
}

}  // namespace convoy::simulate
