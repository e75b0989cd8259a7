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

/// What --stage-dir asks for without --stage-share: stages --data-dir, says so, and lets the settings point to the
/// copy. Nothing where nothing was asked for.
std::optional<StagingTime> stage(OptionTable& options, Ranks& ranks);

/// A node's share of the samples.
struct StagedShare {
  int64_t end;                                  ///< of staging (MlLog::now)
  std::shared_ptr<const LoaderShare> training;  ///< what this node's ranks train on
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

/// What --stage-share asks for: every node keeps a share of the training files, as even in samples as files allow (of
/// equal ones every n-th), and trains on those alone; of the validation files it keeps what its ranks evaluate (sample
/// i is rank i mod size's). Paths of samples whose copies this node has become those of the copies; the others stay
/// where they are. `each`: training samples that a path stands for. Returns nothing where nothing was asked for. Throws
/// Error(usage) where nodes have different numbers of ranks or there is no file for each.
std::optional<StagedShare> stage_share(const OptionTable& options, Ranks& ranks, const Paths& training, int64_t each,
                                       const Paths& validation);

}  // namespace convoy::apps
