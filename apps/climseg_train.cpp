// Trains the climate segmentation networks: settings in, images in, checkpoints, logs, pictures and a summary out.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "apps/common/climate_baseline.h"
#include "apps/common/climate_task.h"
#include "apps/common/listing.h"
#include "apps/common/optimizer_setup.h"
#include "apps/common/run.h"
#include "apps/common/say.h"
#include "apps/common/staged_data.h"
#include "apps/common/svg.h"
#include "core/philox.h"
#include "io/file.h"
#include "kernels/kernel_list.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;

struct Data {
  std::shared_ptr<const ClimateSource> train, validation, whole_train;
  std::optional<StagedSamples> staged{};
};

Data find_data(const OptionTable& o, Ranks& ranks) {
  if (o.text("data") != "cam") fail_usage("--data: expected cam or dummy, found " + o.text("data"));
  if (o.text("data-dir").empty()) fail_usage("--data-dir is required (or --data dummy)");
  ClimateSplit split =
      split_images(o.text("data-dir"), o.number("valid-share"), static_cast<uint64_t>(o.integer("seed")),
                   {o.integer("n-train"), o.integer("n-valid")}, image_listing(ranks));
  limit(split.train, o, "n-train");
  limit(split.validation, o, "n-valid");
  refuse_idle_validation(o, !split.validation.empty());
  for (const auto* list : {&split.train, &split.validation})
    for (const ClimateRef& ref : *list) expect_labels(ref, static_cast<int>(o.integer("label-set")));
  std::vector<ClimateRef> all = split.train;
  all.insert(all.end(), split.validation.begin(), split.validation.end());
  const ClimateStats stats = climate_stats(o, all);
  Data data;
  data.staged =
      stage_samples(o, ranks, paths_of(split.train), o.integer("crops-per-image"), paths_of(split.validation));
  data.train = std::make_shared<ClimateSource>(split.train, climate_reading(o, stats, true));
  data.whole_train = std::make_shared<ClimateSource>(split.train, climate_reading(o, stats, false));
  if (!split.validation.empty())
    data.validation = std::make_shared<ClimateSource>(split.validation, climate_reading(o, stats, false));
  return data;
}

/// Whole training images that running statistics are taken from, which must fit the pass that evaluates.
int64_t recalibration_images(const OptionTable& o, const Data& data) {
  const int64_t count = o.integer("batch-norm-recalibration");
  if (count == 0) return 0;
  const int64_t most = data.validation ? data.whole_train->size() : 0;  // without validation nothing would use them
  if (count < 0 || count > most)
    fail_usage(fmt::format("--batch-norm-recalibration: expected 0 to {} (training images, if any validate), found {}",
                           most, count));
  const ClimateReading &train = data.whole_train->reading(), &validation = data.validation->reading();
  if (train.height != validation.height || train.width != validation.width)
    fail_data(
        fmt::format("--batch-norm-recalibration: expected training images of {}x{} as those that validate, found "
                    "{}x{}",
                    validation.height, validation.width, train.height, train.width));
  return count;
}

/// Options of a program without data: sizes come from the settings.
ClimateOptions dummy_program(const OptionTable& o) {
  ClimateOptions p;
  p.model = climate_config(o);
  if (const auto channels = chosen_channels(o); !channels.empty())
    p.model.channels = static_cast<int64_t>(channels.size());
  const bool crops = !o.text("crop").empty();
  std::tie(p.model.height, p.model.width) = height_and_width(o, crops ? "crop" : "image-size");
  const int64_t step = o.integer("downsample");
  for (int64_t* extent : {&p.model.height, &p.model.width})
    if (!crops) *extent /= step;
  apply_run_options(o, p);
  return p;
}

Json score_json(const SegmentationScore& s) {
  Json json = {{"pooled_mean", s.pooled.mean_iou()}, {"per_sample_mean", s.mlperf()}, {"samples", s.samples}};
  const char* names[] = {"background", "cyclone", "river"};
  for (int k = 0; k < 3; ++k) {
    json["pooled"][names[k]] = s.pooled.iou(k);
    json["per_sample"][names[k]] = s.per_sample(k);
    for (int p = 0; p < 3; ++p) json["pixels"][names[k]][names[p]] = s.pooled.count(k, p);
  }
  return json;
}

