#include "apps/simulate/atmosphere.h"

#include <algorithm>
#include <cmath>

#include "apps/simulate/background.h"
#include "apps/simulate/earth.h"
#include "apps/simulate/regions.h"
#include "core/parallel.h"

namespace convoy::simulate {
namespace {

/// Winds of a cyclone's mask, m/s.
constexpr double gale = 17;
/// Of a river's mask, m (Guan & Waliser 2015).
constexpr double river_length = 2e6;
/// Air over hot land is not moister than over the warmest sea (K); no column is saturated from bottom to top.
constexpr double warmest_sea = 302, wettest = 0.97;

using Field = std::vector<float>;

/// An angle between -pi and pi.
double wrapped(double angle) {
  return angle - 2 * pi * std::nearbyint(angle / (2 * pi));
}

/// Of the air at the ground (K) where no storm warms or cools it.
double air_temperature(double surface, bool land) {
  return surface - (land ? 0.3 : 0.9);
}

double column_limit(double air) {
  return saturated_column(std::min(air, warmest_sea));
}

/// Anomalies of storms at a share x of the way from 1000 to 200 hPa in ln p. Those of height and temperature go
/// together by R T'/g = dZ'/d(-ln p), each for 1 m of height deficit at the ground or 1 K of air there.
struct Anomaly {
  double height, temperature;  // m and K
};
const double layer = gas_constant / gravity * std::log(5.0);  // metres for 1 K throughout

/// Warm cores, warmest near 300 hPa: of the deficit a twentieth is left at 200 hPa.
Anomaly tropical(double x) {
  return {-1 + 0.95 * x * x * x * (3 - 2 * x), 0.95 * x * x * (9 - 8 * x) / layer};
}
/// Cold cores of middle latitudes: deeper by a quarter at 200 hPa.
Anomaly cold_core(double x) {
  return {-1 - 0.25 * x, -0.25 / layer};
}
/// Warm and cold air along fronts, which fades to nothing at 200 hPa.
Anomaly front(double x) {
  return {layer * x * (1 - 0.5 * x), 1 - x};
}

class AtmosphereSimulation {
 public:
  AtmosphereSimulation(const AtmosphereOptions& o, const Day& day, double hour)
      : o_(o),
        g_(o.grid),
        day_(day),
        background_(o, day.stream, day.season),
        seconds_(3600 * hour),
        size_(static_cast<size_t>(g_.pixels())) {}

  AtmosphereImage run() {
    flow();
    land_ = background_.land();
    ts_ = background_.surface_temperature(land_, psi_);
    moisture();
    for (Field* field : {&deficit_, &cold_deficit_, &front_, &filling_, &band_, &storm_u_, &storm_v_, &rain_})
      field->resize(size_);
    truth_.resize(size_);
    for (const Cyclone& c : day_.lows) place(c, false);
    for (const River& r : day_.surges) place(r, false);
    for (const Cyclone& c : day_.cyclones) place(c, true);
    for (const River& r : day_.rivers) place(r, true);
    return compose();
  }

 private:
  template <class F>
  void for_rows(F&& f) {
    parallel_ranges(g_.height, o_.threads, 8, [&](Range rows) {
      for (int64_t row = rows.begin; row < rows.end; ++row) f(row);
    });
  }
  size_t at(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * g_.width + (column + g_.width) % g_.width);
  }
  /// Which side of the equator, smoothly: -1 to 1.
  static double hemisphere(double latitude) { return std::tanh(latitude / (8 * degree)); }

  /// Stream function and winds at 850 hPa.
  void flow() {
    psi_ = background_.stream_function(seconds_);
    u_.resize(size_), v_.resize(size_);
    const double strength = flow_strength(level(850));
    for_rows([&](int64_t row) {
      const double base = background_.wind(g_.latitude(row), 850);
      const int64_t north = std::min(row + 1, g_.height - 1), south = std::max<int64_t>(row - 1, 0);
      for (int64_t w = 0; w < g_.width; ++w) {
        const double dy =
            double(psi_[at(north, w)] - psi_[at(south, w)]) / (double(north - south) * g_.spacing_north());
        const double dx =
            double(psi_[at(row, w + 1)] - psi_[at(row, w - 1)]) / (2 * std::max(g_.spacing_east(row), 4e3));
        u_[at(row, w)] = float(base + std::clamp(-strength * dy, -40.0, 40.0));
        v_[at(row, w)] = float(std::clamp(strength * dx, -40.0, 40.0));
      }
    });
  }

