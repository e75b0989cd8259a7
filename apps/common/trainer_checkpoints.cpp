// The trainer's checkpoints: what they hold beside the states, writing them, and going on from one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <vector>

#include "apps/common/fingerprint.h"
#include "apps/common/listing.h"
#include "apps/common/say.h"
#include "apps/common/trainer.h"
#include "apps/common/version.h"
#include "core/all_finite.h"
#include "core/passes/passes.h"
#include "io/checkpoint.h"
#include "io/crc32c.h"
#include "io/hdf5.h"

namespace convoy::apps {

void tell_samples(TrainerOptions& options, const std::vector<std::string>& paths, Ranks& ranks) {
  options.data_digest = files_digest(paths, ranks);
  if (ranks.root()) options.fingerprint = fingerprint(paths);
}

std::string Trainer::meta() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const EpochRecord& r : history_)
    if (r.epoch < epoch_)  // an epoch cut short by --max-steps is not part of what a resume continues
      rows.push_back({r.epoch, r.learning_rate, r.loss, r.validation.loss, r.validation.metric, r.seconds});
  return nlohmann::json{{"epoch", epoch_},
                        {"step_in_epoch", step_in_epoch_},
                        {"step", step_},
                        {"epoch_loss", epoch_loss_},
                        {"history", rows},
                        {"identity", o_.identity},
                        {"config", o_.config},
                        {"version", version_text()},
                        {"kernels", kernels()},
                        {"ranks", ranks_.size()},
                        {"samples_per_step", samples_per_step()},
                        {"given", o_.given},
                        {"data", o_.fingerprint},
                        {"bucket_bytes", program_.options().training.averaging.bucket_bytes}}
      .dump();
}

void Trainer::expect_same_run(const nlohmann::json& meta, const std::string& path) const {
  const std::string asked = o_.resume ? "--resume" : "--checkpoint";
  const bool other_ranks = meta.value("ranks", 1) != ranks_.size();
  for (const auto& [key, value] : o_.identity.items()) {
    if (other_ranks && std::find(o_.per_rank.begin(), o_.per_rank.end(), key) != o_.per_rank.end()) continue;
    nlohmann::json saved = meta["identity"].value(key, nlohmann::json());
    // What its version did not count as part of the identity is in the echo of all settings.
    if (saved.is_null() && meta.contains("config")) saved = meta["config"].value(key, nlohmann::json());
    const std::string text = saved.is_string() ? saved.get<std::string>() : std::string();
    const bool has_meaning = o_.agrees && (saved.is_string() || (saved.is_null() && value.is_string()));
    if (saved != value && !(has_meaning && o_.agrees(key, saved.is_null() ? nullptr : &text))) {
      if (key == "threads") {
        say(stderr,
            "warning: {}: was written with {} threads, found {}: from here on the run's numbers may differ in their "
            "last bits\n",
            path, saved.dump(), value.dump());
        continue;
      }
      const auto source = o_.decided_by.find(key);
      fail_usage(fmt::format("{}: {}: setting {}{}: expected {}, found {}", asked, path, key,
                             source == o_.decided_by.end() ? "" : " (from " + source->second + ")", saved.dump(),
                             value.dump()));
    }
  }
  // Gradients that lag are kept by the bucket.
  const TrainingOptions& training = program_.options().training;
  const int64_t bytes = training.averaging.bucket_bytes, bytes_before = meta.value("bucket_bytes", bytes);
  if (training.lag > 0 && bytes != bytes_before)
    fail_usage(fmt::format("{}: {}: --bucket-mib: with --gradient-lag expected the {} MiB of its run, found {}", asked,
                           path, double(bytes_before) / (1 << 20), double(bytes) / (1 << 20)));
  expect_same_samples(meta.value("data", nlohmann::json()), o_.fingerprint, asked + ": " + path);
}

std::string Trainer::kernels() const {
  std::string text;
  for (const Plan* plan : {&program_.step().plan(), &program_.evaluate().plan()})
    for (const PlannedNode& node : plan->nodes) {
      // Copies, packs, messages and what a team divides change no bit; cuDNN's plan is the fastest of the day.
      const OpDef& def = op_def(node.op.kind);
      if (original_name(node.name) != node.name || node.op.kind == OpKind::pack || def.updated_inputs > 0 ||
          node.kernel == "communicator")
        continue;
      text += node.name + " " + node.kernel + " " + (node.kernel.starts_with("cudnn") ? "" : node.detail) + "\n";
    }
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text))));
}

void Trainer::warn_of_other_kernels(const nlohmann::json& meta, const std::string& path) const {
  if (meta.value("ranks", 1) != ranks_.size()) return;
  const std::string ours = kernels(), theirs = meta.value("kernels", ours),
                    version = meta.value("version", version_text());
  if (theirs == ours && version == version_text()) return;
  say(stderr, "warning: {}: was written {}: from here on the run's numbers may differ in their last bits\n", path,
      theirs == ours ? "by " + version
                     : "by a run on other kernels (another CPU or version, other variables or tables)");
}

