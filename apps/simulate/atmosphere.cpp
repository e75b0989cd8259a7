#include "apps/simulate/atmosphere.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/parallel.h"
#include "core/philox.h"

namespace convoy::simulate {
namespace {

constexpr double pi = std::numbers::pi, earth = 6.371e6, rotation = 7.292e-5, gravity = 9.80665, gas = 287.05,
                 degree = pi / 180, gale = 17;

using Field = std::vector<float>;

/// Share of the way from 1000 to 200 hPa in ln p, and the strength there of the random flow and its slope.
double level(double hectopascal) {
  return std::log(1000 / hectopascal) / std::log(5.0);
}
double flow_strength(double x) {
  return 0.5 + 1.4 * x - 0.7 * x * x;
}
double flow_slope(double x) {
  return 1.4 - 1.4 * x;
}

/// An angle between -pi and pi.
double wrapped(double angle) {
  return angle - 2 * pi * std::nearbyint(angle / (2 * pi));
}

class Simulation {
 public:
  Simulation(const AtmosphereOptions& o, const Day& day, double hour)
      : o_(o), g_(o.grid), day_(day), seconds_(3600 * hour), size_(static_cast<size_t>(g_.pixels())) {}

  AtmosphereImage run() {
    flow();
    surface();
    moisture();
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

  /// A smooth random field that drifts with time: a double Fourier series, damped towards the poles where circles of
  /// latitude close; amplitude falls as wave number to the power `slope`.
  Field random_field(const char* name, uint64_t stream, int low, int high, double slope, double speed) {
    const PhiloxStream random(o_.seed, hash_name(name) + stream);
    const int orders = high + 1;
    std::vector<double> cosine(static_cast<size_t>(g_.width * orders)), sine(cosine.size());
    for (int m = 0; m < orders; ++m)
      for (int64_t w = 0; w < g_.width; ++w) {
        cosine[static_cast<size_t>(w * orders + m)] = std::cos(m * g_.longitude(w));
        sine[static_cast<size_t>(w * orders + m)] = std::sin(m * g_.longitude(w));
      }
    struct Mode {
      int m, n;
      double phase, cosine, sine;
    };
    std::vector<Mode> modes;
    for (int m = 0; m < orders; ++m)
      for (int n = 0; n <= high; ++n) {
        const double wave = std::sqrt(double(n * n) + 1.5 * double(m * m));
        if (wave < low || wave > high) continue;
        const auto index = static_cast<uint64_t>(m * 1000 + n) * 4;
        const double strength = std::pow(wave, slope);
        modes.push_back({m, n, 2 * pi * random.uniform(index), strength * random.normal(index + 1),
                         strength * random.normal(index + 2)});
      }
    Field field(size_);
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row);
      std::vector<double> a(static_cast<size_t>(orders)), b(a.size());
      for (const Mode& mode : modes) {
        const double arc = mode.n * latitude + mode.phase;
        a[static_cast<size_t>(mode.m)] += mode.cosine * std::cos(arc);
        b[static_cast<size_t>(mode.m)] += mode.sine * std::cos(arc + 1.3);
      }
      for (int m = 0; m < orders; ++m) {
        const double polar = std::pow(std::cos(latitude), std::min(m, 6)), turn = m * speed * seconds_ / earth;
        a[static_cast<size_t>(m)] *= polar, b[static_cast<size_t>(m)] *= polar;
        const double c = a[static_cast<size_t>(m)], s = b[static_cast<size_t>(m)];
        a[static_cast<size_t>(m)] = c * std::cos(turn) - s * std::sin(turn);
        b[static_cast<size_t>(m)] = c * std::sin(turn) + s * std::cos(turn);
      }
      for (int64_t w = 0; w < g_.width; ++w) {
        double sum = 0;
        for (int m = 0; m < orders; ++m) {
          const auto k = static_cast<size_t>(w * orders + m);
          sum += a[static_cast<size_t>(m)] * cosine[k] + b[static_cast<size_t>(m)] * sine[k];
        }
        field[at(row, w)] = float(sum);
      }
    });
    double squares = 0;
    for (float v : field) squares += double(v) * double(v);
    const auto factor = float(1 / std::sqrt(squares / double(size_)));
    for (float& v : field) v *= factor;
    return field;
  }

