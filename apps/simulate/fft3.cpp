#include "apps/simulate/fft3.h"

#include <kiss_fftr.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/round_up.h"

namespace convoy::simulate {

struct Fft3::Plans {
  kiss_fft_cfg forward, inverse;
  std::vector<kiss_fftr_cfg> real_forward, real_inverse;  // kiss_fftr keeps scratch in the plan: one per thread
  Plans(int n, int threads)
      : forward(kiss_fft_alloc(n, 0, nullptr, nullptr)), inverse(kiss_fft_alloc(n, 1, nullptr, nullptr)) {
    for (int t = 0; t < threads; ++t) {
      real_forward.push_back(kiss_fftr_alloc(n, 0, nullptr, nullptr));
      real_inverse.push_back(kiss_fftr_alloc(n, 1, nullptr, nullptr));
    }
  }
  ~Plans() {
    kiss_fft_free(forward);
    kiss_fft_free(inverse);
    for (auto plan : real_forward) kiss_fft_free(plan);
    for (auto plan : real_inverse) kiss_fft_free(plan);
  }
};

Fft3::Fft3(int64_t n, int threads) : n_(n), threads_(threads) {
  if (n < 2 || n % 2) fail_usage("the mesh must have an even number of cells per side, found " + std::to_string(n));
  plans_ = std::make_unique<Plans>(static_cast<int>(n), threads);
}

Fft3::~Fft3() = default;

/// Complex transforms along axis 0 or 1. Lines are gathered eight at a time so that strided reads use whole cache
/// lines.
void Fft3::lines(std::vector<Complex>& data, int axis, bool inverse) const {
  constexpr int64_t group = 8;
  const int64_t h = half(), stride = axis == 0 ? n_ * h : h;
  const int64_t per_plane = axis == 0 ? n_ * h : h, planes = axis == 0 ? 1 : n_;
  const int64_t groups = ceil_div(per_plane, group);
  const kiss_fft_cfg plan = inverse ? plans_->inverse : plans_->forward;
  // Made ahead of the threads, for all of them: where memory runs out in a thread, the program ends on the spot.
  std::vector<Complex> scratch(static_cast<size_t>(threads_ * (group + 1) * n_));
  parallel_threads(threads_, [&](int t) {
    Complex *in = &scratch[static_cast<size_t>(t * (group + 1) * n_)], *out = in + group * n_;
    const Range range = split_range(planes * groups, t, threads_);
    for (int64_t g = range.begin; g < range.end; ++g) {
      const int64_t first = g % groups * group, count = std::min(group, per_plane - first);
      Complex* base = data.data() + g / groups * n_ * h + first;
      for (int64_t i = 0; i < n_; ++i)
        for (int64_t k = 0; k < count; ++k) in[k * n_ + i] = base[i * stride + k];
      for (int64_t k = 0; k < count; ++k) {
        kiss_fft(plan, reinterpret_cast<const kiss_fft_cpx*>(in + k * n_), reinterpret_cast<kiss_fft_cpx*>(out));
        std::copy(out, out + n_, in + k * n_);
      }
      for (int64_t i = 0; i < n_; ++i)
        for (int64_t k = 0; k < count; ++k) base[i * stride + k] = in[k * n_ + i];
    }
  });
}

void Fft3::forward(const std::vector<float>& real, std::vector<Complex>& complex) const {
  const int64_t h = half();
  complex.resize(static_cast<size_t>(n_ * n_ * h));
  parallel_threads(threads_, [&](int t) {
    const Range rows = split_range(n_ * n_, t, threads_);
    for (int64_t r = rows.begin; r < rows.end; ++r)
      kiss_fftr(plans_->real_forward[static_cast<size_t>(t)], real.data() + r * n_,
                reinterpret_cast<kiss_fft_cpx*>(complex.data() + r * h));
  });
  lines(complex, 1, false);
  lines(complex, 0, false);
}

void Fft3::backward(std::vector<Complex>& complex, std::vector<float>& real) const {
  const int64_t h = half();
  real.resize(static_cast<size_t>(n_ * n_ * n_));
  lines(complex, 0, true);
  lines(complex, 1, true);
  const float scale = 1.0f / (float(n_) * float(n_) * float(n_));
  parallel_threads(threads_, [&](int t) {
    const Range rows = split_range(n_ * n_, t, threads_);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      kiss_fftri(plans_->real_inverse[static_cast<size_t>(t)],
                 reinterpret_cast<const kiss_fft_cpx*>(complex.data() + r * h), real.data() + r * n_);
      for (int64_t i = 0; i < n_; ++i) real[static_cast<size_t>(r * n_ + i)] *= scale;
    }
  });
}

}  // namespace convoy::simulate
