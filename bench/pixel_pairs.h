// Two results of one shape, element beside element, whatever lies between their pixels.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/tensor.h"

namespace convoy::bench {

template <class T>
class PixelPairs {
 public:
  PixelPairs(const Tensor& a, const Tensor& b) : a_(a), b_(b) {}
  int64_t pixels() const { return a_.tensor.shape().rows(); }
  int64_t channels() const { return a_.tensor.shape().c(); }
  /// Calls f(value of a, value of b) for all channels of pixels [begin, end).
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    for (int64_t p = begin; p < end; ++p) {
      const T *x = a_.at(p), *y = b_.at(p);
      for (int64_t c = 0; c < channels(); ++c) f(to_double(x[c]), to_double(y[c]));
    }
  }

 private:
  struct Pixels {
    explicit Pixels(const Tensor& t) : tensor(t), pitch(t.desc().pixel_pitch()) {}
    const T* at(int64_t pixel) const {
      const auto* first = reinterpret_cast<const T*>(tensor.bytes());
      if (pitch >= 0) return first + pixel * pitch;
      const Shape& s = tensor.shape();
      const int64_t w = pixel % s.w(), h = pixel / s.w() % s.h(), d = pixel / (s.w() * s.h()) % s.d();
      return first + tensor.desc().offset(pixel / (s.w() * s.h() * s.d()), d, h, w);
    }
    const Tensor& tensor;
    int64_t pitch;  ///< elements; negative: pixels are unevenly spaced
  };
  Pixels a_, b_;
};

}  // namespace convoy::bench
