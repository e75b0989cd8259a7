// Copies a data set from a shared file system to storage of the nodes, reading every file once in all.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/ranks.h"
#include "io/loader.h"

namespace convoy::apps {

struct StagingReport {
  int64_t files = 0, reused = 0;              ///< of the data set; found valid on every node that wants them
  int64_t fewest = 0, most = 0;               ///< that a node wants
  int64_t bytes_read = 0, bytes_written = 0;  ///< over all ranks
  double seconds = 0;
  std::string text() const;
};

/// A file below the data folder, and the nodes that want it: all where none is named.
struct WantedFile {
  std::string name;
  std::vector<int> nodes{};
};

/// Every rank calls it, with the same files (none: all of the folder, which rank 0 lists). A file is read by one rank
/// (of a node that wants it; of those that all want, by the ranks in turn), travels to one rank of every node that
/// wants and lacks it, and is written there under a temporary name, renamed, read back and compared by CRC. The folder
/// remembers size, time of change and CRC in .convoy-stage.json; what still agrees with it is not copied again, and
/// what it has beside the files that its node wants is removed. Throws Error(data) for an unreadable file, Error(usage)
/// where files would change that another run reads, Error(runtime) where a node has too little space (before anything
/// is written) or a copy differs.
StagingReport stage_data(const std::string& data_dir, const std::string& stage_dir, Ranks& ranks,
                         const std::vector<WantedFile>& files = {});

/// When staging began and ended (MlLog::now).
using StagingTime = std::pair<int64_t, int64_t>;

/// What --stage-dir asks for without --stage-share: stages --data-dir, says so, and lets the settings point to the
/// copy. Nothing where nothing was asked for.
std::optional<StagingTime> stage(OptionTable& options, Ranks& ranks);

/// What --stage-share asks for: every node keeps a share of the training files, n nodes every n-th one (or what makes
/// their samples even), and trains on those alone; of the validation files it keeps what its ranks evaluate (sample i
/// is rank i mod size's). Paths of samples whose copies this node has become those of the copies; the others stay where
/// they are. Returns nothing where nothing was asked for. Throws Error(usage) where nodes have different numbers of
/// ranks or there is no file for each.
struct StagedShare {
  int64_t end;                                  ///< of staging (MlLog::now)
  std::shared_ptr<const LoaderShare> training;  ///< what this node's ranks train on
};
/// A key of a run's identity: whose shares they are.
constexpr const char* share_nodes = "stage-share nodes";
using Paths = std::vector<std::string*>;
/// `each`: training samples that a path stands for.
std::optional<StagedShare> stage_share(const OptionTable& options, Ranks& ranks, const Paths& training, int64_t each,
                                       const Paths& validation);
template <class Ref>
Paths paths_of(std::vector<Ref>& samples) {
  Paths paths;
  for (Ref& ref : samples) paths.push_back(&ref.path);
  return paths;
}

}  // namespace convoy::apps