  /// Latitude of the thermal equator.
  double thermal_equator() const { return 8 * degree * day_.season; }

  /// Zonal means: sea-level pressure (Pa), surface temperature (K), temperature at a level (Held & Suarez 1994).
  double base_pressure(double latitude) const {
    const double d = latitude / degree;
    const auto bump = [&](double centre, double width) {
      return std::exp(-std::pow((std::abs(d) - centre) / width, 2));
    };
    return 101100 + 900 * bump(32, 13) - 1500 * bump(62, 13) + 500 * bump(90, 14) - 250 * bump(0, 12);
  }
  double base_surface(double latitude) const {
    const double s = std::sin(latitude - thermal_equator());
    return 301 - 52 * std::pow(std::abs(s), 2.2);
  }
  double base_temperature(double latitude, double hectopascal) const {
    const double s = std::sin(latitude - thermal_equator()), c2 = 1 - s * s, ratio = hectopascal / 1000;
    return std::max(205.0, (310 - 58 * s * s - 10 * std::log(ratio) * c2) * std::pow(ratio, 2.0 / 7));
  }
  /// Height of a pressure level above 1000 hPa by the hypsometric equation.
  double base_thickness(double latitude, double hectopascal) const {
    constexpr int steps = 16;
    const double total = std::log(1000 / hectopascal);
    double sum = 0;
    for (int i = 0; i < steps; ++i) sum += base_temperature(latitude, 1000 * std::exp(-total * (i + 0.5) / steps));
    return gas / gravity * total * sum / steps;
  }
  double base_height(double latitude, double hectopascal) const {
    const double surface = gas * base_surface(latitude) / gravity * std::log(base_pressure(latitude) / 100000);
    return surface + (hectopascal < 1000 ? base_thickness(latitude, hectopascal) : 0);
  }
  /// Geostrophic zonal wind of the base state, fading where the Coriolis parameter vanishes.
  double base_wind(double latitude, double hectopascal) const {
    const double h = 0.5 * degree;
    const double slope =
        (base_height(latitude + h, hectopascal) - base_height(latitude - h, hectopascal)) / (2 * h * earth);
    const double least = 2 * rotation * std::sin(9 * degree), f = 2 * rotation * std::sin(latitude);
    return std::clamp(-gravity * f / (f * f + least * least) * slope, -45.0, 60.0);
  }
  /// Which side of the equator, smoothly: -1 to 1.
  static double hemisphere(double latitude) { return std::tanh(latitude / (8 * degree)); }

