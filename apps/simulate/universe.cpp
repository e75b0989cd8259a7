#include "apps/simulate/universe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "apps/simulate/fft3.h"
#include "core/error.h"
#include "core/normal.h"
#include "core/parallel.h"

namespace convoy::simulate {
namespace {

using Field = std::vector<float>;
using Modes = std::vector<Complex>;

/// Calls f(index, kx, ky, kz) with integer wave numbers for every stored coefficient.
template <class F>
void for_modes(const Fft3& fft, F&& f) {
  const int64_t n = fft.size(), h = fft.half();
  parallel_ranges(n, fft.threads(), 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < h; ++k) f(static_cast<size_t>((i * n + j) * h + k), fft.wave(i), fft.wave(j), k);
  });
}

/// Modes at the Nyquist frequency have no signed partner: derivatives drop them.
bool nyquist(const Fft3& fft, int64_t k) {
  return 2 * std::abs(k) == fft.size();
}

class UniverseSimulation {
 public:
  UniverseSimulation(const Cosmology& cosmology, const UniverseOptions& options)
      : cosmology_(cosmology),
        o_(options),
        n_(options.particles),
        box_(double(options.particles) * options.voxel),
        fft_(n_, options.threads),
        growth_(cosmology.omega_m) {}

  Universe run() {
    Universe u;
    u.size = n_;
    u.box = box_;
    draw_density();
    {
      Modes copy = linear_;
      fft_.backward(copy, u.initial_density);
    }
    place_particles();
    linear_ = Modes();  // {} would keep the memory
    u.counts.assign(static_cast<size_t>(4 * n_ * n_ * n_), 0);
    evolve(u);
    u.momentum_residual = residual();
    return u;
  }

 private:
  double cell() const { return box_ / double(n_); }

  /// White noise by lattice site, shaped by the square root of the spectrum.
  void draw_density() {
    Field noise(static_cast<size_t>(n_ * n_ * n_));
    const PhiloxStream random(o_.seed, hash_name("initial density"));
    parallel_ranges(n_ * n_ * n_, o_.threads, 4096, [&](Range r) {
      for_normals(random, r, [&](int64_t i, double value) { noise[static_cast<size_t>(i)] = float(value); });
    });
    fft_.forward(noise, linear_);
    const PowerSpectrum power(cosmology_, o_.transfer);
    const double fundamental = 2 * std::numbers::pi / box_, scale = std::pow(double(n_) / box_, 1.5);
    // P depends on |k| alone: one table over the squared wave number spares a logarithm and powers per mode.
    const int64_t top = 3 * (n_ / 2) * (n_ / 2);
    std::vector<float> factor(static_cast<size_t>(top + 1));
    parallel_ranges(top, o_.threads, 64, [&](Range r) {
      for (int64_t s = r.begin + 1; s <= r.end; ++s)
        factor[static_cast<size_t>(s)] =
            static_cast<float>(scale * std::sqrt(power(fundamental * std::sqrt(double(s)))));
    });
    for_modes(fft_, [&](size_t at, int64_t kx, int64_t ky, int64_t kz) {
      linear_[at] *= factor[static_cast<size_t>(kx * kx + ky * ky + kz * kz)];
    });
  }

  /// i k_axis / k^2 times a density: the displacement whose divergence is minus the density.
  Field gradient_of_inverse_laplacian(const Modes& density, int axis) const {
    Modes modes(density.size());
    const double fundamental = 2 * std::numbers::pi / box_;
    for_modes(fft_, [&](size_t at, int64_t kx, int64_t ky, int64_t kz) {
      const int64_t k[3] = {kx, ky, kz}, squared = kx * kx + ky * ky + kz * kz;
      if (squared == 0 || nyquist(fft_, k[axis]))
        modes[at] = 0;
      else
        modes[at] = Complex(0, static_cast<float>(double(k[axis]) / (fundamental * double(squared)))) * density[at];
    });
    Field field;
    fft_.backward(modes, field);
    return field;
  }

