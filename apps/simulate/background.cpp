#include "apps/simulate/background.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "apps/simulate/earth.h"
#include "core/error.h"

namespace convoy::simulate {
namespace {

/// Metres above the sea from the random field of continents: the highest 30 % or so of it are land.
double drawn_height(double v) {
  return v > 0.55 ? std::min(400 * (v - 0.55) * (v - 0.55) + 20, 4000.0) : double(sea_floor);
}

}  // namespace

double level(double hectopascal) {
  return std::log(1000 / hectopascal) / std::log(5.0);
}
double flow_strength(double x) {
  return 0.5 + 1.4 * x - 0.7 * x * x;
}
double flow_slope(double x) {
  return 1.4 - 1.4 * x;
}

Background::Background(const AtmosphereOptions& options, uint64_t stream, double season)
    : o_(options),
      season_(season),
      flow_(o_.seed, "stream function", stream, {4, 48, -3, 9}),
      storms_(o_.seed, "storm track", stream, {1, 5, -1, 3}),
      continents_(o_.seed, "continents", 0, {2, 40, -1.6, 0}),
      texture_(o_.seed, "surface", stream, {6, 60, -1.2, 0}) {
  if (!o_.orography.empty() && static_cast<int64_t>(o_.orography.size()) != o_.grid.pixels())
    fail_usage("orography has " + std::to_string(o_.orography.size()) + " pixels, the grid " +
               std::to_string(o_.grid.pixels()));
}

double Background::thermal_equator() const {
  return 8 * degree * season_;
}

double Background::pressure(double latitude) const {
  const double d = latitude / degree;
  const auto bump = [&](double centre, double width) { return std::exp(-std::pow((std::abs(d) - centre) / width, 2)); };
  return 101100 + 900 * bump(32, 13) - 1500 * bump(62, 13) + 500 * bump(90, 14) - 250 * bump(0, 12);
}

double Background::surface(double latitude) const {
  // Flat near the thermal equator: the sea stays above 26 degrees Celsius, where cyclones live, within 18 degrees.
  return 301.5 - 50 * std::pow(std::abs(std::sin(latitude - thermal_equator())), 2.6);
}

double Background::temperature(double latitude, double hectopascal) const {
  const double s = std::sin(latitude - thermal_equator()), c2 = 1 - s * s, ratio = hectopascal / 1000;
  return std::max(205.0, (310 - 58 * s * s - 10 * std::log(ratio) * c2) * std::pow(ratio, 2.0 / 7));
}

double Background::thickness(double latitude, double hectopascal) const {
  constexpr int steps = 16;
  const double total = std::log(1000 / hectopascal);
  double sum = 0;
  for (int i = 0; i < steps; ++i) sum += temperature(latitude, 1000 * std::exp(-total * (i + 0.5) / steps));
  return gas_constant / gravity * total * sum / steps;
}

double Background::height(double latitude, double hectopascal) const {
  const double ground = gas_constant * surface(latitude) / gravity * std::log(pressure(latitude) / 100000);
  return ground + (hectopascal < 1000 ? thickness(latitude, hectopascal) : 0);
}

double Background::wind(double latitude, double hectopascal) const {
  const double h = 0.5 * degree;
  const double slope = (height(latitude + h, hectopascal) - height(latitude - h, hectopascal)) / (2 * h * earth_radius);
  const double least = 2 * rotation * std::sin(9 * degree), f = 2 * rotation * std::sin(latitude);
  return std::clamp(-gravity * f / (f * f + least * least) * slope, -45.0, 60.0);
}

double Background::scaled_flow(double latitude, double psi, double storms) const {
  const double track = 0.25 + std::exp(-std::pow((std::abs(latitude) / degree - 45) / 18, 2));
  return 7e6 * track * (1 + 0.25 * std::tanh(storms)) * psi;
}

double Background::surface_temperature_of(double latitude, double land, double texture, double psi) const {
  const double f = 2 * rotation * std::sin(latitude);
  const double warm = 0.4 * f * psi * flow_slope(0) / (gas_constant * std::log(5.0));
  const double summer = season_ * std::sin(latitude) * 9;
  return surface(latitude) + warm + (land > 0 ? summer + 3 * texture - 0.0065 * land : 0.4 * texture);
}

std::vector<float> Background::land() const {
  if (!o_.orography.empty()) return o_.orography;
  std::vector<float> land = continents_.on(o_.grid, 0, o_.threads);
  for (float& v : land) v = float(drawn_height(double(v)));
  return land;
}

std::vector<float> Background::stream_function(double seconds) const {
  std::vector<float> psi = flow_.on(o_.grid, seconds, o_.threads);
  const std::vector<float> storms = storms_.on(o_.grid, seconds, o_.threads);
  for (size_t i = 0; i < psi.size(); ++i)
    psi[i] = float(
        scaled_flow(o_.grid.latitude(static_cast<int64_t>(i) / o_.grid.width), double(psi[i]), double(storms[i])));
  return psi;
}

std::vector<float> Background::surface_temperature(const std::vector<float>& land,
                                                   const std::vector<float>& psi) const {
  std::vector<float> field = texture_.on(o_.grid, 0, o_.threads);
  for (size_t i = 0; i < field.size(); ++i)
    field[i] = float(surface_temperature_of(o_.grid.latitude(static_cast<int64_t>(i) / o_.grid.width), double(land[i]),
                                            double(field[i]), double(psi[i])));
  return field;
}

double Background::land_at(double latitude, double longitude) const {
  if (o_.orography.empty()) return drawn_height(continents_.at(latitude, longitude, 0));
  const Grid& g = o_.grid;
  const auto row = static_cast<int64_t>((latitude / pi + 0.5) * double(g.height));
  const auto column = std::lround(longitude / (2 * pi) * double(g.width));
  return double(o_.orography[static_cast<size_t>(std::clamp<int64_t>(row, 0, g.height - 1) * g.width +
                                                 ((column % g.width) + g.width) % g.width)]);
}

double Background::surface_temperature_at(double latitude, double longitude, double seconds) const {
  const double psi =
      scaled_flow(latitude, flow_.at(latitude, longitude, seconds), storms_.at(latitude, longitude, seconds));
  return surface_temperature_of(latitude, land_at(latitude, longitude), texture_.at(latitude, longitude, 0), psi);
}

}  // namespace convoy::simulate
