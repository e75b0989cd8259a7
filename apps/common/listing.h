// Finding out what a data set holds on many ranks: one looks through its folders, each opens its share of the files.
#pragma once

#include <string>
#include <vector>

#include "apps/common/ranks.h"
#include "io/climate.h"
#include "io/dataset.h"

namespace convoy::apps {

/// samples_below and images_below, the same on all ranks. `path` may be another one on each node, with the same files
/// below it (staging). Collective; throws what they throw.
std::vector<SampleRef> list_samples(const std::string& path, const ReadOptions& options, Ranks& ranks);
std::vector<ClimateRef> list_images(const std::string& path, Ranks& ranks);

}  // namespace convoy::apps