  /// Sum over pairs of phi,ii phi,jj - phi,ij^2 with laplace(phi) = density.
  Field second_order_source() const {
    const auto derivative = [&](int a, int b) {
      Modes modes(linear_.size());
      for_modes(fft_, [&](size_t at, int64_t kx, int64_t ky, int64_t kz) {
        const int64_t k[3] = {kx, ky, kz}, squared = kx * kx + ky * ky + kz * kz;
        modes[at] = squared == 0 ? Complex(0) : linear_[at] * static_cast<float>(double(k[a] * k[b]) / double(squared));
      });
      Field field;
      fft_.backward(modes, field);
      return field;
    };
    const Field xx = derivative(0, 0), yy = derivative(1, 1), zz = derivative(2, 2), xy = derivative(0, 1),
                xz = derivative(0, 2), yz = derivative(1, 2);
    Field source(xx.size());
    for (size_t i = 0; i < source.size(); ++i)
      source[i] = xx[i] * yy[i] + xx[i] * zz[i] + yy[i] * zz[i] - xy[i] * xy[i] - xz[i] * xz[i] - yz[i] * yz[i];
    return source;
  }

  void place_particles() {
    const double a = o_.start_a, d1 = growth_.factor(a), d2 = growth_.second(a), p1 = growth_.momentum(a);
    // dD2/da by central difference; D2 is smooth.
    const double step = 1e-4 * a, p2 = a * a * a * growth_.expansion(a) *
                                       (growth_.second(a + step) - growth_.second(a - step)) / (2 * step);
    Modes second;
    fft_.forward(second_order_source(), second);
    for (int axis = 0; axis < 3; ++axis) {
      const Field psi1 = gradient_of_inverse_laplacian(linear_, axis),
                  psi2 = gradient_of_inverse_laplacian(second, axis);
      auto &x = position_[static_cast<size_t>(axis)], &p = momentum_[static_cast<size_t>(axis)];
      x.resize(psi1.size());
      p.resize(psi1.size());
      parallel_ranges(n_ * n_ * n_, o_.threads, 4096, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          const int64_t site[3] = {i / (n_ * n_), i / n_ % n_, i % n_};
          const auto at = static_cast<size_t>(i);
          // psi2 solves laplace(phi2) = source with x = q - D1 grad phi1 + D2 grad phi2; both signs are in i k / k^2.
          x[at] = wrap(static_cast<float>((double(site[axis]) + 0.5) + (d1 * psi1[at] - d2 * psi2[at]) / cell()));
          p[at] = static_cast<float>((p1 * psi1[at] - p2 * psi2[at]) / cell());
        }
      });
    }
  }

  float wrap(float x) const {
    const auto size = static_cast<float>(n_);
    if (x >= 0 && x < size) return x;  // most: without SSE4.1 rounding down is a call
    x -= std::floor(x / size) * size;
    return x >= size ? 0.0f : x;
  }

  struct Corner {
    size_t cell;
    float weight;
  };
  struct Stencil {
    int64_t lower[3], upper[3];
    float low[3], high[3];  // cloud-in-cell weights
    /// Bits of `c`: upper or lower along x, y, z.
    Corner corner(int c, int64_t n) const {
      const int64_t x = c & 4 ? upper[0] : lower[0], y = c & 2 ? upper[1] : lower[1], z = c & 1 ? upper[2] : lower[2];
      return {static_cast<size_t>((x * n + y) * n + z),
              (c & 4 ? high[0] : low[0]) * (c & 2 ? high[1] : low[1]) * (c & 1 ? high[2] : low[2])};
    }
  };
  Stencil stencil(size_t i) const {
    Stencil s;
    for (size_t axis = 0; axis < 3; ++axis) {
      const float x = position_[axis][i] - 0.5f;
      const int64_t cell_index = x < 0 ? -1 : static_cast<int64_t>(x);
      s.high[axis] = x - static_cast<float>(cell_index);
      s.low[axis] = 1 - s.high[axis];
      s.lower[axis] = cell_index < 0 ? cell_index + n_ : cell_index;
      s.upper[axis] = s.lower[axis] + 1 == n_ ? 0 : s.lower[axis] + 1;
    }
    return s;
  }

  /// Cloud-in-cell density contrast. Particles are cut into fixed parts, each with a mesh of its own, added in order.
  Field deposit() const {
    constexpr int parts = 4;
    std::vector<Field> mesh(parts, Field(static_cast<size_t>(n_ * n_ * n_)));
    parallel_ranges(parts, o_.threads, 1, [&](Range range) {
      for (int64_t part = range.begin; part < range.end; ++part) {
        Field& m = mesh[static_cast<size_t>(part)];
        const Range mine = split_range(n_ * n_ * n_, static_cast<int>(part), parts);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
          const Stencil s = stencil(static_cast<size_t>(i));
          for (int c = 0; c < 8; ++c) {
            const Corner corner = s.corner(c, n_);
            m[corner.cell] += corner.weight;
          }
        }
      }
    });
    parallel_ranges(n_ * n_ * n_, o_.threads, 4096, [&](Range r) {
      for (int64_t i = r.begin; i < r.end; ++i) {
        float sum = -1;
        for (const Field& m : mesh) sum += m[static_cast<size_t>(i)];
        mesh[0][static_cast<size_t>(i)] = sum;
      }
    });
    return std::move(mesh[0]);
  }

  /// momentum += factor * force, force = -3/2 Omega_m grad inverse-laplace(delta), interpolated as it was deposited.
  void kick(double factor) {
    Modes density;
    fft_.forward(deposit(), density);
    const auto scale = static_cast<float>(factor * 1.5 * cosmology_.omega_m / cell());
    std::array<Field, 3> force;
    for (size_t axis = 0; axis < 3; ++axis)
      force[axis] = gradient_of_inverse_laplacian(density, static_cast<int>(axis));
    parallel_ranges(n_ * n_ * n_, o_.threads, 4096, [&](Range r) {
      for (int64_t i = r.begin; i < r.end; ++i) {
        const Stencil s = stencil(static_cast<size_t>(i));
        float value[3] = {};
        for (int c = 0; c < 8; ++c) {
          const Corner corner = s.corner(c, n_);
          for (size_t axis = 0; axis < 3; ++axis) value[axis] += corner.weight * force[axis][corner.cell];
        }
        for (size_t axis = 0; axis < 3; ++axis) momentum_[axis][static_cast<size_t>(i)] += scale * value[axis];
      }
    });
  }

  void drift(double factor) {
    for (size_t axis = 0; axis < 3; ++axis)
      parallel_ranges(n_ * n_ * n_, o_.threads, 4096, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          const auto at = static_cast<size_t>(i);
          position_[axis][at] = wrap(position_[axis][at] + static_cast<float>(factor) * momentum_[axis][at]);
        }
      });
  }

  /// FastPM's factors: exact for the Zel'dovich motion between a0 and a1, with the operator evaluated at `at`.
  double drift_factor(double a0, double a1, double at) const {
    return (growth_.factor(a1) - growth_.factor(a0)) / growth_.momentum(at);
  }
  double kick_factor(double a0, double a1, double at) const {
    const double step = 1e-4 * at;
    const double rate = (growth_.momentum(at + step) - growth_.momentum(at - step)) / (2 * step);
    return (growth_.momentum(a1) - growth_.momentum(a0)) / (at * at * growth_.expansion(at) * rate);
  }

  /// Kick-drift-kick; every redshift of the output is the end of a step.
  void evolve(Universe& u) {
    std::vector<double> times{o_.start_a};
    for (int i = 1; i <= o_.steps; ++i) times.push_back(o_.start_a + (1 - o_.start_a) * i / o_.steps);
    for (double z : redshifts) times.push_back(1 / (1 + z));
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end(), [](double a, double b) { return std::abs(a - b) < 1e-9; }),
                times.end());
    for (size_t i = 0; i + 1 < times.size(); ++i) {
      const double a0 = times[i], a1 = times[i + 1], middle = std::sqrt(a0 * a1);
      // The opening kick of one step and the closing kick of the previous share positions and are done as one.
      const double from = i == 0 ? a0 : std::sqrt(times[i - 1] * a0);
      kick(kick_factor(from, middle, a0));
      drift(drift_factor(a0, a1, middle));
      for (size_t channel = 0; channel < redshifts.size(); ++channel)
        if (std::abs(1 / (1 + redshifts[channel]) - a1) < 1e-9) count(u, channel);
    }
    kick(kick_factor(std::sqrt(times[times.size() - 2]), 1.0, 1.0));
  }

  /// Nearest-cell particle counts.
  void count(Universe& u, size_t channel) const {
    for (int64_t i = 0; i < n_ * n_ * n_; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto x = static_cast<int64_t>(position_[0][at]), y = static_cast<int64_t>(position_[1][at]),
                 z = static_cast<int64_t>(position_[2][at]);
      int16_t& voxel = u.counts[static_cast<size_t>(((x * n_ + y) * n_ + z) * 4) + channel];
      if (voxel == INT16_MAX) fail_runtime("more than 32767 particles in one voxel: use a smaller voxel");
      ++voxel;
    }
  }

  double residual() const {
    double worst = 0;
    for (const auto& p : momentum_) {
      double sum = 0, absolute = 0;
      for (float v : p) sum += v, absolute += std::abs(v);
      worst = std::max(worst, std::abs(sum) / absolute);
    }
    return worst;
  }

  Cosmology cosmology_;
  UniverseOptions o_;
  int64_t n_;
  double box_;
  Fft3 fft_;
  Growth growth_;
  Modes linear_;
  std::array<std::vector<float>, 3> position_, momentum_;  // in cells; momenta are a^3 E dx/da
};

}  // namespace

