// From labels in [-1, 1] to cosmological parameters.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace convoy::apps {

/// Omega_m, sigma_8, n_s and H_0 in km/s/Mpc in the middle of the official set.
inline constexpr std::array<double, 4> parameter_centres{0.30, 0.80, 0.96, 70};

/// What labels of one target stand for.
struct PhysicalScale {
  double centre, slope;  ///< at a label of 0, per 1
  double operator()(double label) const { return centre + slope * label; }
};

/// Per target the line through samples' labels (a row of `targets` each) and their physical parameters. Where they
/// carry none, or all have one label, which is on many lines: the official set's, whose label of one is a tenth of its
/// centre.
std::vector<PhysicalScale> physical_scales(std::span<const float> labels, int64_t targets,
                                           const std::vector<std::vector<float>>& physical);

}  // namespace convoy::apps
