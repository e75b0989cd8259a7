// Finding out what a data set holds on many ranks: one looks through its folders, each opens its share of the files.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/common/ranks.h"
#include "io/climate.h"
#include "io/dataset.h"

namespace convoy::apps {

/// An array of find(i) for all i below `count`, which ranks find in turn: looking at one file after the other takes
/// long on parallel file systems. Collective.
nlohmann::json find_in_turn(size_t count, Ranks& ranks, const std::function<nlohmann::json(size_t)>& find);

/// samples_below, the same on all ranks. `path` may be another one on each node, with the same files below it
/// (staging). Collective; throws what it throws.
std::vector<SampleRef> list_samples(const std::string& path, const ReadOptions& options, int64_t most, Ranks& ranks);
/// climate_files and images_of, the same on all ranks: collective, as list_samples is.
ImageListing image_listing(Ranks& ranks);
/// files_digest of what the first rank of this node sees; the node's others, which look at the same folders, get that
/// of rank 0, with which the first ones are compared. Collective.
std::string files_digest(const std::vector<std::string>& paths, Ranks& ranks);

}  // namespace convoy::apps
