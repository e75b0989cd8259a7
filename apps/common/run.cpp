#include "apps/common/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>

#include "apps/common/families.h"
#include "apps/common/profile.h"
#include "apps/common/say.h"
#include "apps/common/stop_signal.h"
#include "apps/common/trained_state.h"
#include "apps/common/version.h"
#include "core/passes/passes.h"
#include "core/peak_memory.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "kernels/kernel_list.h"
#include "kernels/plugin_list.h"
#include "kernels/simd/cpu.h"
#include "models/idle_overrides.h"
#include "models/tuned_share.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;

}  // namespace

void warn_of_plain_kernels(const std::vector<const Plan*>& plans) {
  std::vector<std::string> plain;
  std::set<std::string> seen;  // plans of a program share nodes
  for (const Plan* plan : plans)
    for (const PlannedNode& node : plan->nodes)
      if ((node.kernel == reference_name || node.kernel == "cuda_plain") && node.why != "override" &&
          seen.insert(node.name).second)
        plain.push_back(fmt::format("{} ({})", node.name, node.kernel));
  if (plain.empty()) return;
  constexpr size_t most = 8;
  const size_t shown = std::min(most, plain.size());
  std::fflush(stdout);  // both may be one file
  say(stderr, "warning: no fast kernel takes {} nodes, which run plain loops: {}{}\n", plain.size(),
      fmt::join(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < plain.size() ? ", ..." : "");
}

void warn_of_idle_overrides(const Selection& selection, const std::vector<const Plan*>& plans) {
  const std::vector<std::string> lines = idle_overrides(plans, selection, kernel_list());
  if (!lines.empty()) std::fflush(stdout);
  for (const std::string& line : lines) say(stderr, "warning: {}\n", line);
}

void report_plugins() {
  if (const std::string plugins = plugin_text(); !plugins.empty()) say("plugins: {}\n", plugins);
}

void print_header(const OptionTable& o) {
  say("{}\n{}\n", build_text(), describe_cpu());
  report_plugins();
  std::string line = " ", rest;
  constexpr size_t width = 120;
  for (const Option& option : o.all()) {
    const std::string value = option.value.empty() ? "-" : option.value;
    if (option.origin != "default") {
      say("  {:<20} {:<32} {}\n", option.flag, value, option.origin);
      continue;
    }
    const std::string word = " " + option.flag + "=" + value;
    if (line.size() + word.size() > width) rest += line + "\n", line = " ";
    line += word;
  }
  say("  defaults:\n{}{}\n", rest, line);
}

void print_summary(const ProgramPlans& plans, const NetworkCounts& counts, bool explained) {
  say("{:<34} {:<30} {:<30} {:>10} {:<14} {}\n", "node", "first input", "output", "GFLOP", "kernel", "why");
  for (const PlannedNode& node : plans.step.nodes) {
    const auto desc = [&](const std::vector<ValueId>& ids) {
      return ids.empty() ? std::string("-") : plans.step.value(ids[0]).desc.str();
    };
    say("{:<34} {:<30} {:<30} {:>10.4f} {:<14} {}\n", node.name, desc(node.in), desc(node.out),
        double(node.flops) * 1e-9, node.kernel, node.why);
    if (explained && node.op.kind != OpKind::pack) say("{}", explain(kernel_list(), plans.step.problem_of(node)));
  }
  say("parameters {}", counts.parameters);
  if (counts.unread_parameters > 0)
    say(" ({} as published, with {} that nothing reads)", counts.parameters + counts.unread_parameters,
        counts.unread_parameters);
  say("\nforward {:.3f} GFLOP per sample, training {:.3f} GFLOP per sample (dense count)\n",
      double(counts.forward_flops) * 1e-9, double(counts.training_flops) * 1e-9);
  say("forward {:.3f} GFLOP as TensorFlow's graph counter sees it, three times that for training {:.3f}\n",
      double(counts.counted_flops) * 1e-9, 3 * double(counts.counted_flops) * 1e-9);
}

void report_tuned(const OptionTable& o, const TunedTable& table, const std::vector<const Plan*>& plans) {
  if (const std::string& path = o.text("tuned"); !path.empty())
    say("{}\n", describe_tuned(plans, table, kernel_list(), path));
}

Run::Run(const OptionTable& o, Ranks& ranks, const ProgramOptions& program, ProgramPlans plans,
         const NetworkCounts& counts)
    : options_(o),
      ranks_(ranks),
      program_options_(program),
      plans_(std::move(plans)),
      kernels_(kernel_table(plans_->step)),
      flops_per_sample_(counts.training_flops) {
  if (const auto device = run_device(o)) {
    say("device: {}\n", device->description());
    ranks_.show_device(*device);
    const int devices = ranks_.devices_on_node();
    if (ranks_.on_node() > devices && ranks_.place_on_node() == 0)
      say(stderr, "warning: {} ranks of a node share {} device{}\n", ranks_.on_node(), devices,
          devices == 1 ? "" : "s");
  }
  if (o.toggle("summary") || o.toggle("explain")) print_summary(*plans_, counts, o.toggle("explain"));
  report_tuned(o, program.plan.selection.tuned, plans_->all());
  if (ranks_.root()) warn_of_idle_overrides(program.plan.selection, plans_->all());
  say("{}", ranks_.report(program.plan.threads, program.training.averaging));
  const auto copied = [](const PlannedNode& node) { return original_name(node.name) != node.name; };
  if (program.plan.recompute && std::none_of(plans_->step.nodes.begin(), plans_->step.nodes.end(), copied))
    fail_usage(
        "--recompute has no effect on this network: its backward pass keeps nothing that is cheap to make again");
  planned_ = plans_->own_bytes() + plans_->shared_bytes() / ranks_.team_size();
  say("memory\n{}", memory_text(*plans_, ranks_.team_size()));
}

Run::~Run() {
  // Of an error between two steps, messages of lagged gradients travel until all ranks are ended: their memory stays.
  if (std::uncaught_exceptions() > 0 && ranks_.session()) (void)program_.release();
}

Program& Run::start() {
  if (ranks_.root()) warn_of_plain_kernels(plans_->all());
  const std::shared_ptr<Buffer> shared = ranks_.share(*plans_);
  program_ = make_program(options_, std::move(*plans_), program_options_,
                          static_cast<uint64_t>(options_.integer("seed")), shared);
  plans_.reset();
  if (const std::string& init = options_.text("init"); !init.empty()) {
    if (ranks_.root()) {
      ranks_.set_busy(true);
      load_weights(init, *program_, Needed::parameters);
      ranks_.set_busy(false);
    }
    ranks_.broadcast_states(*program_, weight_names(*program_));
  }
  ranks_.meet_team();
  return *program_;
}

Outcome Run::train(Task& task, TrainerOptions trainer) {
  std::fflush(stdout);
  install_signal_handlers();
  const Json identity = trainer.identity;
  trainer_ = std::make_unique<Trainer>(*program_, task, ranks_, std::move(trainer));
  const Outcome outcome = trainer_->run();
  if (ranks_.root() && !options_.text("save").empty()) save_weights(options_.text("save"), *program_, identity);
  summary_ = summarize(outcome);
  // Who resumes a finished run has nothing new to say of its steps.
  owns_summary_ = ranks_.root() && (summary_["steps"] != 0 || !std::filesystem::exists(summary_path()));
  write_summary();
  trainer_->write_trace();
  return outcome;
}

Json Run::summarize(Outcome outcome) const {
  Json summary = trainer_->summary();
  summary["outcome"] = outcome == Outcome::interrupted      ? "interrupted"
                       : outcome == Outcome::target_reached ? "target reached"
                       : outcome == Outcome::stopped_early  ? "stopped early"
                                                            : "finished";
  summary["flops_per_sample"] = flops_per_sample_;
  for (const auto& [rate, samples] :
       {std::pair{"gflops", "samples_per_second"}, {"mean_gflops", "mean_samples_per_second"}})
    summary[rate] = double(flops_per_sample_) * summary[samples].get<double>() * 1e-9;
  summary["peak_resident_mib"] = peak_resident_mib();
  summary["planned_mib"] = double(planned_) / (1 << 20);
  summary["kernels"] = kernels_;
  summary["machine"] = describe_cpu();
  summary["plugins"] = plugin_text();
  summary["version"] = build_text();
  summary["threads"] = program_options_.plan.threads;
  summary["settings"] = settings_json(options_);
  return summary;
}

std::string Run::summary_path() const {
  return options_.text("output-dir") + "/summary.json";
}

void Run::write_summary() const {
  if (owns_summary_) write_text(summary_path(), summary_.dump(2) + "\n");
}

void Run::print_profile() {
  const Executor& step = program_->step();
  std::vector<Ceiling> ceilings;
  ranks_.world().barrier();  // all at once, as in a step: ranks share their node's memory
  try {
    ceilings = measure_ceilings(step.plan().device, step.plan().threads, 0.1);
  } catch (const std::exception& error) {  // the run's own memory may leave none for them
    say(stderr, "warning: the ceilings could not be measured: {}\n", error.what());
  }
  const Roofs roofs = roofs_of(ceilings);
  if (program_->micro())
    say("passes ahead of the update:\n{}the last one:\n", profile_table(*program_->micro(), roofs));
  say("{}\n{}\n{}\n", profile_table(step, roofs), family_table(step, roofs), ceilings_text(ceilings));
  std::fflush(stdout);
  if (ranks_.root()) write_text(options_.text("output-dir") + "/profile.jsonl", profile_rows(step, ceilings));
}

int Run::finish(Outcome outcome, const Json& more) {
  const Json& summary = summary_;
  const Json& exposed = summary["communication"];
  say("{}: {} steps, median {:.4f} s, {:.3f} samples/s ({:.3f} in the mean of all steps), {:.1f} GFLOP/s, data wait "
      "{:.2f} %, peak {:.0f} MiB (planned {:.0f} MiB)\n",
      summary["outcome"].get<std::string>(), summary["steps"].get<int64_t>(),
      summary["median_step_seconds"].get<double>(), summary["samples_per_second"].get<double>(),
      summary["mean_samples_per_second"].get<double>(), summary["gflops"].get<double>(),
      100 * summary["data_wait_fraction"].get<double>(), summary["peak_resident_mib"].get<double>(),
      summary["planned_mib"].get<double>());
  if (summary["steps"] == 0) say("nothing was left to train: the run had come to its end before\n");
  if (ranks_.size() > 1)
    say("{} ranks: {:.1f} MiB in {:.0f} all-reduces per step, {:.2f} ms in flight, {:.2f} ms exposed ({:.2f} % of the "
        "step), {:.2f} ms of it for late ranks\n",
        ranks_.size(), exposed["mib_per_step"].get<double>(), exposed["all_reduces_per_step"].get<double>(),
        1e3 * exposed["in_flight_seconds_per_step"].get<double>(),
        1e3 * exposed["exposed_seconds_per_step"].get<double>(), 100 * exposed["exposed_fraction"].get<double>(),
        1e3 * exposed["late_ranks_seconds_per_step"].get<double>());
  if (const Json& phases = summary["step_phases"]; !phases.empty()) {
    say("  in the mean of all steps but the first, ms:");
    for (int i = 0; i <= static_cast<int>(Phase::other); ++i) {
      const std::string phase(name_of(static_cast<Phase>(i)));
      if (phases.contains(phase)) say("  {} {:.2f}", phase, 1e3 * phases[phase].get<double>());
    }
    say("\n");
  }
  std::fflush(stdout);
  summary_.update(more);
  if (!more.empty()) write_summary();
  if (options_.toggle("profile") && summary_["steps"] != 0) print_profile();
  if (outcome == Outcome::interrupted && !has_hdf5())  // 75 would ask for the job again
    fail_runtime("interrupted, and nothing could be saved: this build has no HDF5");
  return outcome == Outcome::interrupted ? 75 : 0;
}

}  // namespace convoy::apps
