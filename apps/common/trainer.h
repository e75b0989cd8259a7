// The training loop: epochs, steps, validation, checkpoints, logs. One in the tree; a task brings data and measure.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/common/checkpoints.h"
#include "apps/common/communication_record.h"
#include "apps/common/early_stop.h"
#include "apps/common/mllog.h"
#include "apps/common/profile.h"
#include "apps/common/ranks.h"
#include "apps/common/run_tables.h"
#include "apps/common/task.h"

namespace convoy::apps {

struct TrainerOptions {
  std::string output_dir;
  int64_t epochs = 1, max_steps = 0;
  uint64_t seed = 0;
  bool resume = false;                             ///< with the logs of output_dir
  bool continues = false;                          ///< rank 0 may have a checkpoint
  std::shared_ptr<const Checkpoint> checkpoint{};  ///< to go on from, on rank 0
  int64_t checkpoint_steps = 0;                    ///< also save every so many steps
  int64_t checkpoint_epochs = 1;  ///< save behind every Nth epoch and the last one; 0: behind that alone
  int keep_checkpoints = 2;
  int64_t early_stopping = 0;
  bool trace = false;
  int64_t log_steps = 0;                               ///< also log rate and loss every so many steps
  std::optional<std::pair<int64_t, int64_t>> staging;  ///< when data was copied to the nodes (MlLog::now)
  LoaderOptions loader;
  /// Learning rate of a step, from the epoch and the number of steps before it.
  std::function<double(int64_t epoch, int64_t step)> rate;
  nlohmann::json config;                            ///< echo of every setting
  nlohmann::json given = nlohmann::json::object();  ///< texts of those that were given (RunFolder)
  nlohmann::json identity;                          ///< what must be equal for a resume
  /// Of parts of the identity that are no settings, the settings that they come from, for messages.
  std::map<std::string, std::string> decided_by;
  /// Whether the text that a checkpoint has for a setting means what this run's means. Null: the checkpoint was written
  /// before there was the setting, and means its default.
  std::function<bool(const std::string& setting, const std::string* saved)> agrees;
  /// Puts right what earlier versions wrote beside the states of a checkpoint; null: nothing.
  std::function<void(nlohmann::json& meta)> correct;
  std::string data_digest;     ///< of the samples' names, which rank 0 gives, and sizes: ranks must see the same
  nlohmann::json fingerprint;  ///< of the samples' files, for resumed runs
  /// Of the identity, what may differ when a run goes on at another number of ranks.
  std::vector<std::string> per_rank;
  std::vector<std::string> count_steps;  ///< settings whose numbers are of steps, for a message there
};

enum class Outcome : uint8_t { finished, target_reached, stopped_early, interrupted };

class Trainer {
 public:
  Trainer(Program& program, Task& task, Ranks& ranks, TrainerOptions options);
  ~Trainer() { ranks_.set_window({}); }
  /// Throws Error(diverged) naming the first node whose output is not finite, or the step whose lagged gradients are
  /// not; the parameters keep their last finite values and earlier checkpoints stay.
  Outcome run();

  const std::vector<EpochRecord>& history() const { return history_; }
  /// Writes trace.json, where one was asked for. Every rank calls it.
  void write_trace();
  /// Samples per second, medians, waits, phases: everything of summary.json that the loop measured.
  nlohmann::json summary() const;