void print_scores(const std::vector<std::pair<std::string, const SegmentationScore*>>& scores) {
  say("IoU over {} validation images\n  {:<22}{:>12}{:>12}{:>12}{:>12}{:>22}\n", scores[0].second->samples, "pooled",
      "background", "cyclones", "rivers", "mean", "per sample, mean");
  for (const auto& [name, s] : scores)
    say("  {:<22}{:>12.4f}{:>12.4f}{:>12.4f}{:>12.4f}{:>22.4f}\n", name, s->pooled.iou(0), s->pooled.iou(1),
        s->pooled.iou(2), s->pooled.mean_iou(), s->mlperf());
}

void write_plot(const std::string& folder, const Trainer& trainer, PixelLoss kind) {
  Plot loss{"loss",
            "epoch",
            kind == PixelLoss::focal ? "focal loss" : "weighted cross-entropy",
            {{"training", {}, {}}, {"validation", {}, {}}},
            Plot::Scale::linear,
            Plot::Scale::log};
  Plot iou{"IoU", "epoch", "measure", {{"validation", {}, {}}}, Plot::Scale::linear, Plot::Scale::linear};
  for (const EpochRecord& r : trainer.history()) {
    loss.series[0].x.push_back(double(r.epoch + 1)), loss.series[0].y.push_back(r.loss);
    if (!std::isfinite(r.validation.loss)) continue;
    loss.series[1].x.push_back(double(r.epoch + 1)), loss.series[1].y.push_back(r.validation.loss);
    iou.series[0].x.push_back(double(r.epoch + 1)), iou.series[0].y.push_back(r.validation.metric);
  }
  write_text(folder + "/loss.svg", render_svg({loss, iou}));
}

/// What decides the weights of a run, beside its data: a resume that differs is refused.
Json identity(const OptionTable& o, const Data& data, const ClimateOptions& program, const ClimateTask& task,
              const StepSchedule& schedule) {
  Json json = settings_json(o, {"model",
                                "batch-norm",
                                "output-stride",
                                "width-divisor",
                                "low-level-relu",
                                "decoder",
                                "decoder-relu",
                                "resize-corners",
                                "batch-norm-evaluation",
                                "deconv-crop",
                                "blocks",
                                "growth",
                                "filter",
                                "first-filters",
                                "label-set",
                                "downsample",
                                "downsampling-mode",
                                "channels",
                                "crop",
                                "crops-per-image",
                                "crop-balance",
                                "local-batch-size",
                                "loss-type",
                                "focal-gamma",
                                "class-weights",
                                "dropout",
                                "batch-norm-momentum",
                                "gradient-wire",
                                "start-lr",
                                "lr-scaling",
                                "base-batch-size",
                                "batchnorm-group-size",
                                "lr-schedule",
                                "lr-milestones",
                                "lr-decay-rate",
                                "lr-eta-min",
                                "lr-power",
                                "lr-warmup-steps",
                                "lr-warmup-factor",
                                "seed",
                                "shuffle",
                                "stage-share",
                                "measure",
                                "compute",
                                "kernel",
                                "winograd",
                                "gradient-sums",
                                "passes"});
  json.update(settings_json(o, optimizer_flags()));
  json["device"] = program.plan.device == DeviceKind::cuda ? "cuda" : "cpu";
  if (data.train) json["statistics"] = statistics_digest(data.train->reading().stats);
  json["train_samples"] = task.training_samples();
  if (units_begin_with_factor(program.model)) json[units_begin] = "x0.5";
  if (schedule.kind == StepSchedule::Kind::cosine || schedule.kind == StepSchedule::Kind::polynomial)
    json["schedule_steps"] = schedule.length;
  return json;
}

std::vector<std::string> data_files(const Data& data) {
  std::vector<std::string> paths;
  for (const auto& source : {data.train, data.validation})
    if (source)
      for (const ClimateRef& ref : source->images()) paths.push_back(ref.path);
  return paths;
}

