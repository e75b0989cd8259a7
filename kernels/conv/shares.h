// How many blocks share the inner dimension of a tile, in kernels of images that the copy engine brings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// Work that a block takes one after the other.
struct SharedChunks {
  int64_t count;
  double products;  ///< clocks of each: of the tensor cores, or of shared memory
  double bytes;     ///< that each copies
};
struct Shares {
  int count = 1;
  double seconds = std::numeric_limits<double>::infinity();
};

/// The shares, at most `most`, that take least time by a model: rounds of as many blocks as run at once, their
/// beginning and end, and the parts, of so many bytes, that are written and read again where there are several.
inline Shares best_shares(int64_t tiles, const SharedChunks& chunks, int64_t part_bytes, int64_t most) {
  constexpr double clock = 1.4e9 /* as far as products keep up */, copies = 32 /* bytes a clock and block */,
                   begin_and_end = 3e-6, parts = 3e12 /* bytes a second */, another_launch = 3e-6;
  constexpr int64_t most_bytes = int64_t{256} << 20;
  const double of_chunk = std::max(chunks.products, chunks.bytes / copies) / clock;
  Shares best;
  for (int count = 1; count <= std::max<int64_t>(1, std::min(most, most_bytes / part_bytes)); ++count) {
    const double seconds =
        pieces(tiles * count, multiprocessors()) * (pieces(chunks.count, count) * of_chunk + begin_and_end) +
        (count > 1 ? 2 * double(count * part_bytes) / parts + another_launch : 0);
    if (seconds < best.seconds) best = {count, seconds};
  }
  return best;
}

}  // namespace convoy::cuda
