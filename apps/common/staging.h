// Copies a data set from a shared file system to storage of the nodes, reading every file once in all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/ranks.h"

namespace convoy::apps {

struct StagingReport {
  int64_t files = 0, reused = 0;              ///< of the data set; found valid on every node that wants them
  int64_t fewest = 0, most = 0;               ///< that a node wants
  int64_t bytes_read = 0, bytes_written = 0;  ///< over all ranks
  double seconds = 0;
  std::string text() const;
};

/// A file below the data folder.
struct WantedFile {
  std::string name;
  std::vector<int> nodes{};  ///< that want it; none: all
};

/// The ranks of every node, in rank order.
std::vector<std::vector<int>> ranks_of_nodes(Ranks& ranks);

/// Every rank calls it, with the same files (none: those of sample_folders, and stats.h5 beside them, which rank 0
/// lists, for all nodes). A file is read by one rank (of a node that wants it; of those that all want, by the ranks in
/// turn), travels to one rank of every node that wants and lacks it, and is written there under a temporary name,
/// renamed, read back and compared by CRC. The folder remembers size, time of change and CRC in .convoy-stage.json;
/// what still agrees with it is not copied again, and what it has beside the files that its node wants is removed.
/// Throws Error(data) for an unreadable file, Error(usage) where files would change that another run reads,
/// Error(runtime) where a node has too little space (before anything is written) or a copy differs.
StagingReport stage_data(const std::string& data_dir, const std::string& stage_dir, Ranks& ranks,
                         const std::vector<WantedFile>& files = {});

}  // namespace convoy::apps