/// What MLPerf HPC's closed division fixes; rates, schedules, decay and batches are free.
std::vector<ClosedRule> closed_rules(const OptionTable& o) {
  std::vector<ClosedRule> rules;
  for (const auto& [flag, value] : {std::pair{"model", "deepcam"},
                                    {"output-stride", "16"},
                                    {"width-divisor", "1"},
                                    {"low-level-relu", "true"},
                                    {"deconv-crop", "pytorch"},
                                    {"batch-norm-momentum", "0.1"},
                                    {"batch-norm-evaluation", "running"},
                                    {"batch-norm-recalibration", "0"},
                                    {"loss-type", "weighted_mean"},
                                    {"class-weights", "mlperf"},
                                    {"label-set", "0"},
                                    {"downsample", "1"},
                                    {"measure", "mlperf"},
                                    {"target-iou", "0.82"},
                                    {"adam-eps", "1e-6"},
                                    {"max-grad-norm", "1"},
                                    {"gradient-lag", "0"}})
    rules.push_back({flag, o.agrees(flag, value), value});
  const size_t channels = chosen_channels(o).size();
  rules.push_back({"channels", channels == 0 || channels == std::size(climate_channels), "all 16"});
  rules.push_back({"crop", o.text("crop").empty(), "whole images"});
  rules.push_back({"init", o.text("init").empty(), "none (weights begin at random)"});
  const std::string& optimizer = o.text("optimizer");
  rules.push_back(
      {"optimizer", optimizer == "Adam" || optimizer == "AdamW" || optimizer == "LAMB", "Adam, AdamW or LAMB"});
  const std::string& schedule = o.text("lr-schedule");
  rules.push_back(
      {"lr-schedule", schedule == "multistep" || schedule == "cosine_annealing", "multistep or cosine_annealing"});
  rules.push_back({"lr-warmup-factor", o.number("lr-warmup-factor") >= 1, "1 or more"});
  rules.push_back({"seed", o.integer("seed") > 0, "1 or more"});
  return rules;
}

/// What closed runs are checked against: the official set, whole.
void expect_official_data(const Data& data) {
  constexpr int64_t train = 121266, validation = 15158;
  const auto images = [](const auto& source) { return source ? source->size() : 0; };
  const ImageShape found = data.train ? data.train->images()[0].shape : ImageShape{};
  if (images(data.train) != train || images(data.validation) != validation || !(found == ImageShape{768, 1152, 16}))
    fail_usage(
        fmt::format("--mlperf-division closed: expected {} training and {} validation images of 768x1152x16, found {} "
                    "and {} of {}",
                    train, validation, images(data.train), images(data.validation),
                    data.train ? found.str() : "no shape: dummy data"));
}

/// The program's options as the settings and the ranks want them.
ClimateOptions program_options(const OptionTable& o, Ranks& ranks, const Data& data) {
  ClimateOptions program = data.train ? climate_program(o, *data.train, data.validation.get()) : dummy_program(o);
  program.model.dropout = dropout_rate(o);
  program.model.batch_norm_momentum = o.number("batch-norm-momentum");
  program.batch = o.integer("local-batch-size");
  program.loss = pixel_loss_config(o);
  program.statistics_pass = recalibration_images(o, data) > 0;
  program.training = optimizer_config(o);
  program.training.averaging = ranks.averaging(o, program.compute);
  program.plan.team = ranks.team_size(), program.plan.place = ranks.team_place();
  return program;
}

/// Where nothing else is wanted, enough for a few steps.
int64_t dummy_samples(const OptionTable& o, int64_t samples_per_step) {
  return o.integer("n-train") > 0 ? o.integer("n-train") : 4 * samples_per_step;
}

ClimateTask::Settings task_settings(const OptionTable& o, const Ranks& ranks, const Data& data,
                                    const ClimateOptions& program, int64_t samples_per_step) {
  ClimateTask::Settings s;
  s.train = data.train, s.validation = data.validation;
  s.recalibration = data.whole_train;
  if (program.statistics_pass) s.recalibration_images = o.integer("batch-norm-recalibration");
  if (!data.train) s.dummy_samples = dummy_samples(o, samples_per_step);
  s.loader = training_loader(o, ranks);
  if (data.staged) s.loader.share = data.staged->training;
  s.measure = choose<Measure>(o, "measure",
                              {{"mlperf", Measure::mlperf},
                               {"pooled", Measure::pooled},
                               {"cyclone", Measure::cyclone},
                               {"river", Measure::river}});
  if (!o.text("target-iou").empty()) s.target = o.number("target-iou");
  s.pictures = o.integer("pictures");
  s.output_dir = o.text("output-dir");
  s.training = program.training;
  const int64_t samples = data.train ? data.train->size() : s.dummy_samples;
  const int64_t steps = std::max<int64_t>(1, samples / samples_per_step);  // fewer samples do for a look
  s.schedule = step_schedule(o, o.integer("max-epochs") * steps, samples_per_step);
  return s;
}

