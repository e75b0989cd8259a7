// Trains CosmoFlow: settings in, data in, checkpoints, logs, plots and a summary out.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "apps/common/baseline.h"
#include "apps/common/cosmoflow_task.h"
#include "apps/common/listing.h"
#include "apps/common/optimizer_setup.h"
#include "apps/common/profile.h"
#include "apps/common/run.h"
#include "apps/common/say.h"
#include "apps/common/staged_data.h"
#include "apps/common/svg.h"
#include "apps/common/trainer.h"
#include "apps/common/version.h"
#include "io/file.h"
#include "kernels/kernel_list.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;

struct Data {
  DataSplit split;
  SampleShape shape;
};

/// The dummy set has no files; its samples are placeholders that are only counted.
Data dummy_data(const OptionTable& o) {
  const CosmoflowConfig c = model_config(o);
  Data data;
  data.shape = {c.size, c.channels, c.targets, DType::f32};
  constexpr int64_t most = 1 << 20;
  if (o.integer("n-train") > most)
    fail_usage(
        fmt::format("--n-train: expected at most {} samples of --data dummy, found {}", most, o.integer("n-train")));
  data.split.train.resize(static_cast<size_t>(o.integer("n-train") > 0 ? o.integer("n-train") : 256));
  return data;
}

Data find_data(const OptionTable& o, Ranks& ranks) {
  if (o.text("data") == "dummy") return dummy_data(o);
  if (o.text("data-dir").empty()) fail_usage("--data-dir is required (or --data dummy)");
  const ReadOptions read = read_options(o);
  Data data;
  data.split = split_samples(
      o.text("data-dir"), [&](const std::string& path, int64_t most) { return list_samples(path, read, most, ranks); },
      o.number("valid-share"), static_cast<uint64_t>(o.integer("seed")),
      {std::max<int64_t>(0, o.integer("n-train")), std::max<int64_t>(0, o.integer("n-valid"))});
  limit(data.split.train, o, "n-train");
  limit(data.split.validation, o, "n-valid");
  data.shape = data_shape(o, data.split.train, read, ranks);
  return data;
}

/// Settings that change the numbers of a run: a resume with others would not continue it.
Json identity(const OptionTable& o, const Data& data, const CosmoflowOptions& p) {
  Json json = {{"sample", data.shape.str()},
               {"train_samples", data.split.train.size()},
               {"validation_samples", data.split.validation.size()}};
  json.update(settings_json(o, {"model",
                                "kernel-size",
                                "conv-size",
                                "conv-layers",
                                "fc1-size",
                                "fc2-size",
                                "hidden-activation",
                                "batch-norm",
                                "batch-norm-momentum",
                                "batchnorm-group-size",
                                "apply-log",
                                "compute",
                                "gradient-wire",
                                "batch-size",
                                "seed",
                                "shuffle",
                                "shuffle-labels",
                                "augment",
                                "loss",
                                "dropout",
                                "l2",
                                "lr",
                                "optimizer-lr",
                                "lr-scaling",
                                "base-batch-size",
                                "warmup-epochs",
                                "decay-schedule",
                                "kernel",
                                "winograd",
                                "sparse-gradients",
                                "passes"}));
  json.update(settings_json(o, optimizer_flags()));
  json["device"] = p.plan.device == DeviceKind::cuda ? "cuda" : "cpu";
  json["stage-share"] = o.text("stage-share");
  if (p.training.l2 > 0) json[penalty_in_validation] = true;
  return json;
}

void write_plots(const std::string& folder, const Trainer& trainer, const Predictions& p,
                 const CosmoflowOptions& program) {
  const std::string error = program.loss == Loss::mse ? "mean squared error" : "mean absolute error";
  Plot loss{"loss",
            "epoch",
            error + (program.training.l2 > 0 ? " and L2 penalty" : ""),
            {{"training", {}, {}}, {"validation", {}, {}}},
            Plot::Scale::linear,
            Plot::Scale::log};
  for (const EpochRecord& r : trainer.history()) {
    loss.series[0].x.push_back(double(r.epoch + 1)), loss.series[0].y.push_back(r.loss);
    loss.series[1].x.push_back(double(r.epoch + 1)), loss.series[1].y.push_back(r.validation.loss);
  }
  write_text(folder + "/loss.svg", render_svg({loss}));
  std::vector<Plot> scatter;
  const auto names = target_names(p.targets);
  for (int64_t t = 0; t < p.targets; ++t) {
    Plot plot{names[static_cast<size_t>(t)], "true (unit range)", "predicted", {{"", {}, {}, Series::Mark::points}}};
    plot.diagonal = true;
    for (int64_t i = 0; i < p.count(); ++i) {
      plot.series[0].x.push_back(p.truth[static_cast<size_t>(i * p.targets + t)]);
      plot.series[0].y.push_back(p.predicted[static_cast<size_t>(i * p.targets + t)]);
    }
    scatter.push_back(std::move(plot));
  }
  if (!scatter.empty()) write_text(folder + "/scatter.svg", render_svg(scatter));
}