  /// Stream function (m^2/s at 500 hPa strength) and winds at 850 hPa.
  void flow() {
    const uint64_t stream = day_.stream;
    psi_ = random_field("stream function", stream, 4, 48, -3, 9);
    const Field storms = random_field("storm track", stream, 1, 5, -1, 3);
    for_rows([&](int64_t row) {
      const double d = std::abs(g_.latitude(row)) / degree;
      const double track = 0.25 + std::exp(-std::pow((d - 45) / 18, 2));
      for (int64_t w = 0; w < g_.width; ++w)
        psi_[at(row, w)] *= float(7e6 * track * (1 + 0.25 * std::tanh(storms[at(row, w)])));
    });
    u_.resize(size_), v_.resize(size_);
    const double strength = flow_strength(level(850));
    for_rows([&](int64_t row) {
      const double base = base_wind(g_.latitude(row), 850);
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

  void surface() {
    land_ = o_.orography;
    if (land_.empty()) {
      land_ = random_field("continents", 0, 2, 40, -1.6, 0);
      for (float& v : land_) v = v > 0.55f ? std::min(400 * (v - 0.55f) * (v - 0.55f) + 20, 4000.0f) : -1000;
    }
    const Field texture = random_field("surface", day_.stream, 6, 60, -1.2, 0);
    ts_.resize(size_);
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), f = 2 * rotation * std::sin(latitude);
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const bool land = land_[i] > 0;
        const double summer = day_.season * std::sin(latitude) * 9;
        const double warm = 0.4 * f * double(psi_[i]) * flow_slope(0) / (gas * std::log(5.0));
        ts_[i] = float(base_surface(latitude) +
                       (land ? summer + 3 * double(texture[i]) - 0.0065 * double(land_[i]) : 0.4 * double(texture[i])) +
                       warm);
      }
    });
  }

  /// Column vapour: saturation at the surface times a relative humidity that rising air raises, then carried along the
  /// flow for a day so that filaments form.
  void moisture() {
    const Field texture = random_field("humidity", day_.stream, 3, 40, -1.3, 7);
    tmq_.resize(size_), humidity_.resize(size_);
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), d = (latitude - thermal_equator()) / degree;
      const double zone = 0.12 * std::exp(-d * d / 98) - 0.13 * std::exp(-std::pow((std::abs(d) - 26) / 9, 2));
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const double poleward = double(v_[i]) * hemisphere(latitude);
        const double rh = 0.76 + zone + 0.07 * double(texture[i]) + 0.005 * poleward - (land_[i] > 0 ? 0.05 : 0);
        humidity_[i] = float(std::clamp(rh, 0.2, 0.98));
        tmq_[i] = float(humidity_[i] * 1.2 * saturation_humidity(double(ts_[i]), 100000) * 2200 * 1.05);
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

  /// Calls f(row, column, ...) for pixels within `reach` metres north or south of a latitude.
  template <class F>
  void for_band(double south, double north, double reach, F&& f) {
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), margin = reach / earth;
      if (latitude < south - margin || latitude > north + margin) return;
      for (int64_t w = 0; w < g_.width; ++w) f(row, w);
    });
  }

  void ensure_storm_fields() {
    for (Field* field : {&deficit_, &warm_, &storm_u_, &storm_v_, &rain_})
      if (field->empty()) field->resize(size_);
    if (truth_.empty()) truth_.resize(size_);
  }

  /// `labelled`: a tropical cyclone; else a low of middle latitudes, whose core is cold.
  void place(const Cyclone& c, bool labelled) {
    ensure_storm_fields();
    const double latitude = c.latitude + c.drift_north * seconds_ / earth;
    const double longitude = c.longitude + c.drift_east * seconds_ / (earth * std::cos(latitude));
    const double turn = latitude > 0 ? 1 : -1, reach = labelled ? 1.5e6 : 2.5e6,
                 spin = std::numbers::pi / 9;  // 20 degrees of inflow
    for_band(latitude, latitude, reach, [&](int64_t row, int64_t w) {
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
      deficit_[i] += float(c.pressure_deficit(r) * fade);
      const double core = std::exp(-std::pow(r / (4 * c.radius), 2)), strength = c.pressure_drop / 9000;
      warm_[i] += float((labelled ? 2 + 6 * strength : -2) * core);
      const double moist = labelled ? 74 : double(tmq_[i]) + 9;
      tmq_[i] += float((moist - double(tmq_[i])) * 0.85 * std::exp(-std::pow(r / (6 * c.radius), 2)));
      const double spiral =
          0.5 + 0.5 * std::cos(2 * (std::atan2(north, east) * turn + std::log(1 + r / c.radius) * 2.2));
      rain_[i] += float(4e-6 * strength * spiral * std::exp(-r / (4 * c.radius)));
      if (labelled && wind > gale) truth_[i] = static_cast<uint8_t>(ClimateClass::cyclone);
    });
  }

  void place(const River& r, bool labelled) {
    ensure_storm_fields();
    // The line, sampled: latitude grows with t, longitude bends eastward; it moves east with the flow.
    constexpr int samples = 160;
    struct Point {
      double latitude, longitude, along_east, along_north;
    };
    std::vector<Point> line(samples);
    const double drift = 8 * seconds_ / (earth * std::cos(r.latitude + 0.5 * r.reach_north));
    for (int i = 0; i < samples; ++i) {
      const double t = double(i) / (samples - 1);
      line[static_cast<size_t>(i)] = {r.latitude + r.reach_north * t,
                                      r.longitude + drift + r.reach_east * t + r.bend * t * (1 - t), 0, 0};
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
      double nearest = 1e12;
      size_t best = 0;
      const auto search = [&](size_t from, size_t to, size_t step) {
        for (size_t i = from; i < to; i += step) {
          const double dy = phi - line[i].latitude,
                       dx = wrapped(lambda - line[i].longitude) * std::cos(0.5 * (phi + line[i].latitude));
          const double d = dx * dx + dy * dy;
          if (d < nearest) nearest = d, best = i;
        }
      };
      constexpr size_t coarse = 8;
      search(0, samples, coarse);
      if (std::sqrt(nearest) * earth > reach + 5e5) return;
      search(best < coarse ? 0 : best - coarse, std::min<size_t>(best + coarse + 1, samples), 1);
      const double d = std::sqrt(nearest) * earth;
      if (d > reach) return;
      const size_t i = at(row, w);
      const Point& p = line[best];
      const double t = double(best) / (samples - 1), ends = std::min(1.0, std::min(t, 1 - t) / 0.12);
      const double across = std::exp(-std::pow(d / r.half_width, 2)) * std::max(0.15, ends);
      // Left of the flow in the north is the cold side.
      const double side =
          (wrapped(lambda - p.longitude) * p.along_north * std::cos(phi) - (phi - p.latitude) * p.along_east) *
          poleward;
      tmq_[i] += float(r.moisture * across * (1 - 0.35 * t));
      storm_u_[i] += float(r.jet * across * p.along_east);
      storm_v_[i] += float(r.jet * across * p.along_north);
      const double front = std::exp(-std::pow((d - r.half_width) / r.half_width, 2));
      if (side < 0)
        ts_[i] -= float(3 * front), warm_[i] -= float(4 * front);
      else
        rain_[i] += float(6e-8 * r.moisture / 20 * across);
      if (labelled && across > 0.45 && tmq_[i] > 20 && truth_[i] == 0)
        truth_[i] = static_cast<uint8_t>(ClimateClass::river);
    });
  }

  AtmosphereImage compose() {
    ensure_storm_fields();
    // Storms that stand on each other's mask: the cyclone wins.
    AtmosphereImage image;
    image.values.resize(size_ * 16);
    image.truth = truth_;
    for_rows([&](int64_t row) {
      const double latitude = g_.latitude(row), f = 2 * rotation * std::sin(latitude);
      const double z1000 = base_height(latitude, 1000), z200 = base_height(latitude, 200);
      const double t200 = base_temperature(latitude, 200), t500 = base_temperature(latitude, 500);
      const double thermal = f / (gas * std::log(5.0));
      const int64_t north = std::min(row + 1, g_.height - 1), south = std::max<int64_t>(row - 1, 0);
      for (int64_t w = 0; w < g_.width; ++w) {
        const size_t i = at(row, w);
        const double psi = double(psi_[i]), ts = double(ts_[i]), height = std::max(0.0, double(land_[i]));
        const double deficit = double(deficit_[i]), warm = double(warm_[i]);
        const double z_surface = z1000 + f * psi * flow_strength(0) / gravity;
        const double psl = 100000 * std::exp(gravity * z_surface / (gas * ts)) - deficit;
        const double ps = psl * std::exp(-gravity * height / (gas * ts));
        const double u850 = double(u_[i]) + double(storm_u_[i]), v850 = double(v_[i]) + double(storm_v_[i]);
        const double friction = land_[i] > 0 ? 0.45 : 0.75, inflow = 0.25 * hemisphere(latitude);
        const double ubot = friction * (u850 - inflow * v850), vbot = friction * (v850 + inflow * u850);
        const double trefht = ts - (land_[i] > 0 ? 0.3 : 0.9);
        const double q = std::min(double(humidity_[i]) + 0.15 * std::min(1.0, deficit / 1500), 0.99) *
                         saturation_humidity(trefht, ps);
        const double divergence = (double(u_[at(row, w + 1)]) + double(storm_u_[at(row, w + 1)]) -
                                   double(u_[at(row, w - 1)]) - double(storm_u_[at(row, w - 1)])) /
                                      (2 * std::max(g_.spacing_east(row), 8e3)) +
                                  (double(v_[at(north, w)]) + double(storm_v_[at(north, w)]) -
                                   double(v_[at(south, w)]) - double(storm_v_[at(south, w)])) /
                                      (double(north - south) * g_.spacing_north());
        const double lift = std::max(0.0, -divergence - 4e-6) * double(tmq_[i]) / 1000;
        const double humid = std::max(0.0, double(humidity_[i]) - 0.82);
        const double rain = double(rain_[i]) + 0.6 * lift + 1.5e-7 * humid * double(tmq_[i]) / 30;
        // Warm cores are deepest aloft; hydrostatic heights follow: thickness grows by R/g * T' * ln(p1/p2).
        const double core_height = gas / gravity * warm * 0.8 * std::log(5.0);
        const double deficit_height = gas * ts / gravity * std::log((psl + deficit) / std::max(psl, 5e4));
        const double channels[16] = {
            double(tmq_[i]),
            u850,
            v850,
            ubot,
            vbot,
            q,
            ps,
            psl,
            t200 + thermal * psi * flow_slope(level(200)) + 0.8 * warm,
            t500 + thermal * psi * flow_slope(level(500)) + warm,
            rain,
            ts,
            trefht,
            z_surface - deficit_height,
            z200 + f * psi * flow_strength(level(200)) / gravity - deficit_height + core_height,
            gas * trefht / gravity * 0.0076};
        for (int c = 0; c < 16; ++c) image.values[i * 16 + static_cast<size_t>(c)] = float(channels[c]);
      }
    });
    return image;
  }

  const AtmosphereOptions& o_;
  const Grid g_;
  const Day& day_;
  const double seconds_;
  const size_t size_;
  Field psi_, u_, v_, land_, ts_, tmq_, humidity_, deficit_, warm_, storm_u_, storm_v_, rain_;
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
  return earth * pi / double(height);
}
double Grid::spacing_east(int64_t row) const {
  return earth * 2 * pi / double(width) * std::cos(latitude(row));
}
double Grid::coriolis(int64_t row) const {
  return 2 * rotation * std::sin(latitude(row));
}

