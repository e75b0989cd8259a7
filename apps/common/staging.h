// Copies a data set from a shared file system to storage of the nodes, reading every file once in all.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "apps/common/ranks.h"

namespace convoy::apps {

struct StagingReport {
  int64_t files = 0, reused = 0;              ///< of the data set; found valid on every node
  int64_t bytes_read = 0, bytes_written = 0;  ///< over all ranks
  double seconds = 0;
  std::string text() const;
};

/// Every rank calls it. File i is read by rank i mod size, travels to one rank of every node that lacks it, and is
/// written there under a temporary name, renamed, read back and compared by CRC. The folder remembers size, time of
/// change and CRC in .convoy-stage.json; what still agrees with it is not copied again. Throws Error(data) for an
/// unreadable file, Error(usage) where files would change that another run reads, Error(runtime) where a node has too
/// little space (before anything is written) or a copy differs.
StagingReport stage_data(const std::string& data_dir, const std::string& stage_dir, Ranks& ranks);

/// What --stage-dir asks for: stages --data-dir, says so, and lets the settings point to the copy. Returns when that
/// began and ended (MlLog::now); nothing where nothing was asked for.
std::optional<std::pair<int64_t, int64_t>> stage(OptionTable& options, Ranks& ranks);

}  // namespace convoy::apps
