#include "apps/common/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include "apps/common/say.h"
#include "core/error.h"
#include "core/text.h"
#include "io/crc32c.h"

namespace convoy::apps {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t most_files = 64;
constexpr int64_t block_bytes = 4096;

/// Name, size and digest of the middle; what cannot be read is found when it is trained on.
Json describe_content(const std::string& path) {
  std::error_code none;
  const auto size = static_cast<int64_t>(fs::file_size(path, none));
  if (none) return {fs::path(path).filename().string(), -1, 0};
  std::vector<char> block(static_cast<size_t>(std::min(size, block_bytes)));
  std::ifstream in(path, std::ios::binary);
  in.seekg((size - static_cast<int64_t>(block.size())) / 2);
  in.read(block.data(), static_cast<std::streamsize>(block.size()));
  return {fs::path(path).filename().string(), size, crc32c(std::as_bytes(std::span(block)))};
}

}  // namespace

void expect_text(const std::string& path) {
  if (!is_utf8(path)) fail_data(path + ": expected a name in UTF-8, found other bytes");
}

Json fingerprint(const std::vector<std::string>& paths) {
  uint32_t names = 0;
  std::vector<std::string> files;  // one may hold several samples
  for (const std::string& path : paths) {
    if (path.empty()) return nullptr;
    const std::string name = fs::path(path).filename().string();
    names = crc32c(std::as_bytes(std::span(name)), names);
    if (!files.empty() && files.back() == path) continue;
    expect_text(name);
    files.push_back(path);
  }
  Json described = Json::array();
  const size_t wanted = std::min(most_files, files.size());
  for (size_t i = 0; i < wanted; ++i) described.push_back(describe_content(files[i * files.size() / wanted]));
  return {{"samples", paths.size()}, {"names", names}, {"files", std::move(described)}};
}

void expect_same_samples(const Json& saved, const Json& found, const std::string& where) {
  if (!saved.is_object() || !found.is_object()) return;
  if (saved.at("names") != found.at("names") || saved.at("files").size() != found.at("files").size())
    fail_data(fmt::format("{}: trained on other samples: expected {} with names of digest {}, found {} with {}", where,
                          saved.at("samples").dump(), saved.at("names").dump(), found.at("samples").dump(),
                          found.at("names").dump()));
  const Json &before = saved.at("files"), &now = found.at("files");
  std::string first;
  size_t count = 0;
  for (size_t i = 0; i < now.size(); ++i)
    if (before[i] != now[i] && count++ == 0) first = now[i].at(0).get<std::string>();
  if (count == 0) return;
  const std::string text =
      fmt::format("{} of {} files have other contents than before, the first {}", count, now.size(), first);
  if (2 * count > now.size()) fail_data(fmt::format("{}: trained on other samples: {}", where, text));
  say(stderr, "warning: {}: {}: taken for repaired\n", where, text);
}

}  // namespace convoy::apps
