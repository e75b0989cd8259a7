// A dark-matter universe: Gaussian initial conditions, second-order displacement, particle-mesh steps, particle counts
// at four redshifts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "apps/simulate/cosmology.h"

namespace convoy::simulate {

struct UniverseOptions {
  int64_t particles = 128;  ///< per side; also the mesh of forces and of the counts: one particle per voxel on average
  double voxel = 1;         ///< extent of a voxel in Mpc/h
  uint64_t seed = 0;
  Transfer transfer = Transfer::eisenstein_hu;
  double start_a = 0.1;  ///< scale factor of the 2LPT start
  int steps = 12;        ///< particle-mesh steps to a = 1, uniform in a
  int threads = 1;
};

inline constexpr std::array<double, 4> redshifts{0.0, 0.5, 1.5, 3.0};  ///< channel order

struct Universe {
  int64_t size = 0;
  double box = 0;                      ///< Mpc/h
  std::vector<int16_t> counts;         ///< (size, size, size, 4), z = 0 first
  std::vector<float> initial_density;  ///< linear density contrast at z = 0
  /// Of all particles at the end: sum of the momenta over the sum of their absolute values, worst axis.
  double momentum_residual = 0;
};

/// The same bits for any thread count: noise is drawn by site, sums run over fixed slabs.
/// The force uses the growth-preserving kick and drift factors of FastPM (Feng et al. 2016, MNRAS 463, 2273), so that
/// linear scales grow exactly with D however few the steps.
Universe simulate_universe(const Cosmology& cosmology, const UniverseOptions& options);

/// Root-mean-square displacement of particles along an axis at z = 0, in voxels: linear theory for the modes of the
/// box.
double displacement_in_voxels(const Cosmology& cosmology, const UniverseOptions& options);
/// Share of the power of large scales that the counts have where particles are displaced by so many voxels (rms along
/// an axis). They start at the centres of voxels and are counted where they leave them: at half a voxel 0.97, at a
/// third 0.6, at a fifth 0.03.
double counted_power(double voxels);

/// Isotropic power spectrum of a density contrast, corrected for the count in each shell; bins of width 2 pi / box.
/// Entry i is the mean over shell i + 1.
struct MeasuredPower {
  std::vector<double> k, power;
};
MeasuredPower measure_power(const std::vector<float>& density, int64_t size, double box, int threads);

/// One channel of the counts as density contrast.
std::vector<float> contrast(const Universe& universe, int channel);

}  // namespace convoy::simulate
