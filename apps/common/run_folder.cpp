#include "apps/common/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "apps/common/run_settings.h"
#include "apps/common/say.h"
#include "core/error.h"
#include "core/parallel.h"
#include "io/climate.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;

/// What one start of a run is asked for, and what depends on its machine, is no business of the next.
const std::set<std::string> of_one_start{
    "output-dir", "resume",      "checkpoint",    "max-steps",    "init",
    "save",       "summary",     "dry-run",       "explain",      "profile",
    "trace",      "print-fom",   "baseline",      "threads",      "mlperf-cache-clear",
    "comm-table", "comm-thread", "share-weights", "comm-timeout", "ranks-per-node",
    "peer-access"};

/// What the run that wrote a checkpoint found by itself, by flag, and which decides bits at the same number of ranks:
/// threads, and where gradients were cut into buckets by measured times.
Json found_settings(const Json& meta, int ranks) {
  Json settings = Json::object();
  if (meta.value("ranks", 1) != ranks) return settings;
  const Json threads = meta.at("identity").value("threads", Json()), bytes = meta.value("bucket_bytes", Json());
  if (!std::getenv("OMP_NUM_THREADS")) {
    if (threads.is_number_integer()) settings["threads"] = threads.dump();
    if (threads.is_array() && std::ssize(threads) == ranks)
      for (const Json& of_rank : threads) settings["threads"].push_back(of_rank.dump());
  }
  if (bytes.is_number_integer() && ranks > 1)
    settings["bucket-mib"] = fmt::format("{}", double(bytes.get<int64_t>()) / (1 << 20));
  return settings;
}

/// Throws Error(usage) where the weights would take the place of a file that the run reads or writes.
void refuse_in_use(const OptionTable& o, const std::string& save) {
  std::vector<std::string> read{o.file()};
  for (const char* flag : {"init", "checkpoint", "stats", "tuned", "comm-table"})
    if (o.has(flag)) read.push_back(o.text(flag));
  if (o.has("stats") && !o.text("data-dir").empty()) read.push_back(find_stats(o.text("data-dir"), {}));
  InputFiles(read).refuse(save, "--save");
  const std::filesystem::path path = std::filesystem::absolute(save).lexically_normal(),
                              own = std::filesystem::absolute(o.text("output-dir") + "/").lexically_normal();
  static const std::set<std::string> written{"metrics.jsonl", "history.csv",   "summary.json", "mlperf.log",
                                             "trace.json",    "profile.jsonl", "loss.svg",     "scatter.svg"};
  if (path.parent_path() == own.parent_path() && written.contains(path.filename().string()))
    fail_usage("--save: " + save + ": expected a name that the run itself does not write");
}

}  // namespace

RunFolder::RunFolder(OptionTable& o, Ranks& ranks) {
  const std::string folder = o.text("output-dir");
  const bool resume = o.toggle("resume"), looks = only_looks(o);
  const std::string& from = o.text("checkpoint");
  const bool continues = resume || !from.empty();
  if (folder.empty()) fail_usage(o.name("output-dir") + ": expected a folder, found none");
  o.refuse_idle({{"init", from.empty(), "a run that continues a checkpoint"}});
  Json saved = Json::object(), found = Json::object();
  if (ranks.root()) {
    ranks.set_busy(true);
    if (!looks) {
      lock_.emplace(folder), remove_unfinished(folder);
      std::error_code absent;
      std::filesystem::remove(lost_mark(o), absent);  // of an earlier run
    }
    if (const std::string& save = o.text("save"); !looks && !save.empty()) {
      if (named_like_checkpoint(std::filesystem::path(save).filename().string()))
        fail_usage("--save: " + save + ": expected another name than a checkpoint's");
      refuse_in_use(o, save);
      expect_writable(save, "--save");
    }
    if (!looks && !resume && !list_checkpoints(folder).empty())
      fail_usage(folder +
                 " holds checkpoints of another run: continue it with --resume, or choose another --output-dir");
    std::vector<std::string> damaged;
    if (resume) checkpoint_ = newest_checkpoint(folder, &damaged);
    if (!looks) set_aside(damaged);
    if (!checkpoint_ && !from.empty()) checkpoint_ = named_checkpoint(from);
    if (checkpoint_) {
      const Json meta = Json::parse(checkpoint_->meta());
      saved = meta.value("given", Json::object()), found = found_settings(meta, ranks.size());
    }
    for (const auto& [flag, text] : saved.items()) found.erase(flag);  // what was given goes ahead
    saved.update(found);
    if (resume && !checkpoint_) say("no checkpoint in {}: starting from the beginning\n", folder);
    ranks.set_busy(false);
  }
  if (continues) saved = Json::parse(ranks.broadcast_text(saved.dump()));
  if (!o.text("init").empty() && ranks.broadcast_text(checkpoint_ ? "found" : "") == "found") {
    o.set("init", "", "default");  // a job script may name it for the first start, and the file may be gone
    say("--init is of the first start: weights are the checkpoint's\n");
  }
  std::string taken;
  for (const auto& [flag, text] : saved.items()) {
    if (!o.has(flag) || o.is_set(flag)) continue;
    if (text.is_object()) o.set(flag, text.value("outdone", std::string()), "default");
    const Json& own = text.is_array() ? text.at(static_cast<size_t>(ranks.rank())) : text;
    if (!own.is_string()) continue;
    if (flag == "threads" && std::stoll(own.get<std::string>()) > default_threads()) continue;  // may not run here
    o.set(flag, own.get<std::string>(), "checkpoint");
    if (!o.is_standard(flag)) taken += fmt::format(" --{} {}", flag, o.text(flag));
  }
  if (!taken.empty()) say("settings of the checkpoint:{}\n", taken);
  // Of two names of one setting one counts; the other's text belongs to the run all the same.
  const auto outdone = [&o](const std::string& flag) {
    for (const auto& [one, other] : {std::pair{"lr", "optimizer-lr"},
                                     {"size", "sample-shape"},
                                     {"size", "input-shape"},
                                     {"targets", "target-shape"}})
      if (o.has(one) && o.has(other) &&
          ((flag == one && o.overrides(other, one)) || (flag == other && o.overrides(one, other))))
        return true;
    return false;
  };
  const auto was_found = [&](const Option& option) {
    return option.origin == "checkpoint" && found.contains(option.flag);
  };
  for (const Option& option : o.all())
    if (o.is_set(option.flag) && !of_one_start.count(option.flag) && !was_found(option))
      given_[option.flag] = outdone(option.flag) ? Json{{"outdone", option.value}} : Json(option.value);
}

}  // namespace convoy::apps
