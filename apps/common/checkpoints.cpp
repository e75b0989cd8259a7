#include "apps/common/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/common/say.h"
#include "core/error.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

/// Throws Error(data) naming what is wrong with the file's contents.
std::shared_ptr<const Checkpoint> read_checkpoint(const std::string& path) {
  auto checkpoint = std::make_shared<const Checkpoint>(path);
  const auto meta = nlohmann::json::parse(checkpoint->meta(), nullptr, false);
  if (!meta.is_object()) fail_data(path + ": expected a JSON object beside the states, found something else");
  for (const char* key : {"identity", "epoch", "step_in_epoch", "step", "epoch_loss", "history"})
    if (!meta.contains(key)) fail_data(path + ": expected " + key + " beside the states, found none");
  const auto expect = [&](const char* key, bool right, const char* what) {
    if (!right) fail_data(fmt::format("{}: {}: expected {}, found {}", path, key, what, meta[key].dump()));
  };
  const auto count = [&](const char* key) {
    expect(key, meta[key].is_number_unsigned() && meta[key] < (uint64_t{1} << 62), "a number of at least 0");
  };
  const auto number = [](const nlohmann::json& value) { return value.is_number() || value.is_null(); };
  for (const char* key : {"epoch", "step_in_epoch", "step"}) count(key);
  for (const char* key : {"ranks", "samples_per_step", "bucket_bytes"})
    if (meta.contains(key)) count(key);
  for (const char* key : {"identity", "given", "config"})
    if (meta.contains(key)) expect(key, meta[key].is_object(), "an object");
  expect("epoch_loss", number(meta["epoch_loss"]), "a number");
  const bool rows = meta["history"].is_array() &&
                    std::all_of(meta["history"].begin(), meta["history"].end(), [&](const nlohmann::json& row) {
                      return row.is_array() && row.size() >= 6 && row[0].is_number_integer() &&
                             std::all_of(row.begin(), row.end(), number);
                    });
  expect("history", rows, "rows of six numbers");
  return checkpoint;
}

}  // namespace

std::shared_ptr<const Checkpoint> newest_checkpoint(const std::string& folder, std::vector<std::string>* skipped) {
  std::string reasons;
  for (const CheckpointFile& file : list_checkpoints(folder)) {
    try {
      return read_checkpoint(file.path);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      if (const std::string why = why_withheld(file.path); !why.empty()) fail_data(file.path + ": " + why);
      say(stderr, "warning: skipping a damaged checkpoint: {}\n", error.what());
      if (skipped) skipped->push_back(file.path);
      reasons += (reasons.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!reasons.empty()) fail_data(fmt::format("{}: no checkpoint is intact: {}", folder, reasons));
  return nullptr;
}

std::shared_ptr<const Checkpoint> named_checkpoint(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return read_checkpoint(path);
  auto newest = newest_checkpoint(path);
  if (!newest) fail_data(path + ": expected checkpoint-*.h5, found none");
  return newest;
}

void set_aside(const std::vector<std::string>& damaged) {
  for (const std::string& path : damaged) {
    std::error_code failed;
    std::filesystem::rename(path, path + ".damaged", failed);
    if (failed) say(stderr, "warning: {}: cannot be renamed: {}\n", path, failed.message());
  }
}

void remove_unfinished(const std::string& folder) {
  if (!std::filesystem::is_directory(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code ignored;
    if (entry.path().extension() == ".tmp" && named_like_checkpoint(entry.path().stem().string()))
      std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace convoy::apps
