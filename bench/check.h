// Checks a kernel on a small version of a problem before the problem is timed.
#pragma once

#include <optional>

#include "core/kernel.h"

namespace convoy::bench {

/// Least extents of the input along an axis and most channels that are kept; the convolution's taps always fit.
struct Reduction {
  int64_t extent;
  int64_t channels;
};

/// The problem over one sample with smaller extents and, where groups and the kernel of a plain convolution allow it,
/// fewer channels (the remainder of a division by 16 stays); also through activation and pool. Nothing for other ops.
std::optional<Problem> reduced(const Problem& problem, Reduction reduction);

/// Whether the kernel gives the reference's values on small integers: over small extents with all channels or, for
/// kernels that need many tiles, over larger ones with few. The same bits; for Winograd, whose transforms round, and
/// for slopes within 1e-3 or two units in the last place of the type. None where the kernel refuses both or the op has
/// no small form.
enum class Check : unsigned char { none, right, wrong };
Check check(const KernelList& list, const Kernel& kernel, const Problem& problem);

}  // namespace convoy::bench
