// The kernels that --kernels and --skip leave.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "kernels/kernel_list.h"

namespace convoy::bench {

/// Words are the beginning of a name, or what stands behind its underscore ("avx512" for direct_avx512).
class KernelChoice {
 public:
  /// Throws Error(usage) for words that no kernel's name fits.
  explicit KernelChoice(const Arguments& a) : wanted_(words(a, "kernels")), skipped_(words(a, "skip")) {
    // What is left out unless asked for is not left out where it is.
    if (!wanted_.empty() && !a.given("skip")) skipped_.clear();
  }
  bool operator()(std::string_view kernel) const {
    return (wanted_.empty() || any(wanted_, kernel)) && !any(skipped_, kernel);
  }

  bool skips(std::string_view kernel) const { return any(skipped_, kernel); }
  /// Whether --kernels gives this very name, or a word that fits no other of the list.
  bool asks_for(std::string_view kernel, const KernelList& list) const {
    return std::any_of(wanted_.begin(), wanted_.end(), [&](const std::string& word) {
      if (word == kernel) return true;
      return names(word, kernel) && std::none_of(list.begin(), list.end(), [&](const auto& other) {
               return other->name() != kernel && names(word, other->name());
             });
    });
  }
  /// Whether a word of --kernels fits both.
  bool asks_for_both(std::string_view one, std::string_view other) const {
    return std::any_of(wanted_.begin(), wanted_.end(),
                       [&](const std::string& word) { return names(word, one) && names(word, other); });
  }

 private:
  static bool names(std::string_view word, std::string_view kernel) {
    return kernel.starts_with(word) || kernel.ends_with("_" + std::string(word));
  }
  static bool any(const std::vector<std::string>& list, std::string_view kernel) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& word) { return names(word, kernel); });
  }
  static std::vector<std::string> words(const Arguments& a, const std::string& flag) {
    std::vector<std::string> list;
    if (a.text(flag).empty()) return list;
    for (std::string_view word : split(a.text(flag), ',')) {
      if (word.empty()) fail_usage("--" + flag + ": expected names of kernels, found \"" + a.text(flag) + "\"");
      list.emplace_back(word);
      // oneDNN's names are known where it is not built in, too.
      bool known = names(word, "onednn") || names(word, "onednn_blocked") || names(word, "onednn_definition") ||
                   names(word, "cudnn_definition");
      for (const auto& kernel : kernel_list()) known = known || names(word, kernel->name());
      if (!known) fail_usage("--" + flag + ": no kernel is called \"" + list.back() + "\"");
    }
    return list;
  }
  std::vector<std::string> wanted_, skipped_;
};

}  // namespace convoy::bench
