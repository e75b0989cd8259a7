// What a predicting program takes of a training run: weights, or a checkpoint with its settings; and its samples.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/common/options.h"
#include "apps/common/run_folder.h"
#include "io/checkpoint.h"
#include "models/program.h"

namespace convoy::apps {

/// Names of what weights are made of: parameters and running statistics.
std::vector<std::string> weight_names(const Program& program);
/// Which arrays a file must hold: a training run may start its running statistics anew.
enum class Needed : uint8_t { parameters, all };
/// Reads "<parameter>" and running statistics; throws Error(data) for missing or surplus names.
void load_weights(const std::string& path, Program& program, Needed needed);
/// With those of a run's settings (its identity) that say what network the weights are of, beyond their shapes.
void save_weights(const std::string& path, Program& program, const nlohmann::json& identity = nlohmann::json::object());

/// --weights or --checkpoint of a predicting program, and --split of --data-dir.
std::vector<Option> prediction_options();
/// Files that such a program reads beside its samples: weights, checkpoints, the table of --tuned.
std::vector<std::string> files_of_settings(const OptionTable& options);

/// What --weights or --checkpoint names, read once for all programs of a network.
class TrainedState {
 public:
  /// Throws Error(usage) unless exactly one of them is given.
  explicit TrainedState(const OptionTable& options);
  /// All settings that identify the checkpoint's run; of weights those of their network, if the file tells.
  const nlohmann::json& identity() const { return identity_; }
  /// Fills parameters and running statistics. What was trained with another text for one of `settings` is refused with
  /// Error(usage), unless `same` says that the table with those texts means the same network.
  void restore(const OptionTable& options, Program& program, const std::vector<std::string>& settings,
               const std::function<bool(const OptionTable& trained)>& same = nullptr);

 private:
  using SameNetwork = std::function<bool(const OptionTable&)>;
  void expect_settings(const OptionTable& options, const std::vector<std::string>& settings,
                       const SameNetwork& same) const;
  std::string weights_path_;                      ///< of safetensors weights; empty: a checkpoint
  std::shared_ptr<const Checkpoint> checkpoint_;  ///< until its weights are taken: it holds moments, too
  nlohmann::json identity_ = nlohmann::json::object();
  std::unique_ptr<StateStore> weights_;
};

/// The folder (or the one file) below --data-dir that --split chooses.
std::filesystem::path split_folder(const OptionTable& options);

}  // namespace convoy::apps
