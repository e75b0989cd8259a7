#include "apps/common/trained_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/common/climate_setup.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;

}  // namespace

std::vector<std::string> weight_names(const Program& program) {
  std::vector<std::string> names = program.parameters();
  names.insert(names.end(), program.statistics().begin(), program.statistics().end());
  return names;
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

void save_weights(const std::string& path, Program& program, const Json& identity) {
  program.to_host();
  Json settings = Json::object();
  for (const char* key : {"model", "apply-log", "hidden-activation", "batch-norm", "output-stride", "width-divisor",
                          "low-level-relu", "decoder", "decoder-relu", "resize-corners", "deconv-crop", "blocks",
                          "growth", "filter", "first-filters", "channels", "batch-norm-evaluation", units_begin})
    if (identity.contains(key)) settings[key] = identity[key];
  std::vector<NamedArray> arrays;
  for (const std::string& name : weight_names(program))
    arrays.push_back(to_torch(name, program.store().get(name), program.store().rank(name)));
  write_safetensors(path, arrays, settings.empty() ? "" : settings.dump());
}

std::vector<Option> prediction_options() {
  return {{"weights", "", "", "safetensors weights"},
          {"checkpoint", "", "", "checkpoint of the trainer, or its output folder (newest intact one)"},
          {"split", "", "auto",
           "train, validation or test, or all files below data-dir; auto = validation where it exists, else train"}};
}

std::vector<std::string> files_of_settings(const OptionTable& o) {
  std::vector<std::string> files{o.text("weights"), o.text("checkpoint"), o.text("tuned")};
  for (const CheckpointFile& file : list_checkpoints(o.text("checkpoint"))) files.push_back(file.path);
  return files;
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

TrainedState::TrainedState(const OptionTable& o) : weights_path_(o.text("weights")) {
  if (weights_path_.empty() == o.text("checkpoint").empty())
    fail_usage("exactly one of --weights and --checkpoint is required");
  if (!weights_path_.empty()) {
    const Json note = Json::parse(read_safetensors_note(weights_path_), nullptr, false);
    if (note.is_object()) identity_ = note;
    return;
  }
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
    if (!saved.is_string()) continue;
    try {
      if (o.agrees(key, saved.get<std::string>())) continue;
      trained.set(key, saved.get<std::string>(), "default");
    } catch (const Error&) {  // a word of another program: different, too
    }
    different +=
        fmt::format("{}--{} {}, found {}", different.empty() ? "" : "; ", key, saved.dump(), Json(o.text(key)).dump());
  }
  const auto means_the_same = [&] {
    try {
      return same && same(trained);
    } catch (const Error&) {
      return false;
    }
  };
  if (!different.empty() && !means_the_same())
    fail_usage(fmt::format("{}: trained with {}", checkpoint_ ? checkpoint_->path() : weights_path_, different));
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
    expect_settings(o, settings, same);
    if (checkpoint_) {
      checkpoint_->restore(*weights_);
      checkpoint_.reset();
    } else {
      load_weights(weights_path_, program, Needed::all);
      copy(program.store(), *weights_);
    }
  }
  copy(*weights_, program.store());
  program.to_device();
}

}  // namespace convoy::apps