void Trainer::take(const nlohmann::json& meta) {
  const auto number = [](const nlohmann::json& v) { return v.is_null() ? NAN : v.get<double>(); };  // JSON has no NaN
  for (const auto& r : meta.at("history"))
    history_.push_back(
        {r.at(0), number(r.at(1)), number(r.at(2)), {number(r.at(3)), number(r.at(4))}, number(r.at(5))});
  epoch_ = meta.at("epoch"), step_in_epoch_ = meta.at("step_in_epoch"), step_ = meta.at("step");
  epoch_loss_ = number(meta.at("epoch_loss"));
  say(", {} epochs and {} steps in\n", epoch_, step_);
  const int64_t before = meta.value("samples_per_step", samples_per_step());
  if (const int ranks = meta.value("ranks", ranks_.size()); ranks != ranks_.size())
    say("the number of ranks changes from {} to {}, the samples of a step from {} to {}\n", ranks, ranks_.size(),
        before, samples_per_step());
  if (before == samples_per_step()) return;
  if (step_in_epoch_ > 0) {
    // The position counts samples; of a step that is cut through, the rest is left out.
    const int64_t seen = step_in_epoch_ * before,
                  steps = std::min((seen + samples_per_step() - 1) / samples_per_step(), steps_per_epoch());
    epoch_loss_ *= double(steps) / double(step_in_epoch_);
    step_in_epoch_ = steps;
  }
  if (!o_.count_steps.empty())
    say("{} count steps of {} samples from here on, of which {} lie behind\n", fmt::join(o_.count_steps, " and "),
        samples_per_step(), position());
}

void Trainer::resume() {
  std::string text, loaded;
  if (const auto checkpoint = std::move(o_.checkpoint)) {
    loaded = checkpoint->path();
    text = checkpoint->meta();
    nlohmann::json meta = nlohmann::json::parse(text);
    if (o_.correct) o_.correct(meta);
    expect_same_run(meta, checkpoint->path());
    warn_of_other_kernels(meta, checkpoint->path());
    checkpoint->restore(program_.store());
    say("resuming from {}", checkpoint->path());
  }
  text = ranks_.broadcast_text(text);
  if (text.empty()) return;
  take(nlohmann::json::parse(text));
  // It may be found to have diverged. Another run's files stay as they are.
  std::error_code ignored;
  const bool own = std::filesystem::equivalent(std::filesystem::path(loaded).parent_path(), o_.output_dir, ignored);
  if (own) newest_ = loaded;
  saved_step_ = step_;
  std::vector<std::string> states;
  for (const auto& [name, tensor] : program_.store().entries()) states.push_back(name);
  ranks_.broadcast_states(program_, states);
  ranks_.meet_team();
}

void Trainer::save(int keep) {
  settle();
  program_.to_host();
  share_statistics();
  unsaved_ = false;
  saved_step_ = step_;
  if (!has_hdf5()) return;  // said when the run started
  if (ranks_.root()) {
    const auto start = std::chrono::steady_clock::now();
    ranks_.set_busy(true);
    const nlohmann::json number = {{"step_num", step_}};
    mllog_.start("save_start", number);
    // Gradients that wait and are not finite end the run in the next step: the checkpoint before this one stays.
    if (!lagged_finite()) ++keep;
    std::string undeleted;
    newest_ = save_checkpoint(o_.output_dir, step_, program_.store(), meta(), keep, &undeleted);
    if (!undeleted.empty()) say(stderr, "warning: {}\n", undeleted);
    mllog_.end("save_stop", number);
    ranks_.set_busy(false);
    checkpoint_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    note("checkpoint", start);
  }
  // Who waits for the file must not seem to wait for gradients in the next step.
  ranks_.world().barrier();
}

bool Trainer::lagged_finite() const {
  const auto& states = program_.store().entries();
  return std::all_of(states.begin(), states.end(),
                     [](const auto& state) { return !state.first.ends_with(".lagged") || all_finite(state.second); });
}

void Trainer::set_newest_aside(std::string_view why) {
  if (newest_.empty()) return;
  std::error_code failed;
  try {
    const std::vector<CheckpointFile> all = list_checkpoints(o_.output_dir);
    // The only one holds more than a start from the beginning.
    if (std::none_of(all.begin(), all.end(), [&](const CheckpointFile& file) { return file.step < saved_step_; }))
      return;
    std::filesystem::rename(newest_, newest_ + ".diverged", failed);
  } catch (const std::exception& error) {  // a folder that cannot be listed
    return say(stderr, "warning: {}\n", error.what());
  }
  if (failed) return say(stderr, "warning: {}: cannot be set aside: {}\n", newest_, failed.message());
  say(stderr, "warning: {0}: {1}: set aside as {0}.diverged\n", newest_, why);
}

}  // namespace convoy::apps
