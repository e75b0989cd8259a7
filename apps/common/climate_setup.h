// From settings to a climate program: what the trainer and the predictor share.
#pragma once

#include <utility>

#include "apps/common/interruption.h"
#include "apps/common/iou.h"
#include "apps/common/run_settings.h"
#include "io/climate_source.h"
#include "layers/schedule.h"

namespace convoy::apps {

std::vector<Option> climate_model_options();     ///< network, data and run-time settings
std::vector<Option> climate_training_options();  ///< everything else the trainer knows

/// Settings that were left open become what the model's published code has; a learning-rate schedule in the reference's
/// one-word form becomes single settings.
void fill_climate_defaults(OptionTable& options);
/// Channels of the files that the network sees; empty: all. Throws Error(usage) for others than the sixteen.
std::vector<int64_t> chosen_channels(const OptionTable& options);
/// A key of a run's identity which says that DeepLab's units without batch norm begin with a factor alone. Earlier
/// versions had a ReLU behind it: their weights have the same shapes and mean another network.
inline constexpr const char* units_begin = "units-begin";
inline bool units_begin_with_factor(const ClimateConfig& c) {
  return c.model == ClimateModel::deeplab && !c.batch_norm;
}
/// The setting "384x576" as 384 and 576; throws Error(usage) for anything else.
std::pair<int64_t, int64_t> height_and_width(const OptionTable& options, const std::string& flag);
ClimateConfig climate_config(const OptionTable& options);
PixelLossAttrs pixel_loss_config(const OptionTable& options);
StepSchedule step_schedule(const OptionTable& options, int64_t total_steps, int64_t samples_per_step);
/// Throws Error(usage) for the first setting that would have no effect beside the others.
void refuse_idle_flags(const OptionTable& options, bool dummy);
/// The same for what only matters where images validate.
void refuse_idle_validation(const OptionTable& options, bool validates);
/// "type=multistep,milestones=8192 16384,decay_rate=0.1" of --lr-schedule, as MLPerf HPC's reference takes it, becomes
/// single flags.
void spread_schedule(OptionTable& options);
/// By what images are normalised, as something to compare: other statistics feed the network other numbers.
std::string statistics_digest(const ClimateStats& stats);
/// Statistics from --stats, or stats.h5 beside or above the data.
ClimateStats climate_stats(const OptionTable& options, const std::vector<ClimateRef>& images);
/// Whole images, or crops of --crop where `training`.
ClimateReading climate_reading(const OptionTable& options, const ClimateStats& stats, bool training);
/// Sizes from the sources' images; throws Error(data) naming a file where the network does not divide them.
ClimateOptions climate_program(const OptionTable& options, const ClimateSource& train, const ClimateSource* evaluation);

/// Warns where evaluations would divide by the running variance of a single value: 0.
void warn_of_single_values(const OptionTable& options, const Tape& step);

/// Loss and IoU over whole images.
struct ClimateEvaluation {
  double loss = 0;  ///< mean over the images of the score; NaN without one
  SegmentationScore score;
};
/// Calls `each(sample, predicted)` behind every image. With `ranks` every rank evaluates its share
/// (LoaderOptions::rank) and all get the result over all images. Throws what `stop` throws.
ClimateEvaluation evaluate_climate(
    Program& program, const std::shared_ptr<const ClimateSource>& source, const LoaderOptions& loader,
    Communicator* ranks = nullptr,
    const std::function<void(int64_t sample, std::span<const uint8_t> predicted)>& each = {},
    const StopPoint& stop = {});

/// Both readings of IoU in one line.
std::string iou_text(const SegmentationScore& score);
/// Vapour with predicted (left) and true classes (right), to `path`.
void write_comparison(const std::string& path, const ClimateRef& image, std::span<const uint8_t> predicted,
                      const ClimateReading& reading);

}  // namespace convoy::apps
