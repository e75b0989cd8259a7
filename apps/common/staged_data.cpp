#include "apps/common/staged_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "apps/common/mllog.h"
#include "apps/common/run.h"
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
  if (const size_t at = to.find("{node}"); at != std::string::npos)
    to.replace(at, 6, std::to_string(ranks.world().nodes()[static_cast<size_t>(ranks.rank())]));
  if (o.text("data-dir").empty() || o.text("data") == "dummy")
    fail_usage("--stage-dir has no effect without --data-dir");
  if (fs::is_regular_file(o.text("data-dir")))
    fail_usage("--stage-dir: expected a folder as --data-dir, found the file " + o.text("data-dir"));
  // Staging looks through all of its folder.
  for (const char* flag : {"output-dir", "save"})
    if (!o.text(flag).empty()) refuse_inside(to, o.text(flag), o.name(flag));
  return to;
}

}  // namespace

std::optional<StagingTime> stage(OptionTable& o, Ranks& ranks) {
  const std::string from = o.text("data-dir"), to = stage_folder(o, ranks);
  if (to.empty() || o.toggle("stage-share")) return std::nullopt;
  // Statistics beside the data folder are read where they are.
  const fs::path beside = fs::path(folder_above(from)) / "stats.h5";
  if (o.has("stats") && o.text("stats").empty() && !fs::exists(fs::path(from) / "stats.h5") && fs::exists(beside))
    o.set("stats", beside.string(), "beside data-dir");
  const int64_t start = MlLog::now();
  say("{}\n", stage_data(from, to, ranks).text());
  o.set("data-dir", to, "staged from " + from);
  return std::pair{start, MlLog::now()};
}

std::optional<StagedShare> stage_share(const OptionTable& o, Ranks& ranks, const Paths& training, int64_t each,
                                       const Paths& validation) {
  const std::string from = o.text("data-dir"), to = stage_folder(o, ranks);
  if (to.empty() || !o.toggle("stage-share")) return std::nullopt;
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(ranks);
  for (const std::vector<int>& node : nodes)
    if (node.size() != nodes[0].size())
      fail_usage(fmt::format("{}: expected as many ranks on every node, found {} and {}", o.name("stage-share"),
                             nodes[0].size(), node.size()));
  const std::vector<int>& node_of = ranks.world().nodes();
  const int here = node_of[static_cast<size_t>(ranks.rank())];
  // A file goes to the node with the fewest samples so far.
  std::map<std::string, int64_t> samples;
  for (const std::string* path : training) samples[*path] += each;
  std::map<std::string, std::set<int>> wanted;
  std::vector<std::vector<int64_t>> shares(nodes.size());
  std::vector<int64_t> dealt(nodes.size(), 0);
  for (size_t i = 0; i < training.size(); ++i) {
    const auto [file, is_new] = wanted.try_emplace(*training[i]);
    if (is_new) {
      const auto least = std::min_element(dealt.begin(), dealt.end());
      *least += samples.at(*training[i]);
      file->second.insert(static_cast<int>(least - dealt.begin()));
    }
    std::vector<int64_t>& share = shares[static_cast<size_t>(*file->second.begin())];
    for (int64_t k = 0; k < each; ++k) share.push_back(static_cast<int64_t>(i) * each + k);
  }
  if (samples.size() < nodes.size())
    fail_usage(fmt::format("{}: expected a training file for each of {} nodes, found {}", o.name("stage-share"),
                           nodes.size(), samples.size()));
  for (size_t i = 0; i < validation.size(); ++i)
    wanted[*validation[i]].insert(node_of[i % static_cast<size_t>(ranks.size())]);
  std::vector<WantedFile> list;
  for (const auto& [path, nodes_of_file] : wanted)
    list.push_back({name_below(from, path), {nodes_of_file.begin(), nodes_of_file.end()}});
  say("{}\n", stage_data(from, to, ranks, list).text());
  const auto [fewest, most] = std::minmax_element(dealt.begin(), dealt.end());
  say("each node trains on {} samples of its own\n",
      *fewest == *most ? std::to_string(*most) : fmt::format("{} to {}", *fewest, *most));
  if (ranks.root() && 10 * (*most - *fewest) > *most)
    say(stderr,
        "warning: {}: an epoch leaves out samples of the larger shares and repeats those of the smaller: smaller files "
        "make them even\n",
        o.name("stage-share"));
  for (const Paths* paths : {&training, &validation})
    for (std::string* path : *paths)
      if (wanted.at(*path).count(here)) *path = (fs::path(to) / name_below(from, *path)).string();
  LoaderShare share{shares[static_cast<size_t>(here)], ranks.place_on_node(), ranks.on_node(), here, *most};
  return StagedShare{MlLog::now(), std::make_shared<LoaderShare>(std::move(share))};
}

}  // namespace convoy::apps
