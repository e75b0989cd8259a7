// What programs print of their plans, and a training run from plans to reports.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/run_settings.h"
#include "apps/common/trainer.h"
#include "models/program.h"

namespace convoy::apps {

/// A warning that names the nodes whose work falls to plain loops, unless somebody asked for them; nothing where there
/// are none.
void warn_of_plain_kernels(const std::vector<const Plan*>& plans);
/// A warning for every pattern of --kernel whose kernel runs none of the nodes of `plans` that it matches.
void warn_of_idle_overrides(const Selection& selection, const std::vector<const Plan*>& plans);
/// Says which plugins are loaded (kernels/plugin_list.h, whose errors it throws); nothing where none is.
void report_plugins();
void print_header(const OptionTable& options);
void print_summary(const ProgramPlans& plans, const NetworkCounts& counts, bool explained);
/// Prints how much of a run the table of --tuned decides; without the flag: nothing. `plans`: what the run executes.
/// Throws Error(usage) where the table decides no node of them, or names kernels that this build lacks.
void report_tuned(const OptionTable& options, const TunedTable& table, const std::vector<const Plan*>& plans);

/// A training run.
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

}  // namespace convoy::apps