/// Prints the last validation's scores, beside the baselines' where asked, and returns them for the summary.
Json report_scores(const OptionTable& o, Ranks& ranks, const Data& data, const SegmentationScore& score,
                   const PixelLossAttrs& loss, bool with_baselines) {
  Json json = {{"validation", score_json(score)}};
  std::vector<std::pair<std::string, const SegmentationScore*>> scores{{o.text("model"), &score}};
  std::optional<ClimateBaselines> baselines;
  if (with_baselines) {
    ranks.set_busy(true);
    baselines = climate_baselines(*data.whole_train, *data.validation, loss);
    ranks.set_busy(false);
    json["background"] = score_json(baselines->background);
    json["logistic_regression"] = score_json(baselines->regression);
    scores.emplace_back("background alone", &baselines->background);
    scores.emplace_back("logistic regression", &baselines->regression);
  }
  print_scores(scores);
  return json;
}

int train(OptionTable& o, Ranks& ranks, RunFolder& folder) {
  const bool inspect_only = only_looks(o);
  const bool dummy = o.text("data") == "dummy" || (inspect_only && o.text("data-dir").empty());
  refuse_idle_flags(o, dummy);
  check_data_folder(o);
  auto staging = stage(o, ranks);
  const int64_t listing = MlLog::now();
  const Data data = dummy ? Data{} : find_data(o, ranks);
  if (data.staged) staging = {listing, data.staged->end};
  if (!inspect_only && o.text("mlperf-division") == "closed") expect_official_data(data);
  const ClimateOptions program = program_options(o, ranks, data);
  check_division(o, closed_rules(o));
  const int64_t samples_per_step = program.batch * program.training.accumulation * ranks.size();
  if (!inspect_only)
    expect_whole_step(samples_per_step, data.train ? data.train->size() : dummy_samples(o, samples_per_step));
  const ClimateTask::Settings settings = task_settings(o, ranks, data, program, samples_per_step);
  print_header(o);
  ProgramPlans plans = plan_program(program, kernel_list());
  if (ranks.root() && data.validation) warn_of_single_values(o, plans.step_tape);
  Run run(o, ranks, program, std::move(plans), count_network(program.model));
  if (run.stops()) return 0;

  ClimateTask task(settings);
  TrainerOptions t = trainer_options(o, folder);
  t.staging = staging;
  t.epochs = o.integer("max-epochs");
  t.loader = settings.loader;
  t.rate = [schedule = settings.schedule](int64_t, int64_t step) { return schedule.rate(step); };
  t.identity = identity(o, data, program, task, settings.schedule);
  t.identity["threads"] = ranks.of_all(program.plan.threads);
  if (settings.loader.share) t.identity[share_nodes] = ranks.nodes();
  t.decided_by = {{"schedule_steps", "--lr-t-max or, without it, --max-epochs"},
                  {units_begin, "--batch-norm off, which kept a ReLU in earlier versions"}};
  t.per_rank = {"local-batch-size", "batchnorm-group-size", "threads",        "schedule_steps",
                "gradient-wire",    "lr-milestones",        "lr-warmup-steps"};
  if (o.integer("lr-warmup-steps") > 0) t.count_steps.push_back("--lr-warmup-steps");
  if (o.text("lr-schedule") == "multistep") t.count_steps.push_back("--lr-milestones");
  if (o.integer("lr-t-max") > 0) t.count_steps.push_back("--lr-t-max");
  tell_samples(t, data_files(data), ranks);
  say("{} training samples of {}x{}x{}, {} validation images\n", task.training_samples(), program.model.height,
      program.model.width, program.model.channels, task.validation_samples());

  run.start();
  const Outcome outcome = run.train(task, std::move(t));
  Json more = Json::object();
  if (task.last_validation())
    more = report_scores(o, ranks, data, task.last_validation()->score, program.loss,
                         o.toggle("baseline") && outcome != Outcome::interrupted && ranks.root());
  const int code = run.finish(outcome, more);
  if (ranks.root()) write_plot(o.text("output-dir"), run.trainer(), program.loss.loss);
  return code;
}

int train_main(int argc, char** argv) {
  OptionTable o(climate_training_options());
  if (!o.read(argc, argv,
              "Trains a climate segmentation network. Exit codes: 0 finished, 1 run-time error, 2 usage, 3 data, 4 "
              "diverged, 75 interrupted and saved, 76 another rank is lost."))
    return 0;
  std::optional<RunFolder> folder;
  const auto complete = [&](Ranks& ranks) {
    spread_schedule(o);  // so that checkpoints hold single settings
    folder.emplace(o, ranks);
    fill_climate_defaults(o);
  };
  return run_ranks("climseg_train", o, complete, [&](Ranks& ranks) { return train(o, ranks, *folder); });
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("climseg_train", convoy::apps::train_main, argc, argv);
}
