// What all training and prediction programs share: settings of kernels, reading and the loop, their report.
#pragma once

#include <filesystem>
#include <map>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/common/options.h"
#include "apps/common/run_folder.h"
#include "apps/common/trainer.h"
#include "core/device.h"
#include "core/error.h"
#include "io/loader.h"
#include "models/program.h"

namespace convoy::apps {

std::vector<Option> run_options();  ///< compute type, kernels, threads, prefetching
/// The training loop, its files and reports; `unit` is what the validation split keeps together.
std::vector<Option> loop_options(const std::string& output_dir, const std::string& unit);
inline void append(std::vector<Option>& list, const std::vector<Option>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

/// What a setting's text stands for; throws Error(usage) listing the choices.
template <class T>
T choose(const OptionTable& o, const std::string& flag, const std::vector<std::pair<std::string, T>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == o.text(flag)) return value;
    names += (names.empty() ? "" : ", ") + name;
  }
  fail_usage(o.name(flag) + ": expected one of " + names + "; found " + o.text(flag));
}

/// Whether the program only shows what it would do: --summary, --explain, --dry-run.
bool only_looks(const OptionTable& options);
/// A number of [0, 1); throws Error(usage) for any other.
double dropout_rate(const OptionTable& options);

/// Keeps the first --n-train (or --n-valid) samples; 0 keeps all.
template <class Ref>
void limit(std::vector<Ref>& samples, const OptionTable& o, const char* flag) {
  const int64_t wanted = o.integer(flag), found = static_cast<int64_t>(samples.size());
  if (wanted > found)
    fail_data(o.name(flag) + ": asked for " + std::to_string(wanted) + " samples, found " + std::to_string(found) +
              " (0 takes all)");
  if (wanted > 0) samples.resize(static_cast<size_t>(wanted));
}

/// What --device names, opened once; null for the CPU. Without a number it is that of this process's place on its node
/// (place_on_devices, else 0), in turns where there are fewer devices.
std::shared_ptr<Device> run_device(const OptionTable& options);
void place_on_devices(int place);
/// A program on that device, or on the CPU, where `shared` is the team's memory.
std::unique_ptr<Program> make_program(const OptionTable& options, ProgramPlans plans, const ProgramOptions& program,
                                      uint64_t seed, const std::shared_ptr<Buffer>& shared = nullptr);
/// Compute type, passes and plan; opens the device that the plan is for.
void apply_run_options(const OptionTable& options, ProgramOptions& program);
/// Says where validation samples come from in a --data-dir without a folder for them. Throws what sample_folders
/// throws, Error(usage) where --valid-share has no effect, and where what a run writes would lie among the samples that
/// it reads.
void check_data_folder(const OptionTable& options);
LoaderOptions loader_options(const OptionTable& options);
/// The same for the training samples: this rank's share, in an order by --seed, or with --no-shuffle as they are.
LoaderOptions training_loader(const OptionTable& options, const Ranks& ranks);
/// TrainerOptions::agrees by a program's settings.
bool means_the_same(const OptionTable& options, const std::string& setting, const std::string* saved);
/// Everything but rate, loader, identity and data; takes the folder's checkpoint.
TrainerOptions trainer_options(const OptionTable& options, RunFolder& folder);

/// A warning that names the nodes whose work falls to plain loops, unless somebody asked for them; nothing where there
/// are none.
void warn_of_plain_kernels(const std::vector<const Plan*>& plans);
/// A warning for every pattern of --kernel whose kernel runs none of the nodes of `plans` that it matches.
void warn_of_idle_overrides(const Selection& selection, const std::vector<const Plan*>& plans);
void print_header(const OptionTable& options);
/// What the rules of MLPerf HPC's closed division fix.
struct ClosedRule {
  std::string flag;
  bool kept;
  std::string expected;
  std::string found{};  ///< empty: the flag's text
};
/// Throws Error(usage) for the first one that is not kept where --mlperf-division is closed.
void check_division(const OptionTable& options, const std::vector<ClosedRule>& rules);
void print_summary(const ProgramOptions& program, const ProgramPlans& plans, const NetworkCounts& counts,
                   bool explained);
