// Applies trained weights to climate images of any legal size: classes per pixel as HDF5 and pictures, IoU where there
// are labels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "apps/common/climate_setup.h"
#include "apps/common/onnx_output.h"
#include "apps/common/ranks.h"
#include "apps/common/run.h"
#include "apps/common/say.h"
#include "apps/common/trained_state.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "kernels/kernel_list.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;

std::vector<Option> option_list() {
  std::vector<Option> list = climate_model_options();
  append(list, prediction_options());
  list.push_back({"out", "", "results/masks", "folder for NAME.h5 (data set labels, u8) and NAME.png"});
  list.push_back(
      {"pictures", "", "true", "also draw the vapour with predicted and true classes", Option::Kind::toggle});
  list.push_back(onnx_option());
  return list;
}

/// Where an image's mask and picture go, without their extensions.
std::string mask_base(const OptionTable& o, const ClimateRef& ref) {
  const std::string folder = folder_inside(o.text("data-dir"), ref.path);
  const std::string number = ref.format == ClimateFormat::sharded ? fmt::format("-{:03d}", ref.index) : "";
  // --out stays as it was given: it may lead through symbolic links.
  return (fs::path(o.text("out")) / (fs::path(folder) / fs::path(ref.path).stem()).lexically_normal()).string() +
         number;
}

void write_mask(const std::string& path, const ImageShape& shape, std::span<const uint8_t> classes) {
  write_atomically(path, [&](const std::string& temporary) {
    Hdf5File file(temporary, Hdf5File::Mode::create);
    const int64_t extents[] = {shape.height, shape.width};
    file.write("labels", DType::u8, extents, std::as_bytes(classes));
    file.close();
  });
}

/// Settings that a network must be given again as it was trained with: shapes of weights do not show all of them.
std::vector<std::string> network_settings(const OptionTable& o) {
  std::vector<std::string> settings = {"model",   "batch-norm",   "output-stride",  "width-divisor", "low-level-relu",
                                       "decoder", "decoder-relu", "resize-corners", "deconv-crop",   "blocks",
                                       "growth",  "filter",       "first-filters",  "channels"};
  // How batch norm normalises changes no weight, and checkpoints hold running statistics either way: what is asked for
  // is used.
  if (!o.is_set("batch-norm-evaluation")) settings.emplace_back("batch-norm-evaluation");
  return settings;
}

/// The program of a plan, with the trained state.
std::unique_ptr<Program> trained_program(const OptionTable& o, const ClimateOptions& options, ProgramPlans plans,
                                         TrainedState& state) {
  auto program = make_program(o, std::move(plans), options, 0);
  state.restore(o, *program, network_settings(o), [&](OptionTable trained) {
    // Checkpoints from before this setting had a value of its own: only Tiramisu did without.
    if (trained.text("batch-norm").empty())
      trained.set("batch-norm", trained.text("model") == "tiramisu" ? "off" : "on", "default");
    fill_climate_defaults(trained);
    const std::string evaluation = "batch-norm-evaluation";
    if (o.is_set(evaluation)) trained.set(evaluation, o.text(evaluation), "default");
    return climate_config(trained) == climate_config(o) && trained.numbers("channels") == o.numbers("channels");
  });
  if (units_begin_with_factor(options.model) && !state.identity().empty() && !state.identity().contains(units_begin))
    fail_usage(
        (o.text("checkpoint").empty() ? o.text("weights") : o.text("checkpoint")) +
        ": trained by an earlier version, whose DeepLab without batch norm had a ReLU ahead of its units; expected "
        "none, as in the record runs");
  return program;
}

/// What may be meant, but seldom is: images that are read in another way than those of the training.
void warn_of_other_reading(const OptionTable& o, const ClimateStats& stats, const nlohmann::json& identity) {
  for (const char* setting : {"downsample", "downsampling-mode"})
    if (const auto saved = identity.value(setting, nlohmann::json());
        saved.is_string() && !o.agrees(setting, saved.get<std::string>()))
      say(stderr, "warning: trained with --{} {}, found {}\n", setting, saved.get<std::string>(), o.text(setting));
  const std::string none = statistics_digest({}), ours = statistics_digest(stats),  // none: of shards
      theirs = identity.value("statistics", none);
  if (ours != none && theirs != none && ours != theirs)
    say(stderr, "warning: trained with other statistics: name those of the training set with --stats\n");
}

/// Throws Error(diverged) naming the image: the arg-max of NaN is a class, too.
void expect_finite(const Tensor& logits, const ClimateRef& ref) {
  const Shape& s = logits.shape();
  for (int64_t h = 0; h < s.h(); ++h)
    for (int64_t w = 0; w < s.w(); ++w)
      for (int64_t k = 0; k < s.c(); ++k)
        if (const double logit = logits.at(0, 0, h, w, k); !std::isfinite(logit))
          throw Error(ErrorKind::diverged,
                      fmt::format("{}: the prediction is not finite ({} in row {}, column {}): not all weights are, or "
                                  "the image leaves their range",
                                  ref.path, logit, h, w));
}

/// Images of one size after the other, each size in the order of the first of its images: a plan is for one size.
std::vector<std::vector<ClimateRef>> by_size(const std::vector<ClimateRef>& images) {
  std::vector<std::vector<ClimateRef>> groups;
  for (const ClimateRef& ref : images) {
    const auto same = [&](const std::vector<ClimateRef>& group) { return group[0].shape == ref.shape; };
    const auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end())
      groups.push_back({ref});
    else
      group->push_back(ref);
  }
  return groups;
}

