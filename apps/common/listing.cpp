#include "apps/common/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "core/text.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Throws Error(data) where a rank's folder lacks some of what rank 0 has found. Each rank looks for its share, and for
/// some of all: where all see the same file system, together for every file once.
void expect_files(const std::vector<std::string>& files, const Ranks& ranks) {
  constexpr size_t most = 64;
  const size_t apart = std::max<size_t>(1, files.size() / most), size = static_cast<size_t>(ranks.size());
  for (size_t i = 0; i < files.size(); ++i)
    if ((i % apart == 0 || i % size == static_cast<size_t>(ranks.rank())) && !fs::exists(files[i]))
      fail_data(fmt::format("rank 0 found {}: rank {} has no such file", files[i], ranks.rank()));
}

/// What rank 0 finds, on every rank: the others wait for it without taking it for lost.
std::vector<std::string> names_below(const std::string& path, Ranks& ranks,
                                     const std::function<std::vector<std::string>()>& find) {
  constexpr char between = '\0';  // which no name holds
  std::string joined;
  if (ranks.root()) {
    ranks.set_busy(true);
    for (const std::string& file : find()) joined += name_below(path, file) + between;
    ranks.set_busy(false);
  }
  joined = ranks.broadcast_text(joined);
  std::vector<std::string> files;
  if (joined.empty()) return files;
  joined.pop_back();
  for (std::string_view name : split(joined, between))
    files.push_back(name == "." ? path : (fs::path(path) / name).string());
  expect_files(files, ranks);
  return files;
}

/// The references of all files in their order: each rank calls open(file) for its share, and save() and load() carry
/// what it finds to the others.
template <class Ref, class Open, class Save, class Load>
std::vector<Ref> open_together(std::span<const std::string> files, Ranks& ranks, Open&& open, Save&& save,
                               Load&& load) {
  const Json found = find_in_turn(files.size(), ranks, [&](size_t i) {
    Json samples = Json::array();
    for (const Ref& ref : open(files[i])) samples.push_back(save(ref));
    return samples;
  });
  std::vector<Ref> refs;
  for (size_t i = 0; i < files.size(); ++i)
    for (const Json& saved : found[i]) refs.push_back(load(files[i], saved));
  return refs;
}

}  // namespace

Json find_in_turn(size_t count, Ranks& ranks, const std::function<Json(size_t)>& find) {
  const auto size = static_cast<size_t>(ranks.size());
  Json own = Json::array();
  ranks.set_busy(true);
  for (auto i = static_cast<size_t>(ranks.rank()); i < count; i += size) own.push_back(find(i));
  ranks.set_busy(false);
  std::string joined = "[";
  for (const std::string& text : ranks.collect_text(own.dump()))
    joined.append(joined.size() > 1 ? "," : "").append(text);
  Json of_ranks = Json::parse(ranks.broadcast_text(joined + "]"));
  Json all = Json::array();
  for (size_t i = 0; i < count; ++i) all.push_back(std::move(of_ranks[i % size][i / size]));
  return all;
}

std::vector<SampleRef> list_samples(const std::string& path, const ReadOptions& options, int64_t most, Ranks& ranks) {
  if (ranks.size() == 1) return samples_below(path, options, most);
  const auto files = names_below(path, ranks, [&] { return sample_files(path); });
  if (files.empty()) return samples_below(path, options);  // which says so
  return first_samples(files, most, [&](std::span<const std::string> some) {
    return open_together<SampleRef>(
        some, ranks, [&](const std::string& file) { return samples_in(file, options); },
        [](const SampleRef& ref) {
          return Json{int(ref.format), ref.index, ref.universe};
        },
        [](const std::string& file, const Json& saved) {
          return SampleRef{file, FileFormat(saved.at(0).get<int>()), saved.at(1), saved.at(2)};
        });
  });
}

ImageListing image_listing(Ranks& ranks) {
  if (ranks.size() == 1) return own_listing();
  const auto files = [&ranks](const std::string& path) {
    return names_below(path, ranks, [&] { return climate_files(path); });
  };
  const auto open = [&ranks](const std::vector<std::string>& found) {
    return open_together<ClimateRef>(
        found, ranks, [](const std::string& file) { return images_in(file); },
        [](const ClimateRef& ref) {
          return Json{int(ref.format),    ref.index,         ref.shape.height, ref.shape.width,
                      ref.shape.channels, ref.label_sets[0], ref.label_sets[1]};
        },
        [](const std::string& file, const Json& saved) {
          return ClimateRef{file,
                            ClimateFormat(saved.at(0).get<int>()),
                            saved.at(1),
                            {saved.at(2), saved.at(3), saved.at(4)},
                            {saved.at(5), saved.at(6)}};
        });
  };
  return {files, open};
}

std::string files_digest(const std::vector<std::string>& paths, Ranks& ranks) {
  const bool first = ranks.place_on_node() == 0;
  ranks.set_busy(true);
  const std::string own = first ? convoy::files_digest(paths) : "";
  ranks.set_busy(false);
  const std::string of_rank_0 = ranks.broadcast_text(own);
  return first ? own : of_rank_0;
}

}  // namespace convoy::apps
