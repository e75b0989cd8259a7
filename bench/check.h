// Checks a kernel on small versions of a problem before the problem is timed.
#pragma once

#include <memory>
#include <vector>

#include "bench/reduce.h"

namespace convoy::bench {

enum class Check : unsigned char { none, right, wrong };

/// Compares kernels with the reference, whose results it keeps, on small versions of one problem.
///
/// Convolutions on small integers, with all channels over few positions and with few channels over rows of 40 columns;
/// kernels that need many tiles over larger extents with few channels, in images also with 128. The same bits; for
/// slopes and for Winograd, whose transforms round, within 1e-3 or two units in the last place of the type, small
/// results of its largest tiles within ten times that. Other ops over few positions, within the bounds of the tests of
/// kernels: the same bits where an op copies, compares or sums small integers, else a bound from its number of terms.
class Checker {
 public:
  Checker(const KernelList& list, const Problem& problem);
  ~Checker();
  /// Right only where every small version that the kernel takes is; none where it takes none, or there is none.
  Check operator()(const Kernel& kernel);

 private:
  class Version;
  std::vector<std::unique_ptr<Version>> versions_;
};

}  // namespace convoy::bench
