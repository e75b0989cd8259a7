// What --stage-dir and --stage-share ask for: training reads copies on the nodes' own storage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/ranks.h"
#include "io/loader.h"

namespace convoy::apps {

/// When staging began and ended (MlLog::now).
using StagingTime = std::pair<int64_t, int64_t>;

/// What --stage-dir asks for where all that training reads of --data-dir is wanted on every node: stages it, says so,
/// and lets the settings point to the copy. Nothing where nothing was asked for, and where stage_samples does it.
std::optional<StagingTime> stage(OptionTable& options, Ranks& ranks);

/// What became of the samples.
struct StagedSamples {
  int64_t end;                                  ///< of staging (MlLog::now)
  std::shared_ptr<const LoaderShare> training;  ///< of --stage-share: what this node's ranks train on; null: all
};
/// A key of a run's identity: whose shares they are.
constexpr const char* share_nodes = "stage-share nodes";

using Paths = std::vector<std::string*>;
template <class Ref>
Paths paths_of(std::vector<Ref>& samples) {
  Paths paths;
  for (Ref& ref : samples) paths.push_back(&ref.path);
  return paths;
}

/// What --stage-dir asks for where not every file is wanted on every node. With --n-train or --n-valid these are the
/// files of the samples that are left. With --stage-share every node keeps a share of the training files, as even in
/// samples as files allow (of equal ones every n-th), and trains on those alone; of the validation files it keeps what
/// its ranks evaluate (sample i is rank i mod size's). Paths of samples whose copies this node has become those of the
/// copies; the others stay where they are. `each`: training samples that a path stands for. Returns nothing where
/// nothing was asked for, or `stage` did it. Throws Error(usage) where nodes that share have different numbers of ranks
/// or there is no file for each.
std::optional<StagedSamples> stage_samples(const OptionTable& options, Ranks& ranks, const Paths& training,
                                           int64_t each, const Paths& validation);

}  // namespace convoy::apps
