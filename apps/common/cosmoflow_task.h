// CosmoFlow as a task: regression of labels, measured by the mean absolute error.
#pragma once

#include "apps/common/cosmoflow_setup.h"
#include "apps/common/task.h"
#include "layers/schedule.h"

namespace convoy::apps {

class CosmoflowTask final : public Task {
 public:
  struct Settings {
    CosmoflowReading reading;
    LoaderOptions loader;
    Loss loss = Loss::mse;                 ///< that training minimises, and validation reports in its units
    double l2 = 0;                         ///< with this penalty, as training's
    std::vector<std::string> penalised;    ///< on these weights
    double target_mae = -1;                ///< negative: none
    int64_t dummy_samples = 0;             ///< > 0: no files are read
    LrSchedule schedule;                   ///< for the log
    double dropout = 0, weight_decay = 0;  ///< for the log; decoupled, or the L2 penalty
    int64_t batch = 1;
  };
  CosmoflowTask(std::vector<SampleRef> train, std::vector<SampleRef> validation, Settings settings)
      : train_(std::move(train)), validation_(std::move(validation)), s_(std::move(settings)) {}

  int64_t training_samples() const override {
    return s_.dummy_samples > 0 ? s_.dummy_samples : static_cast<int64_t>(train_.size());
  }
  int64_t validation_samples() const override { return static_cast<int64_t>(validation_.size()); }
  std::shared_ptr<const SampleSource> training() const override;
  Quality validate(Program& program, Communicator* ranks, const StopPoint& stop) override;
  std::optional<double> target() const override {
    return s_.target_mae >= 0 ? std::optional(s_.target_mae) : std::nullopt;
  }
  bool reached(const Quality& q) const override { return target() && q.metric <= *target(); }
  std::string metric() const override { return "MAE"; }
  /// Uniform random inputs in [0, 1), or counts of the same mean: what the reference's dummy data set does.
  void fill_dummy(const Tensor& x, const Tensor& target, uint64_t seed) const override;
  void log_start(MlLog& log, int64_t samples_per_pass, int64_t samples_per_step) const override;
  void log_quality(MlLog& log, const Quality& quality, const MlLog::Json& metadata) const override;

  const Predictions& last_validation() const { return result_; }

 private:
  double penalty(Program& program) const;
  std::vector<SampleRef> train_, validation_;
  Settings s_;
  Predictions result_;
};

}  // namespace convoy::apps
