// From settings to a CosmoFlow program: what the trainer and the predictor share.
#pragma once

#include "apps/common/interruption.h"
#include "apps/common/run_settings.h"
#include "io/cosmoflow_source.h"
#include "layers/schedule.h"
#include "models/program.h"

namespace convoy::apps {

std::vector<Option> model_options();     ///< network, data shape and run-time settings
std::vector<Option> training_options();  ///< everything else the trainer knows
/// Keys of the reference's YAML files that are read but only at these values.
std::vector<OptionTable::Refusal> yaml_refusals();

/// Settings that were left open become what the network's paper or benchmark has.
void fill_cosmoflow_defaults(OptionTable& options);
/// Puts right what checkpoints of earlier versions say: these trained sc18 on l1 where no loss was given, and wrote mse
/// beside its states; and they left the L2 penalty out of validation's losses, which are forgotten then, since those of
/// later epochs cannot be compared with them.
void correct_losses(nlohmann::json& checkpoint_meta);
/// In the identity of a run with an L2 penalty, since validation's losses hold it.
inline constexpr const char* penalty_in_validation = "validation_penalty";
CosmoflowConfig model_config(const OptionTable& options);
/// Throws Error(usage) for the first setting that would have no effect beside the others.
void refuse_idle_flags(const OptionTable& options);
LrSchedule schedule_config(const OptionTable& options);
/// What the closed division of MLPerf HPC fixes (training_policies, hpc_training_rules.adoc, v3.0).
std::vector<ClosedRule> closed_rules(const OptionTable& options, const CosmoflowOptions& program);

/// The element type, extent and channels of a data set, checked against the settings; names the first file on mismatch.
SampleShape data_shape(const OptionTable& options, const std::vector<SampleRef>& samples, const ReadOptions& read);
/// The same on every rank; rank 0 alone reads the first sample. Collective.
SampleShape data_shape(const OptionTable& options, const std::vector<SampleRef>& samples, const ReadOptions& read,
                       Ranks& ranks);
ReadOptions read_options(const OptionTable& options);
CosmoflowOptions program_options(const OptionTable& options, const SampleShape& shape);
CosmoflowReading reading_options(const OptionTable& options, const SampleShape& shape);

/// Predictions of all samples in order, one row of `targets` values each, and the true values.
struct Predictions {
  int64_t targets = 0;
  std::vector<float> predicted, truth;
  int64_t count() const { return targets ? static_cast<int64_t>(predicted.size()) / targets : 0; }
  double mae() const;
  double mse() const;
  double mae(int64_t target) const;
  /// Standard error of mae(target).
  double mae_error(int64_t target) const;
};
/// Runs the evaluation tape over `samples`, one sample at a time, in order: the same bits for the same weights, always.
/// Throws what `stop` throws.
Predictions predict(Program& program, const std::vector<SampleRef>& samples, const CosmoflowReading& reading,
                    const LoaderOptions& loader, Communicator* ranks = nullptr, const StopPoint& stop = {});

/// Names of the parameters a data set of `targets` labels predicts.
std::vector<std::string> target_names(int64_t targets);

}  // namespace convoy::apps