Universe simulate_universe(const Cosmology& cosmology, const UniverseOptions& options) {
  return UniverseSimulation(cosmology, options).run();
}

double displacement_in_voxels(const Cosmology& cosmology, const UniverseOptions& options) {
  const PowerSpectrum power(cosmology, options.transfer);
  // A box has the mode k = 0 instead of all in a cell of (2 pi / box)^3, taken as a sphere here.
  const double fundamental = 2 * std::numbers::pi / (double(options.particles) * options.voxel),
               least = fundamental * std::cbrt(3 / (4 * std::numbers::pi)), nyquist = std::numbers::pi / options.voxel;
  return rms_displacement([&](double k) { return power(k); }, least, nyquist) / options.voxel;
}

double counted_power(double voxels) {
  // A long wave shifts a normal distribution of displacements by little: the mean number of borders crossed changes by
  // its density at the borders, half a voxel from the centre and whole ones further.
  double response = 0;
  for (double border = 0.5; border < 0.5 + 10 * voxels; ++border)
    response += 2 * std::exp(-0.5 * border * border / (voxels * voxels)) / (voxels * std::sqrt(2 * std::numbers::pi));
  return response * response;
}

MeasuredPower measure_power(const std::vector<float>& density, int64_t size, double box, int threads) {
  const Fft3 fft(size, threads);
  Modes modes;
  fft.forward(density, modes);
  const auto shells = static_cast<size_t>(size / 2);
  std::vector<double> sum(shells + 1), k_sum(shells + 1), weight(shells + 1);
  const double fundamental = 2 * std::numbers::pi / box, volume = box * box * box, cells = std::pow(double(size), 3);
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < size; ++j)
      for (int64_t k = 0; k < fft.half(); ++k) {
        const int64_t kx = fft.wave(i), ky = fft.wave(j);
        const double magnitude = std::sqrt(double(kx * kx + ky * ky + k * k));
        const auto shell = static_cast<size_t>(std::lround(magnitude));
        if (shell == 0 || shell > shells) continue;
        const double twice = k == 0 || 2 * k == size ? 1 : 2;
        sum[shell] += twice * std::norm(modes[static_cast<size_t>((i * size + j) * fft.half() + k)]);
        k_sum[shell] += twice * magnitude;
        weight[shell] += twice;
      }
  MeasuredPower result;
  for (size_t s = 1; s <= shells; ++s) {
    result.k.push_back(fundamental * k_sum[s] / weight[s]);
    result.power.push_back(sum[s] / weight[s] * volume / (cells * cells));
  }
  return result;
}

std::vector<float> contrast(const Universe& u, int channel) {
  std::vector<float> density(static_cast<size_t>(u.size * u.size * u.size));
  for (size_t i = 0; i < density.size(); ++i) density[i] = float(u.counts[i * 4 + static_cast<size_t>(channel)]) - 1.0f;
  return density;
}

}  // namespace convoy::simulate
