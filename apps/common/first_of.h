#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

namespace convoy::apps {

/// The first `most` things of those that `open` finds in each of these files; files behind them stay closed: opening
/// one is slow on parallel file systems.
template <class Open>
auto first_of(const std::vector<std::string>& files, int64_t most, Open&& open) {
  std::invoke_result_t<Open&, const std::string&> first;
  for (auto file = files.begin(); file != files.end() && std::ssize(first) < most; ++file) {
    auto found = open(*file);
    const int64_t taken = std::min(std::ssize(found), most - std::ssize(first));
    std::move(found.begin(), found.begin() + taken, std::back_inserter(first));
  }
  return first;
}

}  // namespace convoy::apps
