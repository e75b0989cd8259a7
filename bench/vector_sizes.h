// The sizes of the vectors that bench_comm sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace convoy::bench {

/// Bytes of whole floats from `least` by the factor, each size once, and `last` in any case.
inline std::vector<int64_t> vector_sizes(int64_t least, int64_t last, double factor) {
  constexpr int64_t element = sizeof(float);
  const int64_t largest = last / element * element;
  std::vector<int64_t> sizes;
  for (auto s = double(least); s < double(largest); s *= factor)
    if (const int64_t bytes = std::llround(s) / element * element; sizes.empty() || bytes > sizes.back())
      sizes.push_back(bytes);
  if (sizes.empty() || sizes.back() < largest) sizes.push_back(largest);
  return sizes;
}

}  // namespace convoy::bench
