// Flags of the benches, parsed by hand: they build with nothing but a compiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "bench/provenance.h"
#include "core/text.h"

namespace convoy::bench {

class Arguments {
 public:
  /// Known flags with their defaults and help; prints help or the version and exits on --help and --version, throws
  /// Error(usage) on anything else.
  /// --flag value and --flag=value are the same; a flag whose default is yes or no may stand alone for yes. One that is
  /// given twice is refused unless it repeats.
  struct Flag {
    std::string name, value, help;
    bool repeats = false;
  };
  Arguments(int argc, char** argv, std::vector<Flag> flags) : flags_(std::move(flags)) {
    for (int i = 1; i < argc; ++i) {
      const std::string whole = argv[i];
      const size_t equals = whole.find('=');
      const bool joined = equals != std::string::npos;
      const std::string word = whole.substr(0, equals);
      if (whole == "--help") {
        for (const Flag& f : flags_)
          std::printf("  --%-14s %s [%s]\n", f.name.c_str(), f.help.c_str(), f.value.c_str());
        std::exit(0);
      }
      if (whole == "--version") {
        std::printf("%s\n", long_version_text().c_str());
        std::exit(0);
      }
      Flag* found = nullptr;
      for (Flag& f : flags_)
        if (word == "--" + f.name) found = &f;
      if (!found) fail_usage("unknown flag: " + word + " (--help lists them)");
      if (given(found->name) && !found->repeats) fail_usage(word + ": expected once, found twice");
      const bool choice = found->value == "yes" || found->value == "no";
      const std::string next = joined ? whole.substr(equals + 1) : i + 1 < argc ? argv[i + 1] : "";
      const bool follows = choice ? next == "yes" || next == "no" : joined || i + 1 < argc;
      if (choice && joined && !follows) fail_usage(word + ": expected yes or no, found " + next);
      if (!choice && !follows) fail_usage(word + ": expected a value");
      if (!choice && !joined && next.starts_with("--")) fail_usage(word + ": expected a value, found " + next);
      found->value = choice && !follows ? "yes" : next;
      given_.emplace_back(found->name, found->value);
      i += follows && !joined;
    }
  }
  const std::string& text(const std::string& name) const {
    for (const Flag& f : flags_)
      if (f.name == name) return f.value;
    fail_usage("no flag " + name);
  }
  bool flag(const std::string& name) const { return text(name) == "yes"; }
  /// Whether the command line sets it.
  bool given(const std::string& name) const {
    return std::any_of(given_.begin(), given_.end(), [&](const auto& g) { return g.first == name; });
  }
  /// All values of a flag that repeats, in their order.
  std::vector<std::string> texts(const std::string& name) const {
    std::vector<std::string> values;
    for (const auto& [flag, value] : given_)
      if (flag == name) values.push_back(value);
    return values;
  }
  int64_t integer(const std::string& name) const { return parse_number<int64_t>(text(name), "--" + name); }
  double number(const std::string& name) const { return parse_number<double>(text(name), "--" + name); }
  int64_t integer_within(const std::string& name, int64_t least, int64_t most = INT64_MAX) const {
    const int64_t value = integer(name);
    if (value < least || value > most)
      fail_usage("--" + name + ": expected " + std::to_string(least) +
                 (most == INT64_MAX ? " or more" : " to " + std::to_string(most)) + ", found " + text(name));
    return value;
  }

 private:
  std::vector<Flag> flags_;
  std::vector<std::pair<std::string, std::string>> given_;  ///< name and value, in the command line's order
};

/// A program's main: errors become one line and their exit code.
template <class Run>
int run_program(const char* name, Run run, int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == 0) fail_runtime("standard output: cannot write");
    return code;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: error: %s\n", name, error.what());
    return error.exit_code();
  } catch (const std::exception& error) {  // out of memory, for one
    std::fprintf(stderr, "%s: error: %s\n", name, error.what());
  }
  return static_cast<int>(ErrorKind::runtime);
}

}  // namespace convoy::bench
