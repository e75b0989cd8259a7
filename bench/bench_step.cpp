// Times whole training steps from memory: seconds per step, per phase and per node.
#include <algorithm>
#include <chrono>

#include "bench/network.h"
#include "bench/provenance.h"
#include "bench/thread_shares.h"
#include "core/median.h"
#include "core/parallel.h"
#include "core/peak_memory.h"
#include "core/text.h"
#include "core/thread_limits.h"
#include "kernels/device/device.h"
#include "kernels/kernel_list.h"
#include "kernels/plugin_list.h"
#include "kernels/roofline/roofs.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"
#include "models/tuned_share.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

using Clock = std::chrono::steady_clock;

void fill(Executor& e) {
  const PhiloxStream random(1, 1);
  for (const char* name : {"x", "target"}) {
    const Tensor t = e.tensor(name);
    for (int64_t i = 0; i < t.shape().elements(); ++i) {
      if (t.dtype() == DType::i16)
        t.data<int16_t>()[i] = static_cast<int16_t>(static_cast<uint32_t>(i) * 2654435761u >> 30) /* counts 0..3 */;
      else if (t.dtype() == DType::u8)
        t.data<uint8_t>()[i] = static_cast<uint8_t>(i / 64 % 3) /* stripes of classes */;
      else
        t.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
    }
  }
}

/// On a device a step is replayed as a whole; for the times of its nodes it runs node by node.
void time_nodes(Executor& e, int64_t steps) {
  fill(e);
  e.set_eager(true);
  for (int64_t s = 0; s <= steps; ++s) {
    if (s == 1) e.reset_times();
    e.run();
  }
  e.set_eager(false);
}

/// A line per node: its time, rates, and share of the roof that bounds it.
void print_nodes(const Executor& e) {
  const Plan& plan = e.plan();
  const Roofs roofs = roofs_of(measure_ceilings(plan.device, plan.threads, 0.1));
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const PlannedNode& node = plan.nodes[i];
    const double s = e.times()[i].seconds / double(e.times()[i].runs);
    const Bound bound = bound_of_node(plan, node, roofs);
    std::printf("%-36s %-14s %-24s %9.4f ms %8.1f GFLOP/s %7.1f GB/s", node.name.c_str(), node.kernel.c_str(),
                node.detail.substr(0, 24).c_str(), 1e3 * s, double(node.flops) / s * 1e-9,
                double(node.bytes) / s * 1e-9);
    if (bound.seconds > 0) std::printf(" %6.1f%% of %s", 100 * bound.seconds / s, bound.name.c_str());
    std::printf("\n");
  }
}

/// What the command line tells all networks.
void set_common(const Arguments& a, DeviceKind device, ProgramOptions& o) {
  const auto compute = parse_dtype(a.text("compute"));
  if (compute != DType::f32 && compute != DType::bf16 && compute != DType::f16)
    fail_usage("--compute: expected f32, bf16 or f16, found " + a.text("compute"));
  o.compute = *compute;
  o.plan.threads = default_threads();
  o.plan.device = device;
  if (!a.text("kernel").empty())
    for (std::string_view part : split(a.text("kernel"), ','))
      o.plan.selection.overrides.push_back(parse_override(part));
  if (!a.text("tuned").empty()) o.plan.selection.tuned = TunedTable::load(a.text("tuned"));
  if (!a.flag("winograd")) o.plan.selection.excluded.push_back("winograd");
  // Whose regions are its own, and what may call it.
  if (a.flag("shares"))
    for (const char* kernel : {"onednn", "widened"}) o.plan.selection.excluded.push_back(kernel);
  o.plan.recompute = a.flag("recompute");
  o.sparse_gradients = a.flag("sparse-gradients");
  // No other network has weight gradients behind a fused pool: the plans are the same.
  if (a.given("sparse-gradients") && a.text("model") != "cosmoflow")
    fail_usage("--sparse-gradients has no effect on " + a.text("model"));
}

/// Weights of classes and Adam cost time in a step: with some of them, whatever their values.
void set_training(ClimateOptions& o) {
  o.loss.weights = {1.0, 2.0, 1.5};
  o.training.optimizer = OptimizerKind::adam;
}
void set_training(CosmoflowOptions&) {}

/// As JSON.
const char* truth(bool flag) {
  return flag ? "true" : "false";
}

/// The extents of a sample as JSON.
std::string size_of(const CosmoflowOptions& o) {
  return std::to_string(o.model.size);
}
std::string size_of(const ClimateOptions& o) {
  std::string text("\"");
  return text.append(std::to_string(o.model.height)).append("x").append(std::to_string(o.model.width)).append("\"");
}

/// What a line of JSON says first of a run.
std::string described(const Arguments& a, const Program& program, const std::string& device, const std::string& size) {
  std::string text = R"("framework":"convoy","machine":)" + json_string(describe_cpu());
  const auto add = [&](const char* name, const std::string& value) {
    text.append(",\"").append(name).append("\":").append(value);
  };
  add("model", json_string(a.text("model")));
  add("device", json_string(device));
  add("library", json_string(kernel_library_versions()));
  add("plugins", json_string(plugin_text()));
  add("compute", json_string(a.text("compute")));
  add("size", size);
  add("batch", std::to_string(program.options().batch));
  add("threads", std::to_string(default_threads()));
  add("winograd", truth(a.flag("winograd")));
  add("sparse_gradients", truth(program.options().sparse_gradients));
  add("recompute", truth(a.flag("recompute")));
  return text;
}

