// Linear theory: transfer functions, power spectrum, growth.
#pragma once

#include <cstdint>
#include <functional>

namespace convoy::simulate {

/// Flat Lambda-CDM. The default baryon density and CMB temperature are those of the public CosmoFlow simulations.
struct Cosmology {
  double omega_m = 0.30;
  double sigma_8 = 0.80;
  double n_s = 0.96;
  double h = 0.70;  ///< H_0 / (100 km/s/Mpc)
  double omega_b = 0.045;
  double t_cmb = 2.7255;  ///< K
};

enum class Transfer : uint8_t { eisenstein_hu, bbks };

/// No-wiggle fit of Eisenstein & Hu 1998 (ApJ 496, 605; eqs. 26, 28-31). k in h/Mpc.
double transfer_eisenstein_hu(const Cosmology& c, double k);
/// Bardeen, Bond, Kaiser & Szalay 1986 (ApJ 304, 15; eq. G3) with the baryon correction of Sugiyama 1995.
double transfer_bbks(const Cosmology& c, double k);

/// Linear matter power spectrum at z = 0, normalised to sigma_8. k in h/Mpc, P in (Mpc/h)^3.
class PowerSpectrum {
 public:
  PowerSpectrum(const Cosmology& cosmology, Transfer transfer);
  double operator()(double k) const;
  double amplitude() const { return amplitude_; }

 private:
  Cosmology cosmology_;
  Transfer transfer_;
  double amplitude_ = 1;
};

/// Root of the variance of P smoothed with a top-hat of `radius` Mpc/h: sigma^2 = int k^3 P W^2 / (2 pi^2) dln k.
double top_hat_sigma(const std::function<double(double)>& power, double radius);

/// Root-mean-square displacement along one axis that the modes between two wave numbers make in linear theory, in
/// Mpc/h at the redshift of P: sigma^2 = int P / (6 pi^2) dk.
double rms_displacement(const std::function<double(double)>& power, double least, double largest);

/// Linear growth in flat Lambda-CDM, D(a) proportional to H(a) int da / (a H)^3, normalised to D(1) = 1.
class Growth {
 public:
  explicit Growth(double omega_m);
  double expansion(double a) const;   ///< E(a) = H(a)/H_0
  double factor(double a) const;      ///< D
  double derivative(double a) const;  ///< dD/da
  /// Second-order factor, -3/7 D^2 Omega_m(a)^(-1/143) (Bouchet et al. 1995).
  double second(double a) const;
  /// G_f = a^3 E dD/da: momentum of a Zel'dovich particle per displacement.
  double momentum(double a) const;

 private:
  double raw(double a) const;
  double omega_m_;
  double norm_ = 1;
};

}  // namespace convoy::simulate
