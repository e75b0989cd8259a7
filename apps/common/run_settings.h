// Settings that all training and prediction programs share: their table, and what they make of a plan, a device, a
// loader and the loop.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/run_folder.h"
#include "apps/common/trainer.h"
#include "core/device.h"
#include "core/error.h"
#include "io/loader.h"
#include "models/program.h"

namespace convoy::apps {

std::vector<Option> run_options();  ///< compute type, kernels, threads, prefetching
/// The training loop, its files and reports; `unit` is what the validation split keeps together.
std::vector<Option> loop_options(const std::string& output_dir, const std::string& unit);
inline void append(std::vector<Option>& list, const std::vector<Option>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

/// What a setting's text stands for; throws Error(usage) listing the choices.
template <class T>
T choose(const OptionTable& o, const std::string& flag, const std::vector<std::pair<std::string, T>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == o.text(flag)) return value;
    names += (names.empty() ? "" : ", ") + name;
  }
  fail_usage(o.name(flag) + ": expected one of " + names + "; found " + o.text(flag));
}

/// Whether the program only shows what it would do: --summary, --explain, --dry-run.
bool only_looks(const OptionTable& options);
/// A number of [0, 1); throws Error(usage) for any other.
double dropout_rate(const OptionTable& options);

/// Keeps the first --n-train (or --n-valid) samples; 0 keeps all.
template <class Ref>
void limit(std::vector<Ref>& samples, const OptionTable& o, const char* flag) {
  const int64_t wanted = o.integer(flag), found = static_cast<int64_t>(samples.size());
  if (wanted > found)
    fail_data(o.name(flag) + ": asked for " + std::to_string(wanted) + " samples, found " + std::to_string(found) +
              " (0 takes all)");
  if (wanted > 0) samples.resize(static_cast<size_t>(wanted));
}

/// What --device names, opened once; null for the CPU. Without a number it is that of this process's place on its node
/// (place_on_devices, else 0), in turns where there are fewer devices.
std::shared_ptr<Device> run_device(const OptionTable& options);
void place_on_devices(int place);
/// A program on that device, or on the CPU, where `shared` is the team's memory.
std::unique_ptr<Program> make_program(const OptionTable& options, ProgramPlans plans, const ProgramOptions& program,
                                      uint64_t seed, const std::shared_ptr<Buffer>& shared = nullptr);
/// Compute type, passes and plan; opens the device that the plan is for.
void apply_run_options(const OptionTable& options, ProgramOptions& program);
/// Says where validation samples come from in a --data-dir without a folder for them. Throws what sample_folders
/// throws, Error(usage) where --valid-share has no effect, and where what a run writes would lie among the samples that
/// it reads.
void check_data_folder(const OptionTable& options);
LoaderOptions loader_options(const OptionTable& options);
/// The same for the training samples: this rank's share, in an order by --seed, or with --no-shuffle as they are.
LoaderOptions training_loader(const OptionTable& options, const Ranks& ranks);
/// TrainerOptions::agrees by a program's settings.
bool means_the_same(const OptionTable& options, const std::string& setting, const std::string* saved);
/// Everything but rate, loader, identity and data; takes the folder's checkpoint.
TrainerOptions trainer_options(const OptionTable& options, RunFolder& folder);

/// What the rules of MLPerf HPC's closed division fix.
struct ClosedRule {
  std::string flag;
  bool kept;
  std::string expected;
  std::string found{};  ///< empty: the flag's text
};
/// Throws Error(usage) for the first one that is not kept where --mlperf-division is closed.
void check_division(const OptionTable& options, const std::vector<ClosedRule>& rules);
/// Values of the named settings, of all when none are named.
nlohmann::json settings_json(const OptionTable& options, const std::vector<std::string>& names = {});

}  // namespace convoy::apps
