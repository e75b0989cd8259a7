#include "apps/common/run_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/common/fingerprint.h"
#include "apps/common/say.h"
#include "core/parallel.h"
#include "core/text.h"
#include "io/file.h"
#include "kernels/device/device.h"

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
      {"n-train", "data.n_train", "0",
       "training samples (0 = all found; of --data dummy 256 volumes, or images for four steps)", K::integer},
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

void check_division(const OptionTable& o, const std::vector<ClosedRule>& rules) {
  if (o.text("mlperf-division") != "closed") return;
  for (const ClosedRule& rule : rules) {
    const std::string& text = rule.found.empty() ? o.text(rule.flag) : rule.found;
    if (!rule.kept)
      fail_usage(fmt::format("{} closed: expected {} {}, found {}", o.name("mlperf-division"), o.name(rule.flag),
                             rule.expected, text.empty() ? "none" : text));
  }
}

Json settings_json(const OptionTable& o, const std::vector<std::string>& names) {
  Json json;
  for (const Option& option : o.all())
    if (names.empty() || std::find(names.begin(), names.end(), option.flag) != names.end()) {
      if (!is_utf8(option.value))
        fail_usage("--" + option.flag + " (" + option.origin + "): expected UTF-8, found other bytes");
      json[option.flag] = option.value;
    }
  return json;
}

}  // namespace convoy::apps
