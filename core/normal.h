// Standard normals of a random stream, many at a time: initial weights and densities are tens of millions of them.
#pragma once

#include <span>

#include "core/philox.h"

namespace convoy {

/// to[i] = random.normal(first + i) to within 1e-14, a deviation that f32 shows once in millions of elements. The same
/// bits for any `first` and length that an element is drawn by.
void fill_normal(const PhiloxStream& random, uint64_t first, std::span<double> to);

}  // namespace convoy
