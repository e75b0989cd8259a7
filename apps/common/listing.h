// Finding out what a data set holds on many ranks: one looks through its folders, each opens its share of the files.
#pragma once

#include <string>
#include <vector>

#include "apps/common/ranks.h"
#include "io/climate.h"
#include "io/dataset.h"

namespace convoy::apps {

/// samples_below, the same on all ranks. `path` may be another one on each node, with the same files below it
/// (staging). Collective; throws what it throws.
std::vector<SampleRef> list_samples(const std::string& path, const ReadOptions& options, Ranks& ranks);
/// climate_files and images_of, the same on all ranks: collective, as list_samples is.
ImageListing image_listing(Ranks& ranks);

}  // namespace convoy::apps
