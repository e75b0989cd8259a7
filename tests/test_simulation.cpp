// Physics of the simulated universes: published check values, growth, amplitude, conservation laws.
#include <cmath>
#include <numbers>

#include "apps/simulate/fft3.h"
#include "apps/simulate/universe.h"
#include "core/philox.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::simulate;

namespace {

const Cosmology check{.omega_m = 0.3089, .sigma_8 = 0.8159, .n_s = 0.9667, .h = 0.6774, .omega_b = 0.0486};

/// Mean ratio of two spectra over the bins below `k_max`, weighted by mode count.
double mean_ratio(const MeasuredPower& a, const MeasuredPower& b, double k_max) {
  double top = 0, bottom = 0;
  for (size_t i = 0; i < a.k.size(); ++i)
    if (a.k[i] < k_max) top += a.power[i] / b.power[i] * double((i + 1) * (i + 1)), bottom += double((i + 1) * (i + 1));
  return top / bottom;
}

}  // namespace

TEST_CASE("transfer functions, normalisation and growth match independent values", "[cosmology]") {
  const PowerSpectrum eh(check, Transfer::eisenstein_hu), bbks(check, Transfer::bbks);
  const double k[] = {0.01, 0.02, 0.1, 0.5, 1.0}, p_eh[] = {21905, 23742, 5831, 308.7, 65.8},
               p_bbks[] = {19247, 20463, 5928, 303.2, 63.5};
  for (size_t i = 0; i < 5; ++i) {
    CHECK(eh(k[i]) == Approx(p_eh[i]).epsilon(2e-3));
    CHECK(bbks(k[i]) == Approx(p_bbks[i]).epsilon(2e-3));
  }
  CHECK(eh.amplitude() == Approx(3.0453e6).epsilon(2e-3));
  CHECK(top_hat_sigma([&](double q) { return eh(q); }, 8) == Approx(0.8159).epsilon(1e-9));
  const Growth g(check.omega_m);
  const double z[] = {0.5, 1.5, 3, 9}, d[] = {0.77063, 0.49757, 0.31677, 0.12746};
  for (size_t i = 0; i < 4; ++i) CHECK(g.factor(1 / (1 + z[i])) == Approx(d[i]).epsilon(1e-4));
  const double a = 0.4, h = 1e-5;
  CHECK(g.derivative(a) == Approx((g.factor(a + h) - g.factor(a - h)) / (2 * h)).epsilon(1e-5));
}

TEST_CASE("the 3-D transform inverts itself and finds a plane wave", "[fft]") {
  for (int threads : {1, 2}) {
    const Fft3 fft(12, threads);
    std::vector<float> x(12 * 12 * 12), back;
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::cos(2 * std::numbers::pi_v<float> * float(3 * (i / 144) + 2 * (i / 12 % 12) + i % 12) / 12);
    std::vector<Complex> modes;
    fft.forward(x, modes);
    const size_t peak = (3 * 12 + 2) * 7 + 1;
    for (size_t i = 0; i < modes.size(); ++i) CHECK(std::abs(modes[i]) == Approx(i == peak ? 864 : 0).margin(1e-2));
    fft.backward(modes, back);
    for (size_t i = 0; i < x.size(); ++i) CHECK(back[i] == Approx(x[i]).margin(1e-5));
  }
}

TEST_CASE("a universe obeys its physics", "[universe]") {
  const Cosmology c;
  UniverseOptions o;
  o.particles = 128;
  o.voxel = 2;
  o.seed = 11;
  o.threads = 2;
  const Universe u = simulate_universe(c, o);
  const double box = 256;
  const Growth growth(c.omega_m);

  double previous_skewness = INFINITY;
  std::vector<MeasuredPower> power;
  for (int channel = 0; channel < 4; ++channel) {
    const std::vector<float> delta = contrast(u, channel);
    double sum = 0, squares = 0, cubes = 0;
    for (float v : delta) sum += v, squares += double(v) * v, cubes += std::pow(double(v), 3);
    CHECK(sum == 0);  // one particle per voxel on average, exactly
    // Counts are Poisson-like: the excess over shot noise is what gravity made.
    const double skewness = cubes / double(delta.size());
    CHECK(skewness < previous_skewness);
    previous_skewness = skewness;
    power.push_back(measure_power(delta, 128, box, 2));
  }
  CHECK(u.momentum_residual < 1e-4);

  // Large scales grow with D^2. Particles sit on a lattice, so there is no shot noise at low k; the same phases cancel
  // cosmic variance. Compared between z = 3 and z = 1.5, and down to z = 0.5 and 0.
  const auto d = [&](double z) { return growth.factor(1 / (1 + z)); };
  for (size_t i = 0; i < 3; ++i) {
    const double expected = std::pow(d(redshifts[i]) / d(3), 2);
    CHECK(std::sqrt(mean_ratio(power[i], power[3], 0.08) / expected) == Approx(1).epsilon(0.03));
  }

  // sigma_8 of the initial conditions: amplitude of the measured linear field against the input spectrum.
  const PowerSpectrum linear(c, Transfer::eisenstein_hu);
  const MeasuredPower initial = measure_power(u.initial_density, 128, box, 2);
  double top = 0, bottom = 0;
  for (size_t i = 2; i < initial.k.size(); ++i) {
    const double modes = double((i + 1) * (i + 1));
    top += modes * initial.power[i] / linear(initial.k[i]), bottom += modes;
  }
  CHECK(c.sigma_8 * std::sqrt(top / bottom) == Approx(c.sigma_8).epsilon(0.01));
}

