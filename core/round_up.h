// Whole parts of a count: for blocks, and for sizes that keep to a grain.
#pragma once

#include <cstdint>

namespace convoy {

/// Parts of `size` that hold `total` (>= 0).
constexpr int64_t ceil_div(int64_t total, int64_t size) {
  return (total + size - 1) / size;
}
/// The next multiple of `unit`.
constexpr int64_t round_up(int64_t total, int64_t unit) {
  return ceil_div(total, unit) * unit;
}

}  // namespace convoy
