// From labels in [-1, 1] to cosmological parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy::apps {

/// What labels of one target stand for.
struct PhysicalScale {
  double centre, slope;  ///< at a label of 0, per 1
  double operator()(double label) const { return centre + slope * label; }
};

/// Per target the line through samples' labels (a row of `targets` each) and their physical parameters. Where they
/// carry none, or all have one label, which is on many lines: the official set's, whose label of one is a tenth of its
/// centre.
std::vector<PhysicalScale> physical_scales(std::span<const float> labels, int64_t targets,
                                           const std::vector<std::vector<float>>& physical);

}  // namespace convoy::apps
