// Applies trained weights to a data set: predictions per sample and the mean absolute error, the trainer's bit for bit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "apps/common/cosmoflow_setup.h"
#include "apps/common/onnx_output.h"
#include "apps/common/physical_scale.h"
#include "apps/common/run.h"
#include "apps/common/say.h"
#include "apps/common/trained_state.h"
#include "core/text.h"
#include "io/file.h"
#include "kernels/kernel_list.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;

std::vector<Option> option_list() {
  std::vector<Option> list = model_options();
  append(list, prediction_options());
  list.push_back({"out", "", "", "CSV file to write"});
  list.push_back(onnx_option());
  return list;
}

/// Physical parameters of every sample; empty where its file has none. Crops of a file share them.
std::vector<std::vector<float>> physical_parameters(const std::vector<SampleRef>& samples) {
  std::vector<std::vector<float>> physical;
  const SampleRef* previous = nullptr;
  for (const SampleRef& ref : samples) {
    const bool known = previous && ref.format == FileFormat::raw_hdf5 && ref.path == previous->path;
    physical.push_back(known ? physical.back() : read_physical(ref));
    previous = &ref;
  }
  return physical;
}

int predict_main(int argc, char** argv) {
  OptionTable o(option_list());
  if (!o.read(argc, argv,
              "Predicts cosmological parameters of samples. Exit codes: 0 done, 1 run-time error, 2 usage, 3 data, 4 a "
              "prediction is not finite."))
    return 0;
  fill_cosmoflow_defaults(o);
  expect_single_task();
  if (fs::is_regular_file(o.text("data-dir"))) o.refuse_idle({{"split", false, "one file"}});
  const ReadOptions read = read_options(o);
  const std::vector<SampleRef> samples = samples_below(split_folder(o).string(), read);
  std::vector<std::string> paths = files_of_settings(o);
  for (const SampleRef& ref : samples) paths.push_back(ref.path);
  const InputFiles inputs(paths);
  if (const std::string& out = o.text("out"); !out.empty()) {
    inputs.refuse(out);
    expect_writable(out, "--out");
  }
  expect_onnx_writable(o, inputs);
  const SampleShape shape = data_shape(o, samples, read);
  TrainedState state(o);
  const CosmoflowOptions options = program_options(o, shape);
  report_plugins();
  ProgramPlans plans = plan_evaluation(options, kernel_list());
  report_tuned(o, options.plan.selection.tuned, {&plans.evaluate});
  warn_of_idle_overrides(options.plan.selection, {&plans.evaluate});
  warn_of_plain_kernels({&plans.evaluate});
  const auto made = make_program(o, std::move(plans), options, 0);
  Program& program = *made;
  state.restore(o, program, {"model", "apply-log", "hidden-activation"});
  const CosmoflowReading reading = reading_options(o, shape);
  write_network(o, options, program, {{"prediction", 1 / double(reading.target_scale)}}, {},
                reading.take_channel == 0 ? "counts of particles per voxel: z, y, x, the first channel alone"
                                          : "counts of particles per voxel: z, y, x, channel");
  const Predictions p = predict(program, samples, reading, loader_options(o));

  const auto names = target_names(p.targets);
  std::string csv = "file,index";
  for (const std::string& name : names)
    csv += fmt::format(",{0}_true,{0}_predicted,{0}_true_physical,{0}_predicted_physical", name);
  csv += "\n";
  std::vector<double> physical_error(static_cast<size_t>(p.targets));
  const std::vector<std::vector<float>> physical = physical_parameters(samples);
  const bool assumed = std::all_of(physical.begin(), physical.end(), [](const auto& own) { return own.empty(); });
  const std::vector<PhysicalScale> scales = physical_scales(p.truth, p.targets, physical);
  for (int64_t i = 0; i < p.count(); ++i) {
    const SampleRef& ref = samples[static_cast<size_t>(i)];
    const std::vector<float>& own = physical[static_cast<size_t>(i)];
    csv += fmt::format("{},{}", csv_field(ref.path), ref.index);
    for (int64_t t = 0; t < p.targets; ++t) {
      const auto at = static_cast<size_t>(i * p.targets + t);
      const PhysicalScale& scale = scales[static_cast<size_t>(t)];
      const double guess = scale(p.predicted[at]),
                   truth = static_cast<size_t>(t) < own.size() ? own[static_cast<size_t>(t)] : scale(p.truth[at]);
      physical_error[static_cast<size_t>(t)] += std::abs(guess - truth) / double(p.count());
      csv += fmt::format(",{:.9g},{:.9g},{:.9g},{:.9g}", p.truth[at], p.predicted[at], truth, guess);
    }
    csv += "\n";
  }
  say("{} samples, MAE {}\n", p.count(), p.mae());
  for (int64_t t = 0; t < p.targets; ++t)
    say("  {:<10} MAE {:.6f} +- {:.6f} (unit range), {:.6g} (physical)\n", names[static_cast<size_t>(t)], p.mae(t),
        p.mae_error(t), physical_error[static_cast<size_t>(t)]);
  if (assumed) say("no sample has physPar: physical values assume labels of +-10 % around the centres\n");
  if (!o.text("out").empty()) write_text(o.text("out"), csv);
  const auto wrong = std::find_if(p.predicted.begin(), p.predicted.end(), [](float v) { return !std::isfinite(v); });
  if (wrong != p.predicted.end())
    throw Error(
        ErrorKind::diverged,
        fmt::format("{}: the prediction is not finite ({}): not all weights are, or the sample leaves their range",
                    samples[static_cast<size_t>((wrong - p.predicted.begin()) / p.targets)].path, *wrong));
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("cosmoflow_predict", convoy::apps::predict_main, argc, argv);
}
