// What a convolution's data gradient is added to (conv_backward_data_add): kernels of the convolution alone take it
// along in a bias's place or add it to the finished sum, in f32, and round once.
#pragma once

#include "core/conv_shapes.h"

namespace convoy {

/// The pixels of the addend, evenly spaced; none where nothing is added.
template <class T>
struct Addend {
  const T* first = nullptr;
  int64_t pitch = 0;  ///< elements from one pixel to the next

  Addend(const Problem& p, const KernelArgs& args) {
    if (adds_to_value(p)) first = args.in[2].data<T>(), pitch = p.in[2].pixel_pitch();
  }
  explicit operator bool() const { return first != nullptr; }
  /// Channel 0 of a pixel of the result, in the order (n, d, h, w).
  const T* at(int64_t pixel) const { return first + pixel * pitch; }
};

/// The bias, which is a third input that nothing is added to; null for none.
inline const float* bias_of(const Problem& p, const KernelArgs& args) {
  return args.in.size() == 3 && !adds_to_value(p) ? args.in[2].data<float>() : nullptr;
}

inline Support supports_addend(const Problem& p) {
  if (adds_to_value(p) && p.in[2].pixel_pitch() < 0)
    return Support::no("adds to evenly spaced pixels, found " + p.in[2].str());
  return Support::yes();
}

}  // namespace convoy
