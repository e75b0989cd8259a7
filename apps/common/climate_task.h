// Climate segmentation as a task: classes per pixel, measured by intersection over union.
#pragma once

#include "apps/common/climate_setup.h"
#include "apps/common/task.h"

namespace convoy::apps {

/// Which IoU a run is judged by.
enum class Measure : uint8_t { mlperf, pooled, cyclone, river };

class ClimateTask final : public Task {
 public:
  struct Settings {
    std::shared_ptr<const ClimateSource> train;          ///< null: dummy data
    std::shared_ptr<const ClimateSource> validation;     ///< null: none
    std::shared_ptr<const ClimateSource> recalibration;  ///< whole images that running statistics are taken from
    int64_t recalibration_images = 0;                    ///< so many ahead of every validation; 0: training's stay
    int64_t dummy_samples = 0;
    LoaderOptions loader;
    Measure measure = Measure::mlperf;
    double target = -1;  ///< negative: none
    int64_t pictures = 0;
    std::string output_dir;
    TrainingOptions training;  ///< for the log, as the following
    StepSchedule schedule;
  };
  explicit ClimateTask(Settings settings) : s_(std::move(settings)) {}

  int64_t training_samples() const override { return s_.train ? s_.train->size() : s_.dummy_samples; }
  int64_t validation_samples() const override { return s_.validation ? s_.validation->size() : 0; }
  std::shared_ptr<const SampleSource> training() const override { return s_.train; }
  Quality validate(Program& program, Communicator* ranks, const StopPoint& stop) override;
  bool renews_statistics() const override { return s_.recalibration_images > 0; }
  std::optional<double> target() const override { return s_.target >= 0 ? std::optional(s_.target) : std::nullopt; }
  bool reached(const Quality& q) const override { return target() && q.metric >= *target(); }
  std::string metric() const override { return "IoU"; }
  void fill_dummy(const Tensor& x, const Tensor& target, uint64_t seed) const override;
  void log_start(MlLog& log, int64_t samples_per_pass, int64_t samples_per_step) const override;
  void log_training(MlLog& log, Executor& step, Communicator* ranks, const MlLog::Json& metadata) const override;
  void log_quality(MlLog& log, const Quality& quality, const MlLog::Json& metadata) const override;

  /// Empty before the first validation.
  const std::optional<ClimateEvaluation>& last_validation() const { return result_; }

 private:
  Settings s_;
  std::optional<ClimateEvaluation> result_;
};

}  // namespace convoy::apps
