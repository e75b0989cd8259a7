// Standard normals of a random stream, many at a time: initial weights and densities are tens of millions of them.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>

#include "core/parallel.h"
#include "core/philox.h"

namespace convoy {

/// to[i] = random.normal(first + i) to within 1e-14, a deviation that f32 shows once in millions of elements. The same
/// bits for any `first` and length that an element is drawn by.
void fill_normal(const PhiloxStream& random, uint64_t first, std::span<double> to);

/// Calls f(i, random.normal(i)) for the elements of a range, drawn together.
template <class F>
void for_normals(const PhiloxStream& random, Range range, F&& f) {
  double drawn[256];
  for (int64_t first = range.begin; first < range.end; first += std::ssize(drawn)) {
    const int64_t count = std::min<int64_t>(std::ssize(drawn), range.end - first);
    fill_normal(random, static_cast<uint64_t>(first), std::span(drawn, static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) f(first + i, drawn[i]);
  }
}

}  // namespace convoy
