// How large a problem from outside may be: bounds under which no product of extents overflows.
#pragma once

#include "core/tensor.h"

namespace convoy {

inline constexpr int64_t most_elements = int64_t{1} << 38;  ///< of one tensor, gaps of slices included
inline constexpr double most_flops = 0x1p62;

/// In double, which never overflows.
inline double count_elements(const Shape& s) {
  double elements = 1;
  for (int64_t extent : s.extent) elements *= double(extent);
  return elements;
}

}  // namespace convoy