  /// Column vapour: a share of saturation that rising air raises, then carried along the flow for a day so that
  /// filaments form.
  void moisture() {
    const SmoothField random(o_.seed, "humidity", day_.stream, {3, 40, -1.3, 7});
    humidity_ = random.on(g_, seconds_, o_.threads);
    tmq_.resize(size_);
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), d = (latitude - background_.thermal_equator()) / degree;
      const double zone = 0.17 * std::exp(-d * d / 98) - 0.13 * std::exp(-std::pow((std::abs(d) - 26) / 9, 2));
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const bool land = land_[i] > 0;
        const double poleward = double(v_[i]) * hemisphere(latitude);
        const double rh = 0.62 + zone + 0.08 * double(humidity_[i]) + 0.005 * poleward - (land ? 0.05 : 0);
        humidity_[i] = float(std::clamp(rh, 0.15, 0.92));
        tmq_[i] = humidity_[i] * float(column_limit(air_temperature(double(ts_[i]), land)));
      }
    });
    for (int step = 0; step < 4; ++step) advect(tmq_, 6 * 3600);
  }

  /// One semi-Lagrangian step with bilinear interpolation.
  void advect(Field& field, double time) {
    const Field before = field;
    for_rows([&](int64_t row) {
      const double east = std::max(g_.spacing_east(row), 8e3), north = g_.spacing_north();
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const double y = std::clamp(double(row) - time * double(v_[i]) / north, 0.0, double(g_.height - 1));
        const double x = double(w) - time * double(u_[i]) / east;
        const auto low = static_cast<int64_t>(y), left = static_cast<int64_t>(std::floor(x));
        const int64_t high = std::min(low + 1, g_.height - 1), from = ((left % g_.width) + g_.width) % g_.width;
        const double fy = y - double(low), fx = x - double(left);
        field[i] =
            float((1 - fy) * ((1 - fx) * double(before[at(low, from)]) + fx * double(before[at(low, from + 1)])) +
                  fy * ((1 - fx) * double(before[at(high, from)]) + fx * double(before[at(high, from + 1)])));
      }
    });
  }

  /// Calls f(row, column) for pixels within `reach` metres north or south of a band of latitudes.
  template <class F>
  void for_band(double south, double north, double reach, F&& f) {
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), margin = reach / earth_radius;
      if (latitude < south - margin || latitude > north + margin) return;
      for (int64_t w = 0; w < g_.width; ++w) f(row, w);
    });
  }

  /// Brings a pixel's vapour this share of the way to saturation, on top of what other storms did.
  void fill(size_t i, double share) { filling_[i] += float(share) * (1 - filling_[i]); }

  /// `labelled`: a tropical cyclone; else a low of middle latitudes, whose core is cold.
  void place(const Cyclone& c, bool labelled) {
    const auto [latitude, longitude] = c.position(seconds_);
    const double turn = latitude > 0 ? 1 : -1, reach = labelled ? 1.5e6 : 2.5e6,
                 spin = pi / 9;  // 20 degrees of inflow
    for_band(latitude, latitude, reach, [&, latitude = latitude, longitude = longitude](int64_t row, int64_t w) {
      const double phi = g_.latitude(row), lambda = g_.longitude(w);
      const double r = distance(phi, lambda, latitude, longitude);
      if (r > reach) return;
      const size_t i = at(row, w);
      const double fade = std::pow(std::cos(0.5 * pi * r / reach), 2), wind = c.wind(r) * fade;
      double east = wrapped(lambda - longitude) * std::cos(phi), north = phi - latitude;
      const double length = std::max(std::hypot(east, north), 1e-9);
      east /= length, north /= length;
      // Cyclonic and slightly inward; drift makes one side stronger.
      storm_u_[i] +=
          float(wind * (-turn * north * std::cos(spin) - east * std::sin(spin)) + 0.4 * c.drift_east * wind / 40);
      storm_v_[i] +=
          float(wind * (turn * east * std::cos(spin) - north * std::sin(spin)) + 0.4 * c.drift_north * wind / 40);
      const auto deficit = float(c.pressure_deficit(r) * fade);
      deficit_[i] += deficit;
      if (!labelled) cold_deficit_[i] += deficit;
      fill(i, (labelled ? 0.95 : 0.4) * std::exp(-std::pow(r / ((labelled ? 6 : 4) * c.radius), 2)));
      const double spiral =
          0.5 + 0.5 * std::cos(2 * (std::atan2(north, east) * turn + std::log(1 + r / c.radius) * 2.2));
      rain_[i] += float(4e-6 * c.pressure_drop / 9000 * spiral * std::exp(-r / (4 * c.radius)));
      if (labelled && wind > gale) truth_[i] = static_cast<uint8_t>(ClimateClass::cyclone);
    });
  }

  void place(const River& r, bool labelled) {
    // The line, sampled: latitude grows with t, longitude bends eastward; it moves east with the flow.
    constexpr int samples = 160;
    struct Point {
      double latitude, longitude, along_east = 0, along_north = 0;
      double half_cosine = std::cos(0.5 * latitude), half_sine = std::sin(0.5 * latitude);
    };
    std::vector<Point> line(samples, Point{0, 0});
    const double drift = 8 * seconds_ / (earth_radius * std::cos(r.latitude + 0.5 * r.reach_north));
    for (int i = 0; i < samples; ++i) {
      const double t = double(i) / (samples - 1);
      line[static_cast<size_t>(i)] = {r.latitude + r.reach_north * t,
                                      r.longitude + drift + r.reach_east * t + r.bend * t * (1 - t)};
    }
    for (size_t i = 0; i < samples; ++i) {
      const Point &a = line[i == 0 ? 0 : i - 1], &b = line[std::min<size_t>(i + 1, samples - 1)];
      const double east = (b.longitude - a.longitude) * std::cos(line[i].latitude), north = b.latitude - a.latitude;
      const double length = std::hypot(east, north);
      line[i].along_east = east / length, line[i].along_north = north / length;
    }
    const double south = std::min(line.front().latitude, line.back().latitude),
                 north = std::max(line.front().latitude, line.back().latitude), reach = 3 * r.half_width;
    const double poleward = r.reach_north > 0 ? 1 : -1;
    for_band(south, north, reach, [&](int64_t row, int64_t w) {
      const double phi = g_.latitude(row), lambda = g_.longitude(w);
      const double half_cosine = std::cos(0.5 * phi), half_sine = std::sin(0.5 * phi);
      double nearest = 1e12;
      size_t best = 0;
      const auto search = [&](size_t from, size_t to, size_t step) {
        for (size_t i = from; i < to; i += step) {
          const Point& p = line[i];
          // The cosine of the mean latitude, from those of the halves: most of the time would go into it.
          const double cosine = half_cosine * p.half_cosine - half_sine * p.half_sine;
          const double dy = phi - p.latitude, dx = wrapped(lambda - p.longitude) * cosine;
          const double d = dx * dx + dy * dy;
          if (d < nearest) nearest = d, best = i;
        }
      };
      constexpr size_t coarse = 8;
      search(0, samples, coarse);
      if (std::sqrt(nearest) * earth_radius > reach + 5e5) return;
      search(best < coarse ? 0 : best - coarse, std::min<size_t>(best + coarse + 1, samples), 1);
      const double d = std::sqrt(nearest) * earth_radius;
      if (d > reach) return;
      const size_t i = at(row, w);
      const Point& p = line[best];
      // Rivers thin out towards their ends, surges are round there.
      const double t = double(best) / (samples - 1), ends = labelled ? std::min(1.0, std::min(t, 1 - t) / 0.12) : 1;
      const double across = std::exp(-std::pow(d / r.half_width, 2)) * ends;
      fill(i, r.moisture * across);
      storm_u_[i] += float(r.jet * across * p.along_east);
      storm_v_[i] += float(r.jet * across * p.along_north);
      // Metres to the warm side, right of the flow in the north; the cold front runs along the other edge of the band.
      const double side =
          (wrapped(lambda - p.longitude) * p.along_north * std::cos(phi) - (phi - p.latitude) * p.along_east) *
          poleward * earth_radius;
      const double behind = std::exp(-(std::pow(side + 1.4 * r.half_width, 2) + std::max(0.0, d * d - side * side)) /
                                     std::pow(r.half_width, 2));
      // The farther the air has come from the subtropics, the warmer it is than its surroundings.
      const double warmth = r.warmth * (0.4 + std::abs(phi) / (40 * degree));
      front_[i] += float(warmth * across - 4 * behind * ends);
      rain_[i] += float(7e-8 * across * std::clamp(1 + side / r.half_width, 0.0, 1.0));
      if (labelled) band_[i] = std::max(band_[i], float(across));
    });
  }

  AtmosphereImage compose() {
    AtmosphereImage image;
    image.values.resize(size_ * 16);
    const double x200 = level(200), x500 = level(500);
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), f = 2 * rotation * std::sin(latitude);
      const double z1000 = background_.height(latitude, 1000), z200 = background_.height(latitude, 200);
      const double t200 = background_.temperature(latitude, 200), t500 = background_.temperature(latitude, 500);
      const double thermal = f / (gas_constant * std::log(5.0));
      const int64_t north = std::min(row + 1, g_.height - 1), south = std::max<int64_t>(row - 1, 0);
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const bool land = land_[i] > 0;
        const double psi = double(psi_[i]), height = std::max(0.0, double(land_[i])), warmer = double(front_[i]);
        // The sea's temperature does not follow a front within a day.
        const double ts = double(ts_[i]) + (land ? warmer : 0);
        const double calm_air = air_temperature(double(ts_[i]), land), trefht = calm_air + warmer;
        const double z_surface = z1000 + f * psi * flow_strength(0) / gravity;
        const double psl = 100000 * std::exp(gravity * z_surface / (gas_constant * ts)) - double(deficit_[i]);
        const double ps = psl * std::exp(-gravity * height / (gas_constant * ts));
        const double u850 = double(u_[i]) + double(storm_u_[i]), v850 = double(v_[i]) + double(storm_v_[i]);
        const double friction = land ? 0.45 : 0.75, inflow = 0.25 * hemisphere(latitude);
        const double ubot = friction * (u850 - inflow * v850), vbot = friction * (v850 + inflow * u850);
        // Air keeps its relative humidity where a front warms or cools it; what the flow brought beyond saturation
        // rains within a day; storms fill up what is left. The ground's humidity is the column's, drawn to its own.
        const double carried = double(tmq_[i]) / column_limit(calm_air), filling = double(filling_[i]);
        const double share = std::min(carried, wettest), relative = share + filling * (wettest - share);
        const double saturated = column_limit(trefht), column = relative * saturated;
        const double ground = 0.35 + 0.3 * (double(humidity_[i]) + share);
        const double q = (ground + filling * (wettest - ground)) *
                         std::min(saturation_humidity(trefht, ps), saturation_humidity(warmest_sea, 100000));
        const double divergence = (double(u_[at(row, w + 1)]) + double(storm_u_[at(row, w + 1)]) -
                                   double(u_[at(row, w - 1)]) - double(storm_u_[at(row, w - 1)])) /
                                      (2 * std::max(g_.spacing_east(row), 8e3)) +
                                  (double(v_[at(north, w)]) + double(storm_v_[at(north, w)]) -
                                   double(v_[at(south, w)]) - double(storm_v_[at(south, w)])) /
                                      (double(north - south) * g_.spacing_north());
        const double lift = std::max(0.0, -divergence - 4e-6) * column / 1000;
        const double condensed = (carried - share) * saturated / 1000 / 86400;
        const double rain = double(rain_[i]) + 0.6 * lift + condensed +
                            1.5e-7 * std::max(0.0, double(humidity_[i]) - 0.72) * column / 30;
        // The deficit in metres, and which part of it belongs to cold lows.
        const double deficit = gas_constant * ts / gravity * std::log((psl + double(deficit_[i])) / std::max(psl, 5e4));
        const double cold = deficit_[i] > 0 ? deficit * double(cold_deficit_[i]) / double(deficit_[i]) : 0,
                     warm = deficit - cold;
        const auto storms = [&](double x) {
          return Anomaly{
              warm * tropical(x).height + cold * cold_core(x).height + warmer * front(x).height,
              warm * tropical(x).temperature + cold * cold_core(x).temperature + warmer * front(x).temperature};
        };
        const Anomaly at200 = storms(x200), at500 = storms(x500);
        const double channels[16] = {column,
                                     u850,
                                     v850,
                                     ubot,
                                     vbot,
                                     q,
                                     ps,
                                     psl,
                                     t200 + thermal * psi * flow_slope(x200) + at200.temperature,
                                     t500 + thermal * psi * flow_slope(x500) + at500.temperature,
                                     rain,
                                     ts,
                                     trefht,
                                     z_surface - deficit,
                                     z200 + f * psi * flow_strength(x200) / gravity + at200.height,
                                     gas_constant * trefht / gravity * 0.0076};
        for (int c = 0; c < 16; ++c) image.values[i * 16 + static_cast<size_t>(c)] = float(channels[c]);
        // Where a river meets a cyclone, the cyclone wins.
        if (truth_[i] == 0 && band_[i] > 0.38f && column > 20 && column * std::hypot(u850, v850) > river_transport)
          truth_[i] = static_cast<uint8_t>(ClimateClass::river);
      }
    });
    drop_short_rivers();
    image.truth = std::move(truth_);
    return image;
  }

  /// Mountains, cold and calm air cut rivers: a piece that is too short is none.
  void drop_short_rivers() {
    constexpr auto river = static_cast<uint8_t>(ClimateClass::river);
    std::vector<bool> seen(size_);
    const auto inside = [&](int64_t row, int64_t column) { return truth_[at(row, column)] == river; };
    for (int64_t pixel = 0; pixel < g_.pixels(); ++pixel) {
      if (seen[static_cast<size_t>(pixel)] || truth_[static_cast<size_t>(pixel)] != river) continue;
      const std::vector<int64_t> region = flood(g_, pixel, seen, inside);
      if (length_of(g_, region) > river_length) continue;
      for (int64_t p : region) truth_[static_cast<size_t>(p)] = static_cast<uint8_t>(ClimateClass::background);
    }
  }

  const AtmosphereOptions& o_;
  const Grid g_;
  const Day& day_;
  const Background background_;
  const double seconds_;
  const size_t size_;
  /// Of the background: stream function, winds, land, surface temperature, vapour, relative humidity.
  Field psi_, u_, v_, land_, ts_, tmq_, humidity_;
  /// Of storms: pressure deficit (Pa), the part of it that cold lows make, temperature along fronts (K), share of the
  /// way to saturation, closeness to a river's line, winds, rain.
  Field deficit_, cold_deficit_, front_, filling_, band_, storm_u_, storm_v_, rain_;
  std::vector<uint8_t> truth_;
};

}  // namespace

