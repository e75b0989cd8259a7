// Checkpoints: everything a bitwise resume needs, in one HDF5 file per save.
#pragma once

#include <string>
#include <vector>

#include "core/state_store.h"

namespace convoy {

/// Format 1: one data set per state named as the state ('/' never occurs), `__meta__` (the caller's JSON: cursors,
/// history, config echo), attributes `format` = convoy-checkpoint-1 and `crc32c` over names, shapes, data and meta.
struct CheckpointFile {
  std::string path;
  int64_t step = 0;
};

/// Writes `folder/checkpoint-<step>.h5` under a temporary name, syncs, renames, then deletes all but the newest `keep`.
/// A failure leaves earlier checkpoints alone and throws Error(runtime).
std::string save_checkpoint(const std::string& folder, int64_t step, const StateStore& store, const std::string& meta,
                            int keep);
/// Checkpoints of a folder, newest first.
std::vector<CheckpointFile> list_checkpoints(const std::string& folder);
/// Fills all states of `store` and returns the meta text. Throws Error(data) when the file is damaged (CRC) or lacks a
/// state of the store; the store is unchanged then.
std::string load_checkpoint(const std::string& path, const StateStore& store);
/// The meta text alone, after checking the CRC.
std::string read_checkpoint_meta(const std::string& path);

}  // namespace convoy
