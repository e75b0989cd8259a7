// The folder of a training run before the run begins: who may write there, and what the run goes on from.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/common/checkpoints.h"
#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/run_lock.h"

namespace convoy::apps {

class RunFolder {
 public:
  /// Every rank calls it, ahead of everything that settings decide. Unless the run only looks (--summary, --dry-run),
  /// rank 0 locks --output-dir until this is destroyed and tries whether --save can be written. Throws Error(usage)
  /// where the folder holds checkpoints and --resume is not given. With --resume rank 0 reads the newest checkpoint,
  /// where there is none with --checkpoint that one, and settings that the run which wrote it was given, and this one
  /// is not, take their values from it; they are printed.
  RunFolder(OptionTable& options, Ranks& ranks);
  /// What the run goes on from, on rank 0; null where it starts from the beginning. The caller may drop it.
  std::shared_ptr<const Checkpoint> take_checkpoint() { return std::move(checkpoint_); }
  /// Texts of the settings that this run was given, for the next one to take.
  const nlohmann::json& given() const { return given_; }

 private:
  std::optional<RunLock> lock_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  nlohmann::json given_ = nlohmann::json::object();
};

}  // namespace convoy::apps