 private:
  int64_t batch() const { return program_.options().batch; }
  int64_t passes() const { return program_.options().training.accumulation; }
  /// Samples of one pass, of one step, on all ranks.
  int64_t global_batch() const { return batch() * ranks_.size(); }
  int64_t samples_per_step() const { return global_batch() * passes(); }
  int64_t steps_per_epoch() const { return task_.training_samples() / samples_per_step(); }
  /// Steps of this number of ranks that lie behind: what schedules count.
  int64_t position() const { return epoch_ * steps_per_epoch() + step_in_epoch_; }
  /// Running statistics become the means over all ranks, so that all evaluate, and rank 0 saves, the same network.
  void share_statistics();
  void resume();
  /// Throws where settings (usage) or samples (data) are not those that a checkpoint was trained with.
  void expect_same_run(const nlohmann::json& meta, const std::string& path) const;
  /// Loads the cursors of a checkpoint; says so where the number of ranks changes.
  void take(const nlohmann::json& meta);
  /// This rank's samples of so many passes.
  LoaderOptions own_share(int64_t passes) const;
  /// Waits for gradients that travel towards the next step.
  void settle();
  /// Settings and sizes, into the MLPerf log.
  void log_start();
  /// Behind the start of the log up to its end.
  Outcome run_epochs();
  /// What a log that lost a line says of it; empty where none has.
  std::string lost_log() const;
  /// Whether this rank asks all to save and stop: at a signal, or where it cannot log its steps any longer.
  bool wants_stop() const;
  /// For what takes long between steps: ends it on all ranks where one wants to stop.
  StopPoint stop_point() const;
  /// Throws Error(runtime) where a line of metrics.jsonl, mlperf.log or history.csv could not be written: behind a
  /// checkpoint, since a line is worth less than the steps.
  void expect_logs() const;
  /// A digest of the kernels that run the nodes of a step.
  std::string kernels() const;
  /// Other kernels round otherwise: a run goes on with them (nodes differ), but says so.
  void warn_of_other_kernels(const nlohmann::json& meta, const std::string& path) const;
  /// What is left of an epoch, its validation and checkpoints; why training ends behind it, if it does.
  std::optional<Outcome> one_epoch();
  void train_epoch();
  void one_step(Loader* loader);
  /// The next samples of the loader, or dummy data, into the inputs of a pass.
  void fill_inputs(Executor& executor, Loader* loader);
  /// Tells the other ranks of a request to stop with these inputs.
  void stage(Executor& executor);
  /// Fills the inputs of one pass and runs it; a device works while the next ones are filled.
  void one_pass(Executor& executor, Loader* loader, int64_t pass, double rate);
  /// Whether the inputs of the next step may be filled while this one runs: nobody asks for this one's labels then.
  bool fills_ahead() const;
  /// Throws Error(diverged) where the step's loss, or the gradients that it was to apply, are not finite.
  void check_finite(float loss);
  /// Whether gradients that wait for the next step are finite.
  bool lagged_finite() const;
  /// Runs the step again, on this rank alone, to find where it stops being finite.
  std::string first_not_finite();
  /// Fills the step's inputs again from the current position of the stream.
  void refill_inputs();
  /// The stop rules, fed one complete epoch after the other; nothing while training should go on.
  std::optional<Outcome> stop_rule(const EpochRecord& record);
  /// Whether a validation behind (a part of) an epoch has what the user asked for, which the log then says.
  bool reaches_target(const Quality& quality, int64_t epoch);
  /// Where the run stands, as the MLPerf log says it.
  MlLog::Json position(int64_t epoch) const { return {{"epoch_num", epoch + 1}, {"step_num", step_}}; }
  /// Rate, loss and the task's own figures of training, into the MLPerf log.
  void log_training(double rate, double loss);
  void validate(double epoch_seconds, int64_t epoch_steps);
  /// Writes a checkpoint and deletes all but the newest `keep`. Every rank calls it, and none returns before it is
  /// there.
  void save(int keep);
  /// The same behind another error, which is the one to end with.
  void save_or_warn();
  /// Renames the checkpoint that was saved last, where there is an older one, so that a resume goes on from that.
  void set_newest_aside(std::string_view why);
  std::string meta() const;
  /// Puts what was done since `start` into the trace.
  void note(const char* what, std::chrono::steady_clock::time_point start);
  bool step_limit_reached() const { return o_.max_steps > 0 && step_ >= o_.max_steps; }

  Program& program_;
  Task& task_;
  Ranks& ranks_;
  std::shared_ptr<const SampleSource> source_;  ///< null: dummy data
  TrainerOptions o_;
  MlLog mllog_;
  std::vector<int64_t> lagged_;  ///< ids of all-reduces that end in the next step
  RunTables tables_;
  int64_t epoch_ = 0, step_in_epoch_ = 0, step_ = 0, first_step_ = 0;
  double epoch_loss_ = 0;
  std::vector<EpochRecord> history_;
  bool validated_ = false;
  std::vector<double> step_seconds_;
  double dummy_seconds_ = 0, wait_seconds_ = 0, train_seconds_ = 0, validation_seconds_ = 0, checkpoint_seconds_ = 0;
  bool stop_requested_ = false;
  bool inputs_ahead_ = false;           ///< the next step's are filled and staged
  std::vector<HostEvent> host_events_;  ///< while tracing
  CommunicationRecord communication_;
  /// Checkpoint that was saved last or loaded, if no epoch with steps of its own has ended since.
  std::string newest_;
  int64_t saved_step_ = -1;  ///< that the newest checkpoint holds
  bool unsaved_ = false;     ///< an epoch has ended since
  EarlyStop early_stop_;
};

/// What tells the samples of a run from others, of their files in order: data_digest and, on rank 0, fingerprint.
/// Collective; throws what fingerprint() throws.
void tell_samples(TrainerOptions& options, const std::vector<std::string>& paths, Ranks& ranks);

/// Throws Error(usage) where a step takes more samples than there are.
void expect_whole_step(int64_t samples_per_step, int64_t samples);

}  // namespace convoy::apps