double distance(double latitude_a, double longitude_a, double latitude_b, double longitude_b) {
  const double a =
      std::pow(std::sin(0.5 * (latitude_a - latitude_b)), 2) +
      std::cos(latitude_a) * std::cos(latitude_b) * std::pow(std::sin(0.5 * (longitude_a - longitude_b)), 2);
  return 2 * earth * std::asin(std::min(1.0, std::sqrt(a)));
}

double saturation_humidity(double temperature, double pressure) {
  const double celsius = temperature - 273.15;
  const double vapour = 611.2 * std::exp(17.67 * celsius / (celsius + 243.5));
  return 0.622 * vapour / std::max(pressure - 0.378 * vapour, vapour);
}

double Cyclone::pressure_deficit(double r) const {
  return pressure_drop * (1 - std::exp(-std::pow(radius / std::max(r, 1.0), shape)));
}

double Cyclone::wind(double r) const {
  const double f = std::abs(2 * rotation * std::sin(latitude)), ratio = std::pow(radius / std::max(r, 1e3), shape);
  const double cyclostrophic = shape * pressure_drop / 1.15 * ratio * std::exp(-ratio), coriolis = 0.5 * r * f;
  return std::sqrt(cyclostrophic + coriolis * coriolis) - coriolis;
}

Day draw_day(const AtmosphereOptions& o, int64_t day) {
  Day d;
  d.stream = static_cast<uint64_t>(day) + 1;
  const PhiloxStream random(o.seed, hash_name("day") + d.stream);
  uint64_t next = 0;
  const auto draw = [&](double low, double high) { return low + (high - low) * double(random.uniform(next++)); };
  const auto poisson = [&](double mean) {
    int count = 0;
    for (double product = draw(0, 1); product > std::exp(-mean); product *= draw(0, 1)) ++count;
    return count;
  };
  d.season = std::sin(2 * pi * draw(0, 1));
  // A coarse grid cannot hold a narrow eye: storms grow with the grid's spacing, as in climate models.
  const double coarse = std::max(1.0, o.grid.spacing_north() / 26e3);
  for (int i = poisson(o.cyclones); i > 0; --i) {
    Cyclone c;
    // The summer hemisphere has most of them.
    const double hemisphere = draw(-1, 1) < 0.7 * d.season ? 1 : -1;
    c.latitude = hemisphere * draw(9, 27) * degree;
    c.longitude = draw(0, 2 * pi);
    c.pressure_drop = draw(2500, 8000);
    c.radius = draw(45e3, 75e3) * coarse;
    c.shape = draw(1.2, 1.8);
    c.drift_east = draw(-7, -2);
    c.drift_north = hemisphere * draw(0.5, 3);
    const bool close = std::any_of(d.cyclones.begin(), d.cyclones.end(), [&](const Cyclone& other) {
      return distance(c.latitude, c.longitude, other.latitude, other.longitude) < 1.5e6;
    });
    if (!close) d.cyclones.push_back(c);
  }
  for (int i = poisson(o.rivers); i > 0; --i) {
    River r;
    const double hemisphere = draw(-1, 1) < -0.2 * d.season ? 1 : -1;
    r.latitude = hemisphere * draw(14, 26) * degree;
    r.reach_north = hemisphere * draw(20, 33) * degree;
    r.longitude = draw(0, 2 * pi);
    r.reach_east = draw(18, 45) * degree;
    r.bend = draw(-55, 55) * degree;
    r.half_width = draw(210e3, 340e3) * std::sqrt(coarse);
    r.moisture = draw(18, 30);
    r.jet = draw(15, 28);
    d.rivers.push_back(r);
  }
  for (int i = poisson(o.lows); i > 0; --i) {
    Cyclone c;
    c.latitude = (draw(-1, 1) > 0 ? 1 : -1) * draw(28, 58) * degree;
    c.longitude = draw(0, 2 * pi);
    c.pressure_drop = draw(2500, 6000);
    c.radius = draw(110e3, 220e3) * std::sqrt(coarse);
    c.shape = draw(1.1, 1.5);
    c.drift_east = draw(6, 14);
    c.drift_north = (c.latitude > 0 ? 1 : -1) * draw(0, 4);
    d.lows.push_back(c);
  }
  for (int i = poisson(o.surges); i > 0; --i) {
    River r;
    const double hemisphere = draw(-1, 1) > 0 ? 1 : -1;
    r.latitude = hemisphere * draw(14, 42) * degree;
    r.reach_north = hemisphere * draw(3, 7) * degree;
    r.longitude = draw(0, 2 * pi);
    r.reach_east = draw(2, 8) * degree;
    r.half_width = draw(250e3, 420e3) * std::sqrt(coarse);
    r.moisture = draw(18, 30);
    r.jet = draw(15, 28);
    d.surges.push_back(r);
  }
  return d;
}

AtmosphereImage simulate_atmosphere(const AtmosphereOptions& options, const Day& day, double hour) {
  if (!options.orography.empty() && static_cast<int64_t>(options.orography.size()) != options.grid.pixels())
    fail_usage("orography has " + std::to_string(options.orography.size()) + " pixels, the grid " +
               std::to_string(options.grid.pixels()));
  return Simulation(options, day, hour).run();
}

}  // namespace convoy::simulate
