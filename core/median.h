// The median, as benches and reports take it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace convoy {

/// The middle value, the upper of the two middle ones for an even number; 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace convoy
