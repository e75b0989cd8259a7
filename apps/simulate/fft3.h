// Real 3-D Fourier transforms of cubes: kissfft lines along each axis, in parallel, the same bits for any thread count.
#pragma once

#include <complex>
#include <memory>
#include <vector>

namespace convoy::simulate {

using Complex = std::complex<float>;

/// n^3 reals <-> n * n * (n/2+1) complex coefficients (last axis halved). forward has no factor; backward divides by
/// n^3, so that backward(forward(x)) = x. n must be even.
class Fft3 {
 public:
  Fft3(int64_t n, int threads);
  ~Fft3();
  int64_t size() const { return n_; }
  int64_t half() const { return n_ / 2 + 1; }
  void forward(const std::vector<float>& real, std::vector<Complex>& complex) const;
  /// Destroys `complex`.
  void backward(std::vector<Complex>& complex, std::vector<float>& real) const;
  /// Signed wave number of index i along an axis, in units of 2 pi / box.
  int64_t wave(int64_t i) const { return i <= n_ / 2 ? i : i - n_; }
  int threads() const { return threads_; }

 private:
  void lines(std::vector<Complex>& data, int axis, bool inverse) const;
  struct Plans;
  int64_t n_;
  int threads_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace convoy::simulate
