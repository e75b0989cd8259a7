// Constants of the simulated atmosphere, SI units.
#pragma once

#include <numbers>

namespace convoy::simulate {

inline constexpr double pi = std::numbers::pi, degree = pi / 180;
inline constexpr double earth_radius = 6.371e6, rotation = 7.292e-5, gravity = 9.80665;
inline constexpr double gas_constant = 287.05, vapour_constant = 461.5, latent_heat = 2.5e6;

}  // namespace convoy::simulate