/// What files of fields go through ahead of the network; nothing where they are shards, which did.
OnnxNormalisation normalisation(const ClimateReading& reading, const ClimateRef& image) {
  OnnxNormalisation n;
  if (is_normalised(image)) return n;
  std::vector<int64_t> channels = reading.channels;
  if (channels.empty())
    for (int64_t c = 0; c < image.shape.channels; ++c) channels.push_back(c);
  for (const int64_t c : channels) {
    n.low.push_back(reading.stats.low(static_cast<size_t>(c)));
    n.factor.push_back(reading.stats.factor(static_cast<size_t>(c)));
  }
  return n;
}

int predict_main(int argc, char** argv) {
  OptionTable o(option_list());
  if (!o.read(argc, argv,
              "Predicts cyclones and atmospheric rivers in climate images. Exit codes: 0 done, 1 run-time error, 2 "
              "usage, 3 data, 4 a prediction is not finite."))
    return 0;
  expect_single_task();
  fill_climate_defaults(o);
  if (fs::is_regular_file(o.text("data-dir"))) o.refuse_idle({{"split", false, "one file"}});
  const std::vector<ClimateRef> images = images_below(split_folder(o));
  std::vector<std::string> paths = files_of_settings(o);
  paths.insert(paths.end(), {o.text("stats"), find_stats(o.text("data-dir"), images)});
  for (const ClimateRef& ref : images) paths.push_back(ref.path);
  const InputFiles inputs(paths);
  expect_onnx_writable(o, inputs);
  refuse_inside(split_folder(o).string(), o.text("out"));
  for (const char* split : {"train", "validation", "test"})
    if (const fs::path samples = fs::path(o.text("data-dir")) / split; fs::is_directory(samples))
      refuse_inside(samples.string(), o.text("out"));
  std::map<std::string, std::string> image_of;
  for (const ClimateRef& ref : images) {
    const std::string base = mask_base(o, ref);
    inputs.refuse(base + ".h5");
    if (const auto [other, first] = image_of.emplace(base, ref.path); !first)
      fail_usage(fmt::format("{}: expected another name than {}'s, whose masks go to {}.h5, too", ref.path,
                             other->second, base));
  }
  const ClimateReading reading = climate_reading(o, climate_stats(o, images), false);
  // All of them, so that what is wrong shows ahead of the first mask.
  for (const ClimateRef& ref : images)
    if (ref.labelled()) expect_labels(ref, reading.label_set);
  std::vector<std::shared_ptr<const ClimateSource>> sources;
  for (const std::vector<ClimateRef>& group : by_size(images))
    sources.push_back(std::make_shared<ClimateSource>(group, reading));
  if (!o.text("onnx").empty() && sources.size() > 1)
    fail_usage(fmt::format("--onnx: expected images of one size, which the model keeps, found {}: {} and {}",
                           sources.size(), sources[0]->images()[0].path, sources[1]->images()[0].path));
  TrainedState state(o);
  report_plugins();
  std::vector<ClimateOptions> options;
  std::vector<ProgramPlans> plans;
  for (const auto& source : sources) {
    options.push_back(climate_program(o, *source, nullptr));
    plans.push_back(plan_evaluation(options.back(), kernel_list()));
  }
  std::vector<const Plan*> run;
  for (const ProgramPlans& p : plans) run.push_back(&p.evaluate);
  report_tuned(o, options.at(0).plan.selection.tuned, run);
  warn_of_idle_overrides(options.at(0).plan.selection, run);
  warn_of_plain_kernels(run);
  const bool pictures = o.toggle("pictures");
  SegmentationScore score;
  for (size_t s = 0; s < sources.size(); ++s) {
    const auto& source = sources[s];
    const auto made = trained_program(o, options[s], std::move(plans[s]), state);
    if (s == 0) warn_of_other_reading(o, reading.stats, state.identity());
    Program& program = *made;
    write_network(o, options[s], program, {{"logits"}, {"prediction"}},
                  normalisation(source->reading(), source->images()[0]),
                  is_normalised(source->images()[0])
                      ? "normalised fields: row, column, channel"
                      : "fields in the units of the data set, at the resolution of --downsample: row, column, channel");
    make_folders(o.text("out"));
    const auto write = [&](int64_t i, std::span<const uint8_t> classes) {
      const ClimateRef& ref = source->images()[static_cast<size_t>(i)];
      expect_finite(program.evaluate().tensor("logits"), ref);
      const std::string base = mask_base(o, ref);
      make_folders(fs::path(base).parent_path());
      write_mask(base + ".h5", {source->reading().height, source->reading().width, 1}, classes);
      if (pictures) write_comparison(base + ".png", ref, classes, source->reading());
    };
    score.add(evaluate_climate(program, source, loader_options(o), nullptr, write).score);
  }
  say("{} images, masks in {}\n", images.size(), o.text("out"));
  const int64_t labelled = score.samples, all = static_cast<int64_t>(images.size());
  if (labelled > 0)
    say("{}{}\n", iou_text(score), labelled < all ? fmt::format(" ({} labelled images)", labelled) : "");
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("climseg_predict", convoy::apps::predict_main, argc, argv);
}
