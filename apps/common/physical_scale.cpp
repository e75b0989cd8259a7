#include "apps/common/physical_scale.h"

#include <algorithm>

namespace convoy::apps {
namespace {

PhysicalScale official_scale(size_t target) {
  const double centre = target < parameter_centres.size() ? parameter_centres[target] : 1;
  return {centre, 0.1 * centre};
}

}  // namespace

std::vector<PhysicalScale> physical_scales(std::span<const float> labels, int64_t targets,
                                           const std::vector<std::vector<float>>& physical) {
  std::vector<PhysicalScale> all;
  const auto width = static_cast<size_t>(targets);
  for (size_t t = 0; t < width; ++t) {
    double count = 0, label_mean = 0, value_mean = 0, products = 0, squares = 0;
    for (size_t i = 0; i < physical.size(); ++i) {
      if (physical[i].size() <= t) continue;
      const double label = labels[i * width + t], value = physical[i][t], off = label - label_mean;
      label_mean += off / ++count, value_mean += (value - value_mean) / count;
      squares += off * (label - label_mean), products += off * (value - value_mean);
    }
    const bool line = squares > 1e-12 * count * std::max(1.0, label_mean * label_mean);
    all.push_back(official_scale(t));
    if (line) all[t] = {value_mean - products / squares * label_mean, products / squares};
  }
  return all;
}

}  // namespace convoy::apps
