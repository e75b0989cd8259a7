// Checkpoints: everything a bitwise resume needs, in one HDF5 file per save.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_store.h"

namespace convoy {

/// Format 1: one data set per state named as the state ('/' never occurs), `__meta__` (the caller's JSON: cursors,
/// history, config echo), attributes `format` = convoy-checkpoint-1 and `crc32c` over names, shapes, data and meta.
struct CheckpointFile {
  std::string path;
  int64_t step = 0;
};

/// Writes `folder/checkpoint-<step>.h5` under a temporary name, syncs, renames, then deletes all but the newest `keep`
/// up to this step. A failure leaves earlier checkpoints alone and throws Error(runtime); one that cannot be deleted
/// stays, and `undeleted` says so: a file too many is worth less than a run.
std::string save_checkpoint(const std::string& folder, int64_t step, const StateStore& store, const std::string& meta,
                            int keep, std::string* undeleted = nullptr);
/// Whether a file is called "checkpoint-*.h5".
bool named_like_checkpoint(std::string_view name);
/// Checkpoints of a folder, newest first.
std::vector<CheckpointFile> list_checkpoints(const std::string& folder);

/// One checkpoint in memory: read once, looked at, then restored from.
class Checkpoint {
 public:
  /// Reads the file; throws Error(data) when it is damaged (CRC).
  explicit Checkpoint(const std::string& path);
  const std::string& path() const { return path_; }
  /// The caller's text.
  const std::string& meta() const;
  /// Fills all states of `store`. Throws Error(data) when one is missing here or has another shape or type; the store
  /// is unchanged then.
  void restore(const StateStore& store) const;

 private:
  struct Content;
  static Content read(const std::string& path);
  std::string path_;
  std::shared_ptr<const Content> content_;
};

}  // namespace convoy