Json errors_json(const Predictions& p) {
  Json json = {{"mae", p.mae()}};
  const auto names = target_names(p.targets);
  for (int64_t t = 0; t < p.targets; ++t)
    json["per_parameter"][names[static_cast<size_t>(t)]] = {{"mae", p.mae(t)}, {"standard_error", p.mae_error(t)}};
  return json;
}

void print_errors(const Predictions& network, const Predictions* regression) {
  say("validation MAE over {} samples (labels in [-1, 1]; guessing gives 0.5)\n  {:<10} {:>18}{}\n", network.count(),
      "", "network", regression ? "     count variance" : "");
  const auto names = target_names(network.targets);
  for (int64_t t = 0; t < network.targets; ++t) {
    say("  {:<10} {:>8.4f} +- {:.4f}", names[static_cast<size_t>(t)], network.mae(t), network.mae_error(t));
    if (regression) say("   {:>8.4f} +- {:.4f}", regression->mae(t), regression->mae_error(t));
    say("\n");
  }
  say("  {:<10} {:>8.4f}{}\n", "all", network.mae(),
      regression ? fmt::format("             {:>8.4f}", regression->mae()) : "");
}

std::vector<std::string> data_files(const Data& data) {
  std::vector<std::string> paths;
  for (const auto* list : {&data.split.train, &data.split.validation})
    for (const SampleRef& ref : *list) paths.push_back(ref.path);
  return paths;
}

/// The program's options as the settings and the ranks want them.
CosmoflowOptions training_program(const OptionTable& o, Ranks& ranks, const SampleShape& shape) {
  CosmoflowOptions p = program_options(o, shape);
  p.batch = o.integer("batch-size");
  p.model.dropout = dropout_rate(o);
  p.model.batch_norm_momentum = o.number("batch-norm-momentum");
  p.loss = o.text("loss") == "mse" ? Loss::mse : Loss::l1;
  p.training = optimizer_config(o);
  p.training.l2 = o.number("l2");
  check_division(o, closed_rules(o, p));
  p.training.averaging = ranks.averaging(o, p.compute);
  p.plan.team = ranks.team_size(), p.plan.place = ranks.team_place();
  return p;
}

CosmoflowTask::Settings task_settings(const OptionTable& o, const Ranks& ranks, const Data& data,
                                      const CosmoflowOptions& program, int64_t samples_per_step) {
  CosmoflowTask::Settings s;
  s.reading = reading_options(o, data.shape);
  s.reading.seed = static_cast<uint64_t>(o.integer("seed"));
  s.reading.augment = o.text("augment") == "cube" ? Augment::cube : Augment::none;
  s.reading.permute_targets = o.toggle("shuffle-labels");
  s.loader = training_loader(o, ranks);
  s.loss = program.loss;
  s.l2 = program.training.l2;
  if (s.l2 > 0) s.penalised = penalised_parameters(program);
  if (!o.text("target-mae").empty()) s.target_mae = o.number("target-mae");
  if (o.text("data") == "dummy") s.dummy_samples = std::ssize(data.split.train);
  s.schedule = schedule_config(o);
  s.dropout = program.model.dropout;
  s.weight_decay = std::max(o.number("l2"), o.number("weight-decay"));
  s.batch = samples_per_step;
  return s;
}

/// Prints the last validation's errors, beside the regression's where asked, and returns them for the summary.
Json report_errors(Ranks& ranks, const Data& data, const Predictions& network, const ReadOptions& read,
                   bool with_baseline) {
  Json json = Json::object();
  std::optional<Predictions> regression;
  if (with_baseline) {
    ranks.set_busy(true);
    regression = variance_regression(data.split.train, data.split.validation, read, data.shape.targets);
    ranks.set_busy(false);
  }
  if (network.count() == 0) return json;
  json["validation"] = errors_json(network);
  if (regression) json["count_variance_regression"] = errors_json(*regression);
  print_errors(network, regression ? &*regression : nullptr);
  return json;
}

