#include "apps/common/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>

#include "apps/common/families.h"
#include "apps/common/fingerprint.h"
#include "apps/common/profile.h"
#include "apps/common/say.h"
#include "apps/common/version.h"
#include "core/parallel.h"
#include "core/passes/passes.h"
#include "core/peak_memory.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/safetensors.h"
#include "kernels/device/device.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/idle_overrides.h"
#include "models/tuned_share.h"

namespace convoy::apps {
namespace {

using K = Option::Kind;
using Json = nlohmann::json;

DType compute_type(const std::string& text) {
  const auto type = parse_dtype(text);
  if (!type || (*type != DType::f32 && *type != DType::bf16 && *type != DType::f16))
    fail_usage("--compute: expected f32, bf16 or f16, found " + text);
  return *type;
}

PlanOptions plan_options(const OptionTable& o) {
  PlanOptions p;
  p.threads = wanted_threads(o);
  set_default_threads(p.threads);
  for (const std::string& text : o.list("kernel")) p.selection.overrides.push_back(parse_override(text));
  if (!o.text("tuned").empty()) p.selection.tuned = TunedTable::load(o.text("tuned"));
  if (!o.toggle("winograd")) p.selection.excluded.push_back("winograd");
  if (o.has("recompute")) {
    p.recompute = o.toggle("recompute");
    o.refuse_idle({{"recompute", o.toggle("passes"), "--no-passes, which keeps every value"}});
  }
  return o.toggle("passes") ? p : plain_options(p);
}

/// Parameters and running statistics.
std::vector<std::string> weight_names(const Program& program) {
  std::vector<std::string> names = program.parameters();
  names.insert(names.end(), program.statistics().begin(), program.statistics().end());
  return names;
}

}  // namespace

std::vector<Option> run_options() {
  return {{"compute", "", "f32", "f32, bf16 or f16; parameters stay f32"},
          {"kernel", "", "", "node=kernel, repeatable: conv1.forward=onednn, *=reference", K::list},
          {"tuned", "", "", "table of measured kernel choices (bench_layers --tune)"},
          {"winograd", "", "true", "off: no Winograd convolutions", K::toggle},
          {"passes", "", "true", "off: no fusing, no memory reuse, every value inspectable", K::toggle},
          {"device", "", "cpu", "cpu, cuda or cuda:N"},
          Option{"threads", "", "0", "compute threads (0 = OMP_NUM_THREADS or all cores)", K::integer}.within(
              0, most_threads),
          Option{"prefetch", "data.prefetch", "4", "samples decoded ahead", K::integer}.within(1, 1 << 20),
          Option{"n-parallel-reads", "data.n_parallel_reads", "1", "prefetch threads", K::integer, "default",
                 "max-inter-threads"}
              .within(1, 1024)};
}

std::vector<Option> loop_options(const std::string& output_dir, const std::string& unit) {
  std::vector<Option> list{
      {"output-dir", "output_dir", output_dir, "folder for everything the run writes"},
      {"n-train", "data.n_train", "0", "training samples (0 = all found; of --data dummy some)", K::integer},
      {"n-valid", "data.n_valid", "0", "validation samples (0 = all found)", K::integer},
      {"valid-share", "", "0.2",
       "share of the " + unit + " that validate where data-dir has no validation/: of train/ alone where it has that",
       K::number},
      Option{"seed", "seed", "0", "of initial weights, shuffling, dropout, augmentation", K::integer}.within(-0x1p63),
      {"shuffle", "data.shuffle_train", "true", "new sample order every epoch", K::toggle},
      {"early-stopping", "train.early_stopping_patience", "0",
       "stop after so many epochs in which the best validation loss fell by less than 1e-5 (0 = never)", K::integer},
      {"max-steps", "", "0", "stop after so many steps in all (0 = the epochs decide)", K::integer},
      {"resume", "", "false",
       "continue from the newest intact checkpoint of output-dir; settings that are not given are the checkpoint's",
       K::toggle},
      {"checkpoint", "", "",
       "continue the run of this checkpoint (of an output folder: the newest intact one) in an output-dir that holds "
       "none; with --resume, only there"},
      {"logging-frequency", "", "0",
       "also write rate, loss and, of climate images, accuracy to the MLPerf log every so many steps (0 = at epoch "
       "ends)",
       K::integer},
      {"checkpoint-epochs", "", "1", "save behind every Nth epoch and the last one (0 = behind that alone)", K::integer,
       "default", "save-frequency"},
      {"checkpoint-steps", "", "0", "also save every so many steps (0 = behind epochs alone)", K::integer},
      Option{"keep-checkpoints", "", "2", "newest checkpoints kept", K::integer}.within(1, 1 << 30),
      {"init", "", "", "start from these safetensors weights"},
      {"save", "", "", "write the final weights as safetensors to this file, which is tried at the start"},
      {"summary", "", "false", "print layers, parameters, FLOPs and kernels, then stop", K::toggle},
      {"dry-run", "", "false", "print the memory plan, allocate nothing, then stop", K::toggle},
      {"explain", "", "false",
       "the summary with every candidate of a node's kernels, and why others refuse it, then stop", K::toggle},
      {"profile", "", "false",
       "print the time of every node and family of ops at the end, beside the machine's ceilings, and write "
       "profile.jsonl",
       K::toggle},
      {"trace", "", "false", "write trace.json for chrome://tracing", K::toggle},
      {"mlperf-org", "mlperf.org", "unknown", "submission_org in mlperf.log"},
      Option{"mlperf-division", "mlperf.division", "open",
             "closed or open; closed refuses what the benchmark's rules fix otherwise"}
          .one_of({{"closed"}, {"open"}}),
      Option{"mlperf-status", "mlperf.status", "research", "cloud, onprem, preview or research"}.one_of(
          {{"cloud"}, {"onprem"}, {"preview"}, {"research"}}),
      {"mlperf-platform", "mlperf.platform", "unknown", "submission_platform in mlperf.log"},
      {"mlperf-cache-clear", "", "false", "for the MLPerf log: the job script has dropped the nodes' page caches",
       K::toggle}};
  append(list, rank_options());
  return list;
}

bool only_looks(const OptionTable& o) {
  return o.toggle("summary") || o.toggle("explain") || o.toggle("dry-run");
}

double dropout_rate(const OptionTable& o) {
  const double rate = o.number("dropout");
  if (!(rate >= 0 && rate < 1))
    fail_usage(o.name("dropout") + ": expected a number of [0, 1), found " + o.text("dropout"));
  return rate;
}

namespace {
int device_place = 0;
}

void place_on_devices(int place) {
  device_place = place;
}

std::shared_ptr<Device> run_device(const OptionTable& o) {
  static std::shared_ptr<Device> open;  // kernels say what they support by the device that is open
  DeviceChoice choice = parse_device(o.text("device"));
  if (choice.kind == DeviceKind::cpu) return nullptr;
  if (!choice.numbered) choice.ordinal = device_place % std::max(1, cuda_device_count());
  if (!open) open = open_cuda_device(choice.ordinal);
  return open;
}

std::unique_ptr<Program> make_program(const OptionTable& o, ProgramPlans plans, const ProgramOptions& p, uint64_t seed,
                                      const std::shared_ptr<Buffer>& shared) {
  if (const auto device = run_device(o)) {
    auto program = std::make_unique<Program>(std::move(plans), p, seed, device);
    if (o.has("profile") && (o.toggle("profile") || o.toggle("trace")))
      for (Executor* e : {&program->step(), program->micro()})
        if (e) e->set_eager(true);
    return program;
  }
  return std::make_unique<Program>(std::move(plans), p, seed, shared);
}

void apply_run_options(const OptionTable& o, ProgramOptions& p) {
  p.compute = compute_type(o.text("compute"));
  p.fuse = o.toggle("passes");
  if (o.has("sparse-gradients")) p.sparse_gradients = o.toggle("sparse-gradients");
  if (o.has("gradient-sums")) {
    p.gradient_sums = o.toggle("gradient-sums");
    o.refuse_idle({{"gradient-sums", o.toggle("passes"), "--no-passes, which fuses nothing"}});
  }
  p.plan = plan_options(o);
  if (run_device(o)) p.plan.device = DeviceKind::cuda;
}

void check_data_folder(const OptionTable& o) {
  const std::string& source = o.text("data-dir");
  if (source.empty()) return;
  if (o.text("data") != "dummy") {
    const SampleFolders folders = sample_folders(source);
    o.refuse_idle({{"valid-share", folders.validation.empty(), "data in folders train and validation"}});
    if (folders.validation.empty() && folders.train != source)
      say("validation: a share of {} of {}, since {} has no folder validation\n", o.text("valid-share"), folders.train,
          source);
  }
  for (const char* flag : {"output-dir", "save"})
    if (!o.text(flag).empty()) refuse_among_samples(source, o.text(flag), o.name(flag));
}

LoaderOptions loader_options(const OptionTable& o) {
  LoaderOptions l;
  l.threads = static_cast<int>(o.integer("n-parallel-reads"));
  l.queue = std::max<int64_t>(l.threads, o.integer("prefetch"));
  return l;
}

LoaderOptions training_loader(const OptionTable& o, const Ranks& ranks) {
  LoaderOptions loader = loader_options(o);
  loader.shuffle = o.toggle("shuffle");
  loader.seed = static_cast<uint64_t>(o.integer("seed"));
  loader.rank = ranks.rank(), loader.ranks = ranks.size();
  return loader;
}

bool means_the_same(const OptionTable& o, const std::string& setting, const std::string* saved) {
  return o.has(setting) && (saved ? o.agrees(setting, *saved) : o.is_standard(setting));
}

TrainerOptions trainer_options(const OptionTable& o, RunFolder& folder) {
  TrainerOptions t;
  t.checkpoint = folder.take_checkpoint();
  t.given = folder.given();
  t.output_dir = o.text("output-dir");
  t.max_steps = o.integer("max-steps");
  t.seed = static_cast<uint64_t>(o.integer("seed"));
  t.resume = o.toggle("resume");
  t.continues = t.resume || !o.text("checkpoint").empty();
  t.log_steps = o.integer("logging-frequency");
  t.checkpoint_steps = o.integer("checkpoint-steps");
  t.checkpoint_epochs = o.integer("checkpoint-epochs");
  t.keep_checkpoints = static_cast<int>(o.integer("keep-checkpoints"));
  t.early_stopping = o.integer("early-stopping");
  t.trace = o.toggle("trace");
  t.config = settings_json(o);
  t.agrees = [&o](const std::string& setting, const std::string* saved) { return means_the_same(o, setting, saved); };
  return t;
}

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

void print_header(const OptionTable& o) {
  say("{}\n{}\n", build_text(), describe_cpu());
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

void check_division(const OptionTable& o, const std::vector<ClosedRule>& rules) {
  if (o.text("mlperf-division") != "closed") return;
  for (const ClosedRule& rule : rules) {
    const std::string& text = rule.found.empty() ? o.text(rule.flag) : rule.found;
    if (!rule.kept)
      fail_usage(fmt::format("{} closed: expected {} {}, found {}", o.name("mlperf-division"), o.name(rule.flag),
                             rule.expected, text.empty() ? "none" : text));
  }
}

void print_summary(const ProgramOptions& p, const ProgramPlans& plans, const NetworkCounts& counts, bool explained) {
  say("{:<34} {:<30} {:<30} {:>10} {:<14} {}\n", "node", "first input", "output", "GFLOP", "kernel", "why");
  for (const PlannedNode& node : plans.step.nodes) {
    const auto desc = [&](const std::vector<ValueId>& ids) {
      return ids.empty() ? std::string("-") : plans.step.values[static_cast<size_t>(ids[0])].desc.str();
    };
    say("{:<34} {:<30} {:<30} {:>10.4f} {:<14} {}\n", node.name, desc(node.in), desc(node.out),
        double(node.flops) * 1e-9, node.kernel, node.why);
    if (explained && node.op.kind != OpKind::pack) {
      Problem problem{node.op, {}, {}, p.plan.device, p.plan.threads};
      for (ValueId id : node.in) problem.in.push_back(plans.step.values[static_cast<size_t>(id)].desc);
      for (ValueId id : node.out) problem.out.push_back(plans.step.values[static_cast<size_t>(id)].desc);
      say("{}", explain(kernel_list(), problem));
    }
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

Json settings_json(const OptionTable& o, const std::vector<std::string>& names) {
  Json json;
  for (const Option& option : o.all())
    if (names.empty() || std::find(names.begin(), names.end(), option.flag) != names.end()) {
      if (!is_text(option.value))
        fail_usage("--" + option.flag + " (" + option.origin + "): expected UTF-8, found other bytes");
      json[option.flag] = option.value;
    }
  return json;
}

void write_simulation(const std::string& folder, const std::string& program, const OptionTable& o) {
  Json made{{"program", program}, {"version", build_text()}};
  for (const Option& option : o.all()) made["settings"][option.flag] = option.value;
  // A path that is no UTF-8 is no reason to lose a set behind hours of work.
  write_text(folder + "/simulation.json", made.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
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
  if (o.toggle("summary") || o.toggle("explain")) print_summary(program, *plans_, counts, o.toggle("explain"));
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
  trainer_ = std::make_unique<Trainer>(*program_, task, ranks_, std::move(trainer));
  const Outcome outcome = trainer_->run();
  if (ranks_.root() && !options_.text("save").empty()) save_weights(options_.text("save"), *program_);
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

void load_weights(const std::string& path, Program& program, Needed needed) {
  std::map<std::string, NamedArray> arrays;
  for (NamedArray& a : read_safetensors(path)) arrays.emplace(a.name, std::move(a));
  const std::vector<std::string> known = weight_names(program);
  for (const std::string& name : needed == Needed::all ? known : program.parameters())
    if (!arrays.count(name)) fail_data(path + ": expected tensor " + name + ", found none");
  for (const auto& [name, array] : arrays) {
    if (name.ends_with(".num_batches_tracked")) continue;  // PyTorch's own counter
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail_data(path + ": tensor " + name + " is no parameter of this network");
    if (program.store().fills(name)) from_torch(array, program.store().get(name), path);
  }
  program.to_device();
}

void save_weights(const std::string& path, Program& program) {
  program.to_host();
  std::vector<NamedArray> arrays;
  for (const std::string& name : weight_names(program))
    arrays.push_back(to_torch(name, program.store().get(name), program.store().rank(name)));
  write_safetensors(path, arrays);
}

std::vector<Option> prediction_options() {
  return {{"weights", "", "", "safetensors weights"},
          {"checkpoint", "", "", "checkpoint of the trainer, or its output folder (newest intact one)"},
          {"split", "", "auto",
           "train, validation or test, or all files below data-dir; auto = validation where it exists, else train"}};
}

std::filesystem::path split_folder(const OptionTable& o) {
  const std::filesystem::path root(o.text("data-dir"));
  const std::string& split = o.text("split");
  if (split != "auto" && split != "all" && split != "train" && split != "validation" && split != "test")
    fail_usage("--split: expected auto, all, train, validation or test, found " + split);
  if (root.empty()) fail_usage("--data-dir is required");
  if (split == "all" || is_regular_file(root)) return root;
  // Beside train/ there may be samples for a test, and what runs wrote.
  for (const char* part : {"validation", "train"})
    if (split == "auto" && is_directory(root / part)) return root / part;
  if (split == "auto") return root;
  return root / split;
}

TrainedState::TrainedState(const OptionTable& o) : path_(o.text("weights")) {
  if (path_.empty() == o.text("checkpoint").empty())
    fail_usage("exactly one of --weights and --checkpoint is required");
  if (!path_.empty()) return;
  checkpoint_ = named_checkpoint(o.text("checkpoint"));
  identity_ = Json::parse(checkpoint_->meta()).value("identity", Json::object());
}

void TrainedState::expect_settings(const OptionTable& o, const std::vector<std::string>& settings,
                                   const SameNetwork& same) const {
  OptionTable trained = o;  // with the checkpoint's word for each setting, as if nobody had asked for anything
  for (const std::string& key : settings) trained.set(key, o.text(key), "default");
  std::string different;
  for (const std::string& key : settings) {
    const Json saved = identity_.value(key, Json());
    if (!saved.is_string() || o.agrees(key, saved.get<std::string>())) continue;
    trained.set(key, saved.get<std::string>(), "default");
    different +=
        fmt::format("{}--{} {}, found {}", different.empty() ? "" : "; ", key, saved.dump(), Json(o.text(key)).dump());
  }
  if (!different.empty() && !(same && same(trained)))
    fail_usage(fmt::format("{}: trained with {}", checkpoint_->path(), different));
}

void TrainedState::restore(const OptionTable& o, Program& program, const std::vector<std::string>& settings,
                           const SameNetwork& same) {
  const std::vector<std::string> names = weight_names(program);
  const auto copy = [&](const StateStore& from, StateStore& to) {
    for (const std::string& name : names) to.get(name).copy_from(from.get(name));
  };
  if (!weights_) {
    Tape tape;
    for (const std::string& name : names) tape.parameter(name, program.store().get(name).shape(), {});
    weights_ = std::make_unique<StateStore>();
    weights_->initialise(tape, 0);
    if (checkpoint_) {
      expect_settings(o, settings, same);
      checkpoint_->restore(*weights_);
      checkpoint_.reset();
    } else {
      load_weights(path_, program, Needed::all);
      copy(program.store(), *weights_);
    }
  }
  copy(*weights_, program.store());
  program.to_device();
}

}  // namespace convoy::apps