/// Prints how much of a run the table of --tuned decides; without the flag: nothing. `plans`: what the run executes.
/// Throws Error(usage) where the table decides no node of them, or names kernels that this build lacks.
void report_tuned(const OptionTable& options, const TunedTable& table, const std::vector<const Plan*>& plans);
/// Values of the named settings, of all when none are named.
nlohmann::json settings_json(const OptionTable& options, const std::vector<std::string>& names = {});

/// Into a simulated set's folder: simulation.json with the program, its version and all settings.
void write_simulation(const std::string& folder, const std::string& program, const OptionTable& options);

/// A training run from plans to reports.
class Run {
 public:
  /// Prints what --summary, --explain and --dry-run ask for and the memory plan. `stops()` says whether that was all.
  Run(const OptionTable& options, Ranks& ranks, const ProgramOptions& program, ProgramPlans plans,
      const NetworkCounts& counts);
  bool stops() const { return only_looks(options_); }
  ~Run();
  /// Allocates, draws or reads the weights.
  Program& start();
  /// Trains, then writes the weights and summary.json (not over another's when no step was taken), ahead of all that
  /// may fail behind it.
  Outcome train(Task& task, TrainerOptions trainer);
  const Trainer& trainer() const { return *trainer_; }
  /// Prints the closing lines, adds `more` to summary.json; returns the exit code.
  int finish(Outcome outcome, const nlohmann::json& more);

 private:
  nlohmann::json summarize(Outcome outcome) const;
  void print_profile();
  std::string summary_path() const;
  void write_summary() const;
  const OptionTable& options_;
  Ranks& ranks_;
  const ProgramOptions& program_options_;
  nlohmann::json summary_;
  bool owns_summary_ = false;
  std::optional<ProgramPlans> plans_;
  nlohmann::json kernels_;
  int64_t planned_ = 0, flops_per_sample_ = 0;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Trainer> trainer_;
};

/// Which arrays a file must hold: a training run may start its running statistics anew.
enum class Needed : uint8_t { parameters, all };
/// Reads "<parameter>" and running statistics; throws Error(data) for missing or surplus names.
void load_weights(const std::string& path, Program& program, Needed needed);
void save_weights(const std::string& path, Program& program);

/// --weights or --checkpoint of a predicting program, and --split of --data-dir.
std::vector<Option> prediction_options();

/// What --weights or --checkpoint names, read once for all programs of a network.
class TrainedState {
 public:
  /// Throws Error(usage) unless exactly one of them is given.
  explicit TrainedState(const OptionTable& options);
  /// All settings that identify the checkpoint's run; none for weights.
  const nlohmann::json& identity() const { return identity_; }
  /// Fills parameters and running statistics. A checkpoint that was trained with another text for one of `settings` is
  /// refused with Error(usage), unless `same` says that the table with those texts means the same network.
  void restore(const OptionTable& options, Program& program, const std::vector<std::string>& settings,
               const std::function<bool(const OptionTable& trained)>& same = nullptr);

 private:
  using SameNetwork = std::function<bool(const OptionTable&)>;
  void expect_settings(const OptionTable& options, const std::vector<std::string>& settings,
                       const SameNetwork& same) const;
  std::string path_;                              ///< of safetensors weights; empty: a checkpoint
  std::shared_ptr<const Checkpoint> checkpoint_;  ///< until its weights are taken: it holds moments, too
  nlohmann::json identity_ = nlohmann::json::object();
  std::unique_ptr<StateStore> weights_;
};

/// The folder (or the one file) below --data-dir that --split chooses.
std::filesystem::path split_folder(const OptionTable& options);

}  // namespace convoy::apps