/// The reference's line: the best validation loss of all epochs.
void print_fom(const std::vector<EpochRecord>& history) {
  if (history.empty()) return;
  double best = INFINITY;
  for (const EpochRecord& r : history) best = std::min(best, r.validation.loss);
  say("FoM: {}\n", best);
}

int train(OptionTable& o, Ranks& ranks, RunFolder& folder) {
  const bool inspect_only = only_looks(o);
  refuse_idle_flags(o);
  check_data_folder(o);
  auto staging = stage(o, ranks);
  const int64_t listing = MlLog::now();
  Data data = inspect_only && o.text("data-dir").empty() ? dummy_data(o) : find_data(o, ranks);
  const auto staged = stage_samples(o, ranks, paths_of(data.split.train), 1, paths_of(data.split.validation));
  if (staged) staging = {listing, staged->end};
  const CosmoflowOptions program = training_program(o, ranks, data.shape);
  const int64_t samples_per_step = program.batch * program.training.accumulation * ranks.size();
  if (!inspect_only) expect_whole_step(samples_per_step, std::ssize(data.split.train));
  const bool baseline = o.toggle("baseline") && o.text("data") != "dummy";
  if (baseline && !inspect_only && data.shape.dtype != DType::i16)
    fail_usage("--baseline needs counts, " + o.text("data-dir") + " holds " + data.shape.str());
  CosmoflowTask::Settings settings = task_settings(o, ranks, data, program, samples_per_step);
  if (staged) settings.loader.share = staged->training;
  print_header(o);
  Run run(o, ranks, program, plan_program(program, kernel_list()), count_network(program.model));
  if (run.stops()) return 0;

  CosmoflowTask task(data.split.train, data.split.validation, settings);
  TrainerOptions t = trainer_options(o, folder);
  t.staging = staging;
  t.epochs = o.integer("n-epochs");
  t.loader = settings.loader;
  t.rate = [schedule = settings.schedule, batch = double(samples_per_step)](int64_t epoch, int64_t) {
    return schedule.rate(epoch, batch);
  };
  t.identity = identity(o, data, program);
  t.identity["threads"] = ranks.of_all(program.plan.threads);
  if (settings.loader.share) t.identity[share_nodes] = ranks.nodes();
  t.correct = correct_losses;
  t.per_rank = {"batch-size", "batchnorm-group-size", "threads", "gradient-wire"};
  tell_samples(t, data_files(data), ranks);
  say("{} training and {} validation samples of {}\n", data.split.train.size(), data.split.validation.size(),
      data.shape.str());

  run.start();
  const Outcome outcome = run.train(task, std::move(t));
  const Predictions& last = task.last_validation();
  const Json more = report_errors(ranks, data, last, settings.reading.read,
                                  baseline && outcome != Outcome::interrupted && ranks.root());
  if (o.toggle("print-fom")) print_fom(run.trainer().history());
  const int code = run.finish(outcome, more);
  if (last.count() > 0 && ranks.root()) write_plots(o.text("output-dir"), run.trainer(), last, program);
  return code;
}

int train_main(int argc, char** argv) {
  OptionTable o(training_options());
  OptionTable::YamlFile config{yaml_refusals(), ""};
  if (!o.read(argc, argv,
              "Trains the CosmoFlow network. Exit codes: 0 finished, 1 run-time error, 2 usage, 3 data, 4 diverged, "
              "75 interrupted and saved, 76 another rank is lost.",
              &config))
    return 0;
  std::optional<RunFolder> folder;
  const auto complete = [&](Ranks& ranks) {
    folder.emplace(o, ranks);
    fill_cosmoflow_defaults(o);
    if (ranks.root() && !config.path.empty() && !o.is_set("kernel-size"))
      say(stderr, "warning: {} sets no kernel_size: using 3 (the v0.7 benchmark ran with 2)\n", config.path);
  };
  return run_ranks("cosmoflow_train", o, complete, [&](Ranks& ranks) { return train(o, ranks, *folder); });
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("cosmoflow_train", convoy::apps::train_main, argc, argv);
}