/// A line per node: the times of an even share and of the slowest thread; then the whole step as JSON.
void report_shares(const Arguments& a, Executor& e, int64_t steps, const std::string& step,
                   const std::string& made_by) {
  for (const PlannedNode& node : e.plan().nodes)
    if (node.kernel.starts_with("onednn") || node.kernel == "widened")
      fail_usage(node.name + ": expected a kernel of our own beside --shares, found " + node.kernel);
  ThreadShares shares(e);
  for (int64_t s = 0; s < steps + 1; ++s) {
    fill(e);
    shares.run_step();
  }
  const std::vector<ThreadShare> nodes = shares.of_nodes();
  ThreadShare all;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const PlannedNode& node = e.plan().nodes[i];
    const ThreadShare& of = nodes[i];
    all.even += of.even, all.slowest += of.slowest, all.regions += of.regions;
    if (a.flag("nodes") && of.slowest > 0)
      std::printf("%-36s %-18s %3lld regions  even %9.4f ms  slowest %9.4f ms  %5.1f%%\n", node.name.c_str(),
                  node.kernel.c_str(), static_cast<long long>(of.regions), 1e3 * of.even, 1e3 * of.slowest,
                  100 * of.even / of.slowest);
  }
  std::printf("{%s,\"even_seconds\":%.7f,\"slowest_seconds\":%.7f,\"share\":%.4f,\"regions\":%lld,%s}\n", step.c_str(),
              all.even, all.slowest, all.even / all.slowest, static_cast<long long>(all.regions), made_by.c_str());
}

int run(int argc, char** argv) {
  const Arguments a(argc, argv,
                    with_network_flags({{"compute", "f32", "f32, bf16 or f16"},
                                        {"device", "cpu", "cpu, cuda or cuda:N"},
                                        {"threads", "0", "0 = OMP_NUM_THREADS or all cores"},
                                        {"steps", "5", "timed steps, after one that is not"},
                                        {"kernel", "", "overrides node=kernel, comma-separated"},
                                        {"tuned", "", "table of measured choices"},
                                        {"winograd", "yes", "no: no Winograd convolutions"},
                                        {"sparse-gradients", "yes",
                                         "cosmoflow: no: weight gradients are summed over un-pooled gradients"},
                                        {"recompute", "no", "yes: values are computed again where that saves memory"},
                                        {"shares", "no",
                                         "yes: how evenly --threads threads would share the work; they run one after "
                                         "the other, on any machine, without oneDNN"},
                                        {"nodes", "yes", "no: leave out the per-node table"}}));
  const int threads = static_cast<int>(a.integer_within("threads", 0, 4096));
  expect_granted(threads);
  set_default_threads(threads ? threads : default_threads());
  const std::string made_by = provenance();  // the load is of before this run
  Network network = wanted_network(a);
  if (a.flag("shares") && a.text("device") != "cpu") fail_usage("--shares is about threads of a CPU");
  const DeviceChoice choice = parse_device(a.text("device"));
  std::shared_ptr<Device> device;
  if (choice.kind != DeviceKind::cpu) device = open_cuda_device(choice.ordinal);
  std::string size;
  Program program = std::visit(
      [&](auto& o) {
        set_common(a, choice.kind, o), set_training(o);
        size = size_of(o);
        ProgramPlans plans = plan_program(o, kernel_list());
        const std::string& table = a.text("tuned");
        if (!table.empty())
          std::fprintf(stderr, "%s\n",
                       describe_tuned(plans.all(), o.plan.selection.tuned, kernel_list(), table).c_str());
        return device ? Program(std::move(plans), o, 1, device) : Program(std::move(plans), o, 1);
      },
      network);
  const int64_t steps = a.integer_within("steps", 1);
  Executor& e = program.step();
  program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = 1e-4;
  const std::string step = described(a, program, device ? device->description() : "cpu", size);
  if (a.flag("shares")) {
    // A step whose gradients overflow would skip its updates.
    program.store().get(scale_state_name).data<double>()[int(ScaleField::scale)] = 1;
    report_shares(a, e, steps, step, made_by);
    return 0;
  }
  std::vector<double> seconds;
  if (device) {
    std::fprintf(stderr, "%s\n", device->description().c_str());
    if (a.flag("nodes")) time_nodes(e, steps);
  }
  // The first step touches its memory; on a device the second one is recorded.
  const int64_t untimed = device ? 2 : 1;
  for (int64_t s = 0; s < steps + untimed; ++s) {
    if (s == 0 || !device) fill(e);
    if (s == 1 && !device) e.reset_times();
    const auto start = Clock::now();
    // On a device the next inputs travel while a step runs.
    if (s == 0) e.stage_inputs();
    e.start(), e.inputs_free(), e.stage_inputs(), e.finish();
    if (s >= untimed) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  const double peak = peak_resident_mib();  // ahead of the ceilings' own memory
  if (a.flag("nodes")) print_nodes(e);
  std::printf("{%s,\"median_seconds\":%.7f,\"min_seconds\":%.7f,\"arena_mib\":%.1f,\"peak_mib\":%.1f,%s}\n",
              step.c_str(), median(seconds), *std::min_element(seconds.begin(), seconds.end()),
              double(e.plan().arena_bytes) / (1 << 20), peak, made_by.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench_step", run, argc, argv);
}