double Grid::latitude(int64_t row) const {
  return (-0.5 + (double(row) + 0.5) / double(height)) * pi;
}
double Grid::longitude(int64_t column) const {
  return 2 * pi * double(column) / double(width);
}
double Grid::spacing_north() const {
  return earth_radius * pi / double(height);
}
double Grid::spacing_east(int64_t row) const {
  return earth_radius * 2 * pi / double(width) * std::cos(latitude(row));
}
double Grid::coriolis(int64_t row) const {
  return 2 * rotation * std::sin(latitude(row));
}

double distance(double latitude_a, double longitude_a, double latitude_b, double longitude_b) {
  const double a =
      std::pow(std::sin(0.5 * (latitude_a - latitude_b)), 2) +
      std::cos(latitude_a) * std::cos(latitude_b) * std::pow(std::sin(0.5 * (longitude_a - longitude_b)), 2);
  return 2 * earth_radius * std::asin(std::min(1.0, std::sqrt(a)));
}

double saturation_pressure(double temperature) {
  const double celsius = temperature - 273.15;
  return 611.2 * std::exp(17.67 * celsius / (celsius + 243.5));
}

double saturation_humidity(double temperature, double pressure) {
  const double vapour = saturation_pressure(temperature);
  return 0.622 * vapour / std::max(pressure - 0.378 * vapour, vapour);
}

double saturated_column(double temperature) {
  constexpr double lapse = 0.006;
  return saturation_pressure(temperature) * temperature / (latent_heat * lapse) *
         (1 - vapour_constant * temperature / latent_heat);
}

AtmosphereImage simulate_atmosphere(const AtmosphereOptions& options, const Day& day, double hour) {
  return AtmosphereSimulation(options, day, hour).run();
}

}  // namespace convoy::simulate
