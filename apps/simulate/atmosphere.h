// Simulated weather with cyclones and atmospheric rivers: sixteen fields on a latitude-longitude grid that hang
// together physically, and the class of every pixel. Not a climate model: a base state in thermal-wind balance, a
// random balanced flow, moisture from temperature and advection, and storms of known place and strength.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "io/climate.h"

namespace convoy::simulate {

/// Cell centres; row 0 is the southernmost, column 0 at longitude 0. Longitude is periodic.
struct Grid {
  int64_t height = 768, width = 1152;
  int64_t pixels() const { return height * width; }
  double latitude(int64_t row) const;      ///< radians
  double longitude(int64_t column) const;  ///< radians
  double spacing_north() const;            ///< metres between rows
  double spacing_east(int64_t row) const;  ///< metres between columns
  double coriolis(int64_t row) const;      ///< 1/s
};

/// Great-circle distance in metres.
double distance(double latitude_a, double longitude_a, double latitude_b, double longitude_b);

/// Saturation vapour pressure (Pa; Bolton 1980, eq. 10) at temperature (K), and specific humidity (kg/kg) at pressure
/// (Pa).
double saturation_pressure(double temperature);
double saturation_humidity(double temperature, double pressure);

/// Vapour (kg/m^2) of a column that is saturated all the way up, its air `temperature` (K) at the ground and colder by
/// 6 K/km above: the integral of e_s(T)/(R_v T) over height, which de_s/dT = L e_s/(R_v T^2) turns into
/// e_s T/(L lapse) (1 - R_v T/L). 67 at 300 K, 25 at 285 K. Of the ground above the sea it needs the temperature alone.
double saturated_column(double temperature);

/// Holland (1980) vortex: pressure and gradient wind at radius r (m).
struct Cyclone {
  double latitude = 0, longitude = 0;       ///< radians
  double pressure_drop = 5000;              ///< Pa
  double radius = 60e3;                     ///< of maximum wind, m
  double shape = 1.5;                       ///< Holland's B
  double drift_east = -5, drift_north = 1;  ///< m/s
  double pressure_deficit(double r) const;  ///< Pa below the surroundings
  double wind(double r) const;              ///< m/s, tangential
  /// Latitude and longitude (radians) `seconds` into the day.
  std::pair<double, double> position(double seconds) const;
};

/// A band of moisture along a curved line from the subtropics poleward.
struct River {
  double latitude = 0, longitude = 0;                ///< of its equatorward end, radians
  double reach_north = 0, reach_east = 0, bend = 0;  ///< radians
  double half_width = 300e3;                         ///< m
  double moisture = 0.9;                             ///< on the line: share of the way to a saturated column
  double warmth = 2.2;  ///< K, of the air at the ground on the line at 24 degrees; more poleward
  double jet = 22;      ///< m/s along the line at 850 hPa
};

/// What holds for a whole day of one run. Only `cyclones` and `rivers` are classes; the others look like them pixel by
/// pixel: lows of middle latitudes blow as hard but are wide and cold, surges are as moist and fast but short.
struct Day {
  std::vector<Cyclone> cyclones, lows;
  std::vector<River> rivers, surges;
  double season = 0;    ///< -1 (southern summer) to 1
  uint64_t stream = 0;  ///< of the day's random numbers
};

/// Height of the sea's floor where nothing else is known: that it is below 0 is all that counts.
inline constexpr float sea_floor = -1000;

struct AtmosphereOptions {
  Grid grid;
  uint64_t seed = 1;
  double cyclones = 1.5, rivers = 6;  ///< per image on average
  double lows = 6, surges = 14;       ///< storms of no class
  std::vector<float> orography;       ///< metres per pixel, negative at sea; empty: continents are drawn
  int threads = 1;
};

/// Storms of a day, drawn from the options and the day alone. Tropical cyclones stay over sea warmer than 26 degrees
/// Celsius for the whole day and begin it 1500 km from each other; one for which 100 draws found no such place, and all
/// after it, are left out, so that a world of land or a wish for very many gives fewer.
Day draw_day(const AtmosphereOptions& options, int64_t day);

struct AtmosphereImage {
  std::vector<float> values;   ///< (height, width, 16) in the order of climate_channels
  std::vector<uint8_t> truth;  ///< classes by what the generator put there
};
/// Fields `hour` hours into the day; the same bits for any thread count.
AtmosphereImage simulate_atmosphere(const AtmosphereOptions& options, const Day& day, double hour);

/// Classes found in the fields alone: closed pressure minima with strong warm-cored winds; long, narrow connected
/// regions of vapour above `threshold` kg/m^2 that stand out of their latitude and move.
std::vector<uint8_t> detect_storms(const Grid& grid, const std::vector<float>& values, double threshold);

}  // namespace convoy::simulate