TEST_CASE("counts lack the large scales where particles stay in their voxels", "[universe]") {
  const Cosmology c;
  const PowerSpectrum linear(c, Transfer::eisenstein_hu);
  const auto power = [&](double k) { return linear(k); };
  // Of P = k on [0, 2]: sigma^2 = 2 / (6 pi^2).
  CHECK(rms_displacement([](double k) { return k; }, 1e-6, 2) ==
        Approx(1 / (std::sqrt(3) * std::numbers::pi)).epsilon(1e-4));
  CHECK(rms_displacement(power, 1e-5, 1e3) == Approx(5.74).epsilon(1e-2));
  CHECK(counted_power(3) == Approx(1));
  CHECK(counted_power(0.5) == Approx(0.971).epsilon(1e-3));
  CHECK(counted_power(0.2) == Approx(0.0305).epsilon(1e-2));

  UniverseOptions o;
  o.particles = 64;
  o.voxel = 8;
  o.seed = 11;
  const Universe u = simulate_universe(c, o);
  const Growth growth(c.omega_m);
  const double moved = displacement_in_voxels(c, o);
  // This realisation's own displacements, from its modes.
  const MeasuredPower initial = measure_power(u.initial_density, 64, u.box, 1);
  double squared = 0;
  for (double p : initial.power) squared += p / (3 * std::numbers::pi * u.box);
  CHECK(moved * o.voxel == Approx(std::sqrt(squared)).epsilon(0.05));
  for (int channel = 0; channel < 4; ++channel) {
    const double d = growth.factor(1 / (1 + redshifts[static_cast<size_t>(channel)]));
    MeasuredPower expected = initial;
    for (double& p : expected.power) p *= d * d;
    // Up to a tenth of the power goes by other ways: forces are smoothed over voxels of 8 Mpc/h.
    INFO("z = " << redshifts[static_cast<size_t>(channel)] << ", voxels " << d * moved);
    CHECK(mean_ratio(measure_power(contrast(u, channel), 64, u.box, 1), expected, 0.04) ==
          Approx(counted_power(d * moved)).margin(0.1));
  }
}

TEST_CASE("structure at z = 0 is non-linear, and the same bits come from any thread count", "[universe]") {
  const Cosmology c;
  UniverseOptions o;
  o.particles = 64;
  o.voxel = 1;
  o.seed = 4;
  o.threads = 1;
  const Universe one = simulate_universe(c, o);
  o.threads = 2;
  const Universe two = simulate_universe(c, o);
  CHECK(one.counts == two.counts);
  const PowerSpectrum linear(c, Transfer::eisenstein_hu);
  const MeasuredPower p = measure_power(contrast(one, 0), 64, 64, 2),
                      initial = measure_power(one.initial_density, 64, 64, 2);
  // k = 0.5 h/Mpc is shell 5 of this box; against this realisation's own linear field cosmic variance cancels.
  double top = 0, bottom = 0;
  for (size_t i = 3; i < 6; ++i) top += p.power[i], bottom += initial.power[i];
  INFO("k = " << p.k[4] << " h/Mpc, ratio " << top / bottom);
  CHECK(p.k[4] == Approx(0.5).margin(0.05));
  CHECK(top / bottom > 1.5);
  // A lognormal field of this variance would have few voxels this dense.
  int16_t largest = 0;
  for (size_t i = 0; i < one.counts.size(); i += 4) largest = std::max(largest, one.counts[i]);
  CHECK(largest > 100);
}
