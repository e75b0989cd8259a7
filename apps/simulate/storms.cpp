// Holland's vortex, and the storms of a day.
#include <algorithm>
#include <cmath>

#include "apps/simulate/atmosphere.h"
#include "apps/simulate/background.h"
#include "apps/simulate/earth.h"
#include "core/philox.h"

namespace convoy::simulate {
namespace {

constexpr double warm_sea = 299.2;  // 26 degrees Celsius (Gray 1968) and some for the way to the nearest pixel

/// Uniform and Poisson numbers in the order of the calls.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : random_(seed, stream) {}
  double operator()(double low, double high) { return low + (high - low) * double(random_.uniform(next_++)); }
  int poisson(double mean) {
    int count = 0;
    for (double product = (*this)(0, 1); product > std::exp(-mean); product *= (*this)(0, 1)) ++count;
    return count;
  }
  /// 1 (north) or -1; north where a uniform number of [-1, 1) is below `bias`.
  double hemisphere(double bias) { return (*this)(-1, 1) < bias ? 1 : -1; }

 private:
  const PhiloxStream random_;
  uint64_t next_ = 0;
};

/// Whether the storm's whole day passes over warm sea, with no land at its centre nor at eight points `shore` metres
/// from it.
bool at_warm_sea(const Background& background, const Cyclone& c, double shore) {
  for (int hour = 0; hour <= 24; hour += 6) {
    const auto [latitude, longitude] = c.position(3600.0 * hour);
    if (background.land_at(latitude, longitude) > 0 ||
        background.surface_temperature_at(latitude, longitude, 3600.0 * hour) < warm_sea)
      return false;
    for (int i = 0; i < 8; ++i) {
      const double angle = i * pi / 4, arc = shore / earth_radius;
      if (background.land_at(latitude + arc * std::sin(angle), longitude + arc * std::cos(angle) / std::cos(latitude)) >
          0)
        return false;
    }
  }
  return true;
}

/// A coarse grid cannot hold a narrow eye: storms grow with the grid's spacing, as in climate models.
double coarseness(const Grid& grid) {
  return std::max(1.0, grid.spacing_north() / 26e3);
}

std::vector<Cyclone> draw_cyclones(const AtmosphereOptions& o, const Day& d, Draws& draw) {
  std::vector<Cyclone> cyclones;
  int count = draw.poisson(o.cyclones);
  if (count == 0) return cyclones;
  constexpr int tries = 100;
  const Background background(o, d.stream, d.season);
  const double coarse = coarseness(o.grid);
  for (; count > 0; --count) {
    Cyclone c;
    c.pressure_drop = draw(2200, 6500);
    c.radius = draw(48e3, 78e3) * coarse;
    c.shape = draw(1.2, 1.8);
    c.drift_east = draw(-7, -2);
    const double poleward = draw(0.5, 3);
    bool placed = false;
    for (int i = 0; i < tries && !placed; ++i) {
      // The summer hemisphere has most of them.
      const double hemisphere = draw.hemisphere(0.7 * d.season);
      c.latitude = hemisphere * draw(9, 27) * degree;
      c.longitude = draw(0, 2 * pi);
      c.drift_north = hemisphere * poleward;
      placed = std::none_of(cyclones.begin(), cyclones.end(),
                            [&](const Cyclone& other) {
                              return distance(c.latitude, c.longitude, other.latitude, other.longitude) < 1.5e6;
                            }) &&
               at_warm_sea(background, c, 2 * c.radius);
    }
    if (!placed) break;
    cyclones.push_back(c);
  }
  return cyclones;
}

}  // namespace

double Cyclone::pressure_deficit(double r) const {
  return pressure_drop * (1 - std::exp(-std::pow(radius / std::max(r, 1.0), shape)));
}

double Cyclone::wind(double r) const {
  const double f = std::abs(2 * rotation * std::sin(latitude)), ratio = std::pow(radius / std::max(r, 1e3), shape);
  const double cyclostrophic = shape * pressure_drop / 1.15 * ratio * std::exp(-ratio), coriolis = 0.5 * r * f;
  return std::sqrt(cyclostrophic + coriolis * coriolis) - coriolis;
}

std::pair<double, double> Cyclone::position(double seconds) const {
  const double north = latitude + drift_north * seconds / earth_radius;
  return {north, longitude + drift_east * seconds / (earth_radius * std::cos(north))};
}

Day draw_day(const AtmosphereOptions& o, int64_t day) {
  Day d;
  d.stream = static_cast<uint64_t>(day) + 1;
  // Each kind of storm has numbers of its own: the tries of one leave the others as they are.
  const auto draws = [&](const char* name) { return Draws(o.seed, hash_name(name) + d.stream); };
  d.season = std::sin(2 * pi * draws("day")(0, 1));
  const double coarse = coarseness(o.grid);
  Draws cyclones = draws("cyclones");
  d.cyclones = draw_cyclones(o, d, cyclones);

  // Bands and surges alike in the column.
  const auto fill = [&](River& r, Draws& draw) {
    r.moisture = draw(0.8, 1);
    r.warmth = draw(1.5, 3);
    r.jet = draw(15, 28);
  };
  Draws rivers = draws("rivers");
  for (int i = rivers.poisson(o.rivers); i > 0; --i) {
    River r;
    const double hemisphere = rivers.hemisphere(-0.2 * d.season);
    r.latitude = hemisphere * rivers(14, 26) * degree;
    r.reach_north = hemisphere * rivers(20, 33) * degree;
    r.longitude = rivers(0, 2 * pi);
    r.reach_east = rivers(18, 45) * degree;
    r.bend = rivers(-55, 55) * degree;
    r.half_width = rivers(230e3, 370e3) * std::sqrt(coarse);
    fill(r, rivers);
    d.rivers.push_back(r);
  }
  Draws lows = draws("lows");
  for (int i = lows.poisson(o.lows); i > 0; --i) {
    Cyclone c;
    const double hemisphere = lows.hemisphere(0);
    c.latitude = hemisphere * lows(28, 58) * degree;
    c.longitude = lows(0, 2 * pi);
    c.pressure_drop = lows(2500, 6000);
    c.radius = lows(110e3, 220e3) * std::sqrt(coarse);
    c.shape = lows(1.1, 1.5);
    c.drift_east = lows(6, 14);
    c.drift_north = hemisphere * lows(0, 4);
    d.lows.push_back(c);
  }
  Draws surges = draws("surges");
  for (int i = surges.poisson(o.surges); i > 0; --i) {
    River r;
    const double hemisphere = surges.hemisphere(0);
    r.latitude = hemisphere * surges(14, 42) * degree;
    r.reach_north = hemisphere * surges(2, 5) * degree;
    r.longitude = surges(0, 2 * pi);
    r.reach_east = surges(2, 6) * degree;
    r.half_width = surges(250e3, 420e3) * std::sqrt(coarse);
    fill(r, surges);
    d.surges.push_back(r);
  }
  return d;
}

}  // namespace convoy::simulate
