// Which checkpoint a run goes on from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace convoy::apps {

/// The newest checkpoint of a folder that is intact, read into memory; damaged newer ones are named on standard error,
/// and in `skipped`.
/// Null where the folder has none at all. Throws Error(data) for one that cannot be opened or read (permission, I/O,
/// locked by another process), which is no sign of damage: to go on from an older one would undo what it holds; and,
/// naming each file and its reason, where none is intact.
std::shared_ptr<const Checkpoint> newest_checkpoint(const std::string& folder,
                                                    std::vector<std::string>* skipped = nullptr);
/// The checkpoint that a path names: a file, or the newest intact one of a folder. Throws Error(data) where there is
/// none, or a damaged one.
std::shared_ptr<const Checkpoint> named_checkpoint(const std::string& path);
/// Calls damaged checkpoints `NAME.damaged`, so that they neither count among those that are kept nor are read again.
/// One that cannot be renamed stays, with a warning.
void set_aside(const std::vector<std::string>& damaged);
/// Removes what saves that were killed have left in a folder.
void remove_unfinished(const std::string& folder);

}  // namespace convoy::apps
