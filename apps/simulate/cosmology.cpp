#include "apps/simulate/cosmology.h"

#include <cmath>
#include <numbers>

namespace convoy::simulate {

double transfer_eisenstein_hu(const Cosmology& c, double k) {
  const double om = c.omega_m * c.h * c.h, ob = c.omega_b * c.h * c.h, fb = c.omega_b / c.omega_m,
               theta = c.t_cmb / 2.7;
  const double s = 44.5 * std::log(9.83 / om) / std::sqrt(1 + 10 * std::pow(ob, 0.75));
  const double alpha = 1 - 0.328 * std::log(431 * om) * fb + 0.38 * std::log(22.3 * om) * fb * fb;
  const double ks = 0.43 * k * c.h * s;
  const double gamma = c.omega_m * c.h * (alpha + (1 - alpha) / (1 + ks * ks * ks * ks));
  const double q = k * theta * theta / gamma;
  const double l = std::log(2 * std::numbers::e + 1.8 * q), d = 14.2 + 731 / (1 + 62.5 * q);
  return l / (l + d * q * q);
}

double transfer_bbks(const Cosmology& c, double k) {
  const double gamma = c.omega_m * c.h * std::exp(-c.omega_b * (1 + std::sqrt(2 * c.h) / c.omega_m));
  const double q = k / gamma;
  if (q < 1e-9) return 1;
  return std::log(1 + 2.34 * q) / (2.34 * q) *
         std::pow(1 + 3.89 * q + std::pow(16.1 * q, 2) + std::pow(5.46 * q, 3) + std::pow(6.71 * q, 4), -0.25);
}

double top_hat_sigma(const std::function<double(double)>& power, double radius) {
  constexpr int steps = 4000;
  const double low = std::log(1e-5), high = std::log(1e3), width = (high - low) / steps;
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    const double k = std::exp(low + i * width), x = k * radius;
    const double w = x < 1e-3 ? 1 - x * x / 10 : 3 * (std::sin(x) - x * std::cos(x)) / (x * x * x);
    sum += (i == 0 || i == steps ? 0.5 : 1.0) * k * k * k * power(k) * w * w;
  }
  return std::sqrt(sum * width / (2 * std::numbers::pi * std::numbers::pi));
}

double rms_displacement(const std::function<double(double)>& power, double least, double largest) {
  constexpr int steps = 1000;
  const double width = std::log(largest / least) / steps;
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    const double k = least * std::exp(i * width);
    sum += (i == 0 || i == steps ? 0.5 : 1.0) * k * power(k);
  }
  return std::sqrt(sum * width / (6 * std::numbers::pi * std::numbers::pi));
}

PowerSpectrum::PowerSpectrum(const Cosmology& cosmology, Transfer transfer)
    : cosmology_(cosmology), transfer_(transfer) {
  const double sigma = top_hat_sigma([this](double k) { return (*this)(k); }, 8.0);
  amplitude_ = cosmology.sigma_8 * cosmology.sigma_8 / (sigma * sigma);
}

double PowerSpectrum::operator()(double k) const {
  const double t =
      transfer_ == Transfer::eisenstein_hu ? transfer_eisenstein_hu(cosmology_, k) : transfer_bbks(cosmology_, k);
  return amplitude_ * std::pow(k, cosmology_.n_s) * t * t;
}

Growth::Growth(double omega_m) : omega_m_(omega_m) {
  norm_ = raw(1.0);
}

double Growth::expansion(double a) const {
  return std::sqrt(omega_m_ / (a * a * a) + 1 - omega_m_);
}

double Growth::raw(double a) const {
  // The integrand behaves as a^1.5 at the origin: substituting a = t^2 makes it smooth for Simpson's rule.
  constexpr int steps = 2000;
  const double width = std::sqrt(a) / steps;
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    const double t = i * width, x = t * t;
    const double value = i == 0 ? 0 : 2 * t / std::pow(x * expansion(x), 3);
    sum += value * (i == 0 || i == steps ? 1 : i % 2 ? 4 : 2);
  }
  return expansion(a) * sum * width / 3;
}

double Growth::factor(double a) const {
  return raw(a) / norm_;
}

double Growth::derivative(double a) const {
  // dD/da = D * E'/E + E * 1/(a E)^3 / norm, with E' = -3 Omega_m / (2 a^4 E).
  const double e = expansion(a);
  return factor(a) * (-1.5 * omega_m_ / (a * a * a * a * e * e)) + e / (std::pow(a * e, 3) * norm_);
}

double Growth::second(double a) const {
  const double d = factor(a), om = omega_m_ / (a * a * a) / std::pow(expansion(a), 2);
  return -3.0 / 7.0 * d * d * std::pow(om, -1.0 / 143.0);
}

double Growth::momentum(double a) const {
  return a * a * a * expansion(a) * derivative(a);
}

}  // namespace convoy::simulate
