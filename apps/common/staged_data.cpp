#include "apps/common/staged_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "apps/common/mllog.h"
#include "apps/common/run_settings.h"
#include "apps/common/say.h"
#include "apps/common/staging.h"
#include "io/file.h"

namespace convoy::apps {

namespace fs = std::filesystem;

namespace {

/// This node's folder; empty where nothing is to be staged.
std::string stage_folder(const OptionTable& o, Ranks& ranks) {
  std::string to = o.text("stage-dir");
  if (only_looks(o)) return "";
  if (to.empty()) {
    if (o.toggle("stage-share")) fail_usage(o.name("stage-share") + " has no effect without --stage-dir");
    return "";
  }
  // Where nodes share their scratch, each takes a folder of its own.
  if (const size_t at = to.find("{node}"); at != std::string::npos) to.replace(at, 6, std::to_string(ranks.node()));
  if (o.text("data-dir").empty() || o.text("data") == "dummy")
    fail_usage("--stage-dir has no effect without --data-dir");
  if (fs::is_regular_file(o.text("data-dir")))
    fail_usage("--stage-dir: expected a folder as --data-dir, found the file " + o.text("data-dir"));
  // Staging looks through all of its folder.
  for (const char* flag : {"output-dir", "save"})
    if (!o.text(flag).empty()) refuse_inside(to, o.text(flag), o.name(flag));
  return to;
}

/// Whether every node wants all that training reads, which need not be known sample by sample then.
bool wants_all(const OptionTable& o) {
  return !o.toggle("stage-share") && o.integer("n-train") == 0 && o.integer("n-valid") == 0;
}

/// Files of samples and the nodes that want them; none: all.
using Takers = std::map<std::string, std::set<int>>;

/// Training files as --stage-share deals them out.
struct Deal {
  Takers takers;
  std::vector<std::vector<int64_t>> samples;  ///< of each node
};

/// A file goes to the node with the fewest samples so far.
Deal deal_out(const Paths& training, int64_t each, size_t nodes) {
  std::map<std::string, int64_t> in_file;
  for (const std::string* path : training) in_file[*path] += each;
  Deal deal;
  deal.samples.resize(nodes);
  std::vector<int64_t> dealt(nodes, 0);
  for (size_t i = 0; i < training.size(); ++i) {
    const auto [file, is_new] = deal.takers.try_emplace(*training[i]);
    if (is_new) {
      const auto least = std::min_element(dealt.begin(), dealt.end());
      *least += in_file.at(*training[i]);
      file->second.insert(static_cast<int>(least - dealt.begin()));
    }
    std::vector<int64_t>& share = deal.samples[static_cast<size_t>(*file->second.begin())];
    for (int64_t k = 0; k < each; ++k) share.push_back(static_cast<int64_t>(i) * each + k);
  }
  return deal;
}

/// Stages these files and lets paths lead to the copies that node `here` has.
void take_copies(const OptionTable& o, const std::string& to, Ranks& ranks, const Takers& takers, int here,
                 const std::vector<const Paths*>& lists) {
  const std::string& from = o.text("data-dir");
  std::vector<WantedFile> files;
  for (const auto& [path, nodes] : takers) files.push_back({name_below(from, path), {nodes.begin(), nodes.end()}});
  say("{}\n", stage_data(from, to, ranks, files).text());
  for (const Paths* paths : lists)
    for (std::string* path : *paths)
      if (const std::set<int>& nodes = takers.at(*path); nodes.empty() || nodes.count(here))
        *path = (fs::path(to) / name_below(from, *path)).string();
}

/// Tells of the shares' sizes, and of samples that an epoch leaves out; returns the largest.
int64_t report_shares(const OptionTable& o, const Ranks& ranks, const Deal& deal) {
  const auto [smaller, larger] = std::minmax_element(deal.samples.begin(), deal.samples.end(),
                                                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
  const int64_t fewest = std::ssize(*smaller), most = std::ssize(*larger);
  say("each node trains on {} samples of its own\n",
      fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most));
  if (ranks.root() && 10 * (most - fewest) > most)
    say(stderr,
        "warning: {}: an epoch leaves out samples of the larger shares and repeats those of the smaller: smaller files "
        "make them even\n",
        o.name("stage-share"));
  return most;
}

}  // namespace

std::optional<StagingTime> stage(OptionTable& o, Ranks& ranks) {
  const std::string from = o.text("data-dir"), to = stage_folder(o, ranks);
  if (to.empty() || !wants_all(o)) return std::nullopt;
  // Statistics beside the data folder are read where they are.
  const fs::path beside = fs::path(folder_above(from)) / "stats.h5";
  if (o.has("stats") && o.text("stats").empty() && !fs::exists(fs::path(from) / "stats.h5") && fs::exists(beside))
    o.set("stats", beside.string(), "beside data-dir");
  const int64_t start = MlLog::now();
  say("{}\n", stage_data(from, to, ranks).text());
  o.set("data-dir", to, "staged from " + from);
  return std::pair{start, MlLog::now()};
}

std::optional<StagedSamples> stage_samples(const OptionTable& o, Ranks& ranks, const Paths& training, int64_t each,
                                           const Paths& validation) {
  const std::string to = stage_folder(o, ranks);
  if (to.empty() || wants_all(o)) return std::nullopt;
  const std::vector<int>& node_of = ranks.world().nodes();
  const int here = node_of[static_cast<size_t>(ranks.rank())];
  if (!o.toggle("stage-share")) {
    Takers all;
    for (const Paths* paths : {&training, &validation})
      for (const std::string* path : *paths) all[*path];
    take_copies(o, to, ranks, all, here, {&training, &validation});
    return StagedSamples{MlLog::now(), nullptr};
  }
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(ranks);
  for (const std::vector<int>& node : nodes)
    if (node.size() != nodes[0].size())
      fail_usage(fmt::format("{}: expected as many ranks on every node, found {} and {}", o.name("stage-share"),
                             nodes[0].size(), node.size()));
  Deal deal = deal_out(training, each, nodes.size());
  if (deal.takers.size() < nodes.size())
    fail_usage(fmt::format("{}: expected a training file for each of {} nodes, found {}", o.name("stage-share"),
                           nodes.size(), deal.takers.size()));
  for (size_t i = 0; i < validation.size(); ++i)
    deal.takers[*validation[i]].insert(node_of[i % static_cast<size_t>(ranks.size())]);
  take_copies(o, to, ranks, deal.takers, here, {&training, &validation});
  const int64_t most = report_shares(o, ranks, deal);
  LoaderShare share{deal.samples[static_cast<size_t>(here)], ranks.place_on_node(), ranks.on_node(), here, most};
  return StagedSamples{MlLog::now(), std::make_shared<LoaderShare>(std::move(share))};
}

}  // namespace convoy::apps
