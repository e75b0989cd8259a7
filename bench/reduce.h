// Small versions of a problem, on which the reference takes no time.
#pragma once

#include <optional>

#include "core/kernel.h"

namespace convoy::bench {

/// Least extents of a convolution's input along an axis (of rows, where wider ones are asked for) and most channels
/// that are kept; the convolution's taps, and the pool behind it, always fit.
struct Reduction {
  int64_t extent;
  int64_t channels;
  int64_t columns = 0;
  int64_t samples = 1;
};

/// A convolution over so many samples at most, with smaller extents and, where groups and the kernel of a plain
/// convolution allow it, fewer channels (the remainder of a division by 16 stays); also through activation and pool.
/// Slices keep their pitches. Nothing for other ops, and where no small version is legal.
std::optional<Problem> reduced(const Problem& problem, Reduction reduction);

/// Any other op over few positions: fewer samples and smaller extents, all channels but for pools and resizes, fewer
/// outputs of a dense layer. Slices keep their pitches. Nothing for what travels between ranks, and where no small
/// version is legal or cheap.
std::optional<Problem> reduced_positions(const Problem& problem);

}  // namespace convoy::bench
