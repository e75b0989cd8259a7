// The sum of several vectors in a given order, block by block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/flush_subnormals.h"
#include "core/parallel.h"

namespace convoy {

/// How many of a team's threads add up so many elements: the caller alone where waking others costs more than they
/// save.
inline int adding_threads(int64_t count, int threads) {
  constexpr int64_t least = 32768, each = 8192;
  return count < least ? 1 : static_cast<int>(std::min<int64_t>(threads, count / each));
}

/// to[i] = (sources[0][i] + sources[1][i] + ...) * scale; a copy of it goes to `copy` where that is not null. One of
/// the sources may be `to` itself. Subnormal numbers count as zero. The bits do not depend on `threads`.
template <class T>
void add_up(std::span<const T* const> sources, T scale, int64_t count, int threads, T* to, T* copy = nullptr) {
  const int used = adding_threads(count, threads);
  parallel_some(used, threads, [&](int thread) {
    const FlushSubnormals flush(1);
    const Range range = split_range(count, thread, used, 1024);
    // A block stays in the first cache while all sources are added to it.
    constexpr int64_t block = 512;
    T sum[block];
    for (int64_t i = range.begin; i < range.end; i += block) {
      const int64_t n = std::min(block, range.end - i);
      const auto bytes = static_cast<size_t>(n) * sizeof(T);
      std::memcpy(sum, sources[0] + i, bytes);
      for (const T* source : sources.subspan(1))
        for (int64_t k = 0; k < n; ++k) sum[k] += source[i + k];
      for (int64_t k = 0; k < n; ++k) to[i + k] = sum[k] * scale;
      if (copy) std::memcpy(copy + i, to + i, bytes);
    }
  });
}

}  // namespace convoy
