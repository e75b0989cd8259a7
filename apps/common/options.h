// Settings of a program: one table, filled from defaults, a YAML file, the environment and flags, in that order; every
// value remembers where it came from.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace convoy::apps {

struct Option {
  std::string flag;   ///< "batch-size" for --batch-size and CONVOY_BATCH_SIZE
  std::string yaml;   ///< "data.batch_size", or empty
  std::string value;  ///< text of the current value
  std::string help;
  /// numbers: comma-separated, on the command line also apart; integers too.
  enum class Kind : uint8_t { text, integer, number, toggle, list, numbers } kind = Kind::text;
  std::string origin = "default";
  std::string alias{};                        ///< another name of the flag, as a reference program has it; empty: none
  std::string standard{};                     ///< text of the default, filled by the table
  double least = -INFINITY, most = INFINITY;  ///< bounds of a number; an integer is 0 or more unless they say otherwise
  /// The words that it may have, each followed by others that mean the same; empty: any text.
  std::vector<std::vector<std::string>> words{};

  /// Values that a YAML list may hold: words or numbers by commas, and shapes, which say so in their names.
  bool takes_several() const { return kind == Kind::list || kind == Kind::numbers || flag.ends_with("-shape"); }
  Option within(double from, double to = INFINITY) && {
    least = from, most = to;
    return std::move(*this);
  }
  Option one_of(std::vector<std::vector<std::string>> choices) && {
    words = std::move(choices);
    return std::move(*this);
  }
};

/// A setting that only matters beside others.
struct IdleFlag {
  std::string flag;
  bool used;
  std::string where;  ///< where it has no effect
};

class OptionTable {
 public:
  explicit OptionTable(std::vector<Option> options) : options_(std::move(options)) {
    for (Option& option : options_) {
      option.standard = option.value;
      if (option.kind == Option::Kind::integer && std::isinf(option.least)) option.least = 0;
    }
  }

  /// Keys of a YAML file that are known but cannot be honoured unless they have one of these values ("*": any), in
  /// small or capital letters; the reason is shown. With `refused` the key is that of a setting, which a file may give
  /// any value but this one; errors then say `accepted`.
  struct Refusal {
    std::string yaml;
    std::vector<std::string> accepted;
    std::string reason;
    std::string refused{};
  };
  /// What the command line asks for besides settings.
  struct YamlFile {
    std::vector<Refusal> refusals;
    std::string path;  ///< filled by `read`: the first positional argument, empty where there is none
  };
  /// Fills the table from the YAML file, where the program knows one, the environment and the flags; prints help or
  /// version and returns false when the program should end. Throws Error(usage) naming file, line, key, expected and
  /// found for unknown or refused keys, and for unknown flags and values of the wrong kind or out of bounds. In paths
  /// of the file, $NAME and ${NAME} stand for variables of the environment; those that are not set stay as they are. A
  /// value of null asks for a default that is nothing, or 0 for a number that goes no lower.
  bool read(int argc, char** argv, const std::string& description, YamlFile* yaml = nullptr);

  const std::string& text(const std::string& flag) const { return find(flag).value; }
  bool has(const std::string& flag) const;
  bool is_set(const std::string& flag) const { return origin(flag) != "default"; }
  /// "default", "checkpoint", "FILE:LINE", "CONVOY_..." or "flag".
  const std::string& origin(const std::string& flag) const { return find(flag).origin; }
  /// The setting as whoever gave it knows it, for messages: "--lr", "CONVOY_LR" or "cosmo.yaml:7: lr_schedule.base_lr".
  std::string name(const std::string& flag) const;
  /// Of two names of one setting, whether the first comes from a later source of this order: default or checkpoint,
  /// file, environment, flag.
  bool overrides(const std::string& flag, const std::string& other) const;
  /// The same where their values differ: throws Error(usage) where both come from one source.
  bool prevails(const std::string& flag, const std::string& other) const;
  int64_t integer(const std::string& flag) const;
  double number(const std::string& flag) const;
  bool toggle(const std::string& flag) const;
  /// Whether another text says the same as the flag's value: "True" and "on", "1" and "1.0".
  bool agrees(const std::string& flag, const std::string& value) const {
    const Option& option = find(flag);
    return canonical(option, option.value) == canonical(option, value);
  }
  /// Whether the flag's value says the same as its default.
  bool is_standard(const std::string& flag) const { return agrees(flag, find(flag).standard); }
  std::vector<std::string> list(const std::string& flag) const;  ///< comma-separated
  std::vector<double> numbers(const std::string& flag) const;    ///< comma-separated
  void set(const std::string& flag, const std::string& value, const std::string& origin);
  const std::vector<Option>& all() const { return options_; }
  /// The YAML file that was read, or empty.
  const std::string& file() const { return file_; }
  /// Throws Error(usage) for the first one that a flag or the environment sets and that is not used; a file may hold
  /// settings for another choice than this run's, and a toggle that is what it is anyway asks for nothing.
  void refuse_idle(const std::vector<IdleFlag>& rules) const;

 private:
  size_t index_of(const std::string& flag) const;
  const Option& find(const std::string& flag) const { return options_[index_of(flag)]; }
  std::string name(const Option& option) const;
  /// The one spelling that all texts of a meaning share.
  std::string canonical(const Option& option, const std::string& value) const;
  std::vector<std::string> join_words(int argc, char** argv) const;
  void load_yaml(const YamlFile& file);
  void load_environment();
  /// What to say of a word that no flag has: the other trainer may know it, whose names are those of its reference.
  std::string known_instead(const std::string& word) const;
  void check(const Option& option) const;
  std::vector<Option> options_;
  std::string file_;  ///< that settings were read from
};

inline constexpr int most_threads = 4096;
/// --threads, or all that the environment grants; throws Error(usage) where that is more than most_threads.
int wanted_threads(const OptionTable& options);

/// What an exception says to whoever runs a program: one line, and the documented exit code.
struct Failure {
  std::string text;
  int code;
};
/// That of the exception which is being handled.
Failure current_failure();
/// Runs a program body and turns exceptions into one clear line on stderr and the documented exit code.
int run_program(const char* name, int (*body)(int, char**), int argc, char** argv);

}  // namespace convoy::apps
