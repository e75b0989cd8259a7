// The state that a day's storms stand on: zonal means in thermal-wind balance, the random balanced flow, continents and
// the temperature of the surface. At any point, so that storms can be placed before there is a grid of fields.
#pragma once

#include "apps/simulate/atmosphere.h"
#include "apps/simulate/smooth_field.h"

namespace convoy::simulate {

/// Share of the way from 1000 hPa (0) to 200 hPa (1) in ln p.
double level(double hectopascal);
/// Strength of the random flow at such a share, 1 at about 500 hPa, and its slope (temperature, by thermal wind).
double flow_strength(double x);
double flow_slope(double x);

/// Latitudes and longitudes in radians, lengths in m, temperatures in K, winds in m/s.
class Background {
 public:
  Background(const AtmosphereOptions& options, uint64_t stream, double season);

  double thermal_equator() const;          ///< its latitude
  double pressure(double latitude) const;  ///< zonal mean at sea level, Pa
  double surface(double latitude) const;   ///< zonal mean temperature of the sea's surface
  /// Zonal mean at a pressure level (after Held & Suarez 1994), and the level's height (hypsometric equation).
  double temperature(double latitude, double hectopascal) const;
  double height(double latitude, double hectopascal) const;
  /// Geostrophic zonal wind of the zonal means, fading where the Coriolis parameter vanishes.
  double wind(double latitude, double hectopascal) const;

  /// On the whole grid: heights of the ground (negative at sea), stream function (m^2/s at strength 1), surface
  /// temperature given both.
  std::vector<float> land() const;
  std::vector<float> stream_function(double seconds) const;
  std::vector<float> surface_temperature(const std::vector<float>& land, const std::vector<float>& psi) const;

  /// The same at a point; given orography is read at the nearest pixel.
  double land_at(double latitude, double longitude) const;
  double surface_temperature_at(double latitude, double longitude, double seconds) const;

 private:
  double thickness(double latitude, double hectopascal) const;
  double scaled_flow(double latitude, double psi, double storms) const;
  double surface_temperature_of(double latitude, double land, double texture, double psi) const;

  const AtmosphereOptions& o_;
  double season_;
  SmoothField flow_, storms_, continents_, texture_;
};

}  // namespace convoy::simulate
