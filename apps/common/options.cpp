#include "apps/common/options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <set>

#include "apps/common/say.h"
#include "apps/common/version.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/text.h"
#include "core/thread_limits.h"

namespace convoy::apps {
namespace {

std::string environment_name(const std::string& flag) {
  std::string name = "CONVOY_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

/// A variable of the environment that is called like the option; another's may set it, too (--lr-schedule its parts).
bool is_own_variable(const Option& option) {
  return option.origin == environment_name(option.flag) || option.origin == environment_name(option.alias);
}

/// A YAML value as the text a flag would carry: lists comma-separated, maps as key:value pairs, also as a list of them.
/// Throws Error(usage), which begins with `what`, for anything deeper and for values that are missing.
std::string yaml_text(const YAML::Node& node, const std::string& what) {
  if (node.IsScalar()) return node.Scalar();
  const auto scalar = [&](const YAML::Node& item) {
    if (!item.IsScalar())
      fail_usage(what + ": expected single values" + (item.IsNull() ? ", found an empty one" : ", found nested ones"));
    return item.Scalar();
  };
  std::string text;
  const auto add = [&](const std::string& item) { text += (text.empty() ? "" : ",") + item; };
  for (const auto& item : node)
    if (node.IsMap())
      add(scalar(item.first) + ":" + scalar(item.second));
    else if (item.IsMap())
      add(yaml_text(item, what));
    else
      add(scalar(item));
  return text;
}

/// With $NAME and ${NAME} replaced by the environment's values; what is not set stays, as in Python's expandvars.
std::string expand_variables(const std::string& text) {
  std::string expanded;
  for (size_t i = 0; i < text.size();) {
    const bool braces = text.compare(i, 2, "${") == 0;
    const size_t first = i + (braces ? 2 : 1);
    size_t last = first;
    while (last < text.size() && (std::isalnum(static_cast<unsigned char>(text[last])) || text[last] == '_')) ++last;
    const size_t end = last + (braces && last < text.size() && text[last] == '}' ? 1 : 0);
    const bool variable = text[i] == '$' && last > first && (!braces || end > last);
    const char* value = variable ? std::getenv(text.substr(first, last - first).c_str()) : nullptr;
    const size_t next = variable ? end : i + 1;
    expanded += value ? std::string(value) : text.substr(i, next - i);
    i = next;
  }
  return expanded;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// What a toggle may be, nothing for any other word.
std::optional<bool> truth_of(const std::string& text) {
  const std::string word = lower(text);
  if (word == "true" || word == "1" || word == "on" || word == "yes") return true;
  if (word == "false" || word == "0" || word == "off" || word == "no") return false;
  return std::nullopt;
}

bool truth_of(const std::string& text, const std::string& what) {
  const std::optional<bool> truth = truth_of(text);
  if (!truth) fail_usage(what + ": expected true or false, found " + text);
  return *truth;
}

std::vector<double> numbers_of(const std::string& text, const std::string& what) {
  std::vector<double> values;
  if (!text.empty())
    for (std::string_view part : split(text, ',')) values.push_back(parse_number<double>(trim(part), what));
  return values;
}

/// Whether the default asks for nothing: of a number, the least that it may be.
bool is_off(const Option& option) {
  return option.standard.empty() || (option.standard == "0" && option.least == 0);
}

/// "a, b or c".
std::string choice_text(const std::vector<std::string>& choices) {
  const size_t last = choices.size() - 1;
  return last == 0 ? choices[0]
                   : fmt::format("{} or {}", fmt::join(choices.begin(), choices.end() - 1, ", "), choices[last]);
}

std::string bounds_text(const Option& option) {
  if (std::isinf(option.most)) return fmt::format("{} or more", option.least);
  const bool two = option.kind == Option::Kind::integer && option.most == option.least + 1;
  return fmt::format("{} {} {}", option.least, two ? "or" : "to", option.most);
}

/// Descriptors 0 to 2 stand for standard streams: what is opened first must not become one.
void open_standard_streams() {
  for (int file = open("/dev/null", O_RDWR); file >= 0; file = open("/dev/null", O_RDWR))
    if (file > STDERR_FILENO) {
      close(file);
      return;
    }
}

}  // namespace

size_t OptionTable::index_of(const std::string& flag) const {
  for (size_t i = 0; i < options_.size(); ++i)
    if (options_[i].flag == flag) return i;
  fail_usage("no setting is named " + flag);
}

void OptionTable::refuse_idle(const std::vector<IdleFlag>& rules) const {
  for (const IdleFlag& rule : rules) {
    const Option& option = find(rule.flag);
    const bool from_environment = option.origin.starts_with(environment_name(""));
    if (rule.used || !(option.origin == "flag" || from_environment)) continue;
    if (option.kind == Option::Kind::toggle && is_standard(rule.flag)) continue;  // asks for nothing
    fail_usage(name(option) + " has no effect on " + rule.where);
  }
}

bool OptionTable::overrides(const std::string& flag, const std::string& other) const {
  const auto turn = [this](const std::string& name) {
    const Option& option = find(name);
    if (option.origin == "default" || option.origin == "checkpoint") return 0;
    return option.origin == "flag" ? 3 : is_own_variable(option) ? 2 : 1;
  };
  return turn(flag) > turn(other);
}

bool OptionTable::prevails(const std::string& flag, const std::string& other) const {
  if (is_set(flag) != is_set(other)) return is_set(flag);
  if (!overrides(flag, other) && !overrides(other, flag))
    fail_usage(
        fmt::format("{} {} and {} {} name one setting and differ", name(flag), text(flag), name(other), text(other)));
  return overrides(flag, other);
}

std::string OptionTable::name(const Option& option) const {
  if (option.origin == "flag" || option.origin == "default") return "--" + option.flag;
  if (is_own_variable(option)) return option.origin;
  if (!file_.empty() && option.origin.starts_with(file_ + ":")) return option.origin + ": " + option.yaml;
  return "--" + option.flag + " (" + option.origin + ")";
}

std::string OptionTable::name(const std::string& flag) const {
  return name(find(flag));
}

void OptionTable::check(const Option& option) const {
  const std::string what = name(option);
  if (option.value.empty()) {  // which only means something where the default is nothing, too
    if (option.kind != Option::Kind::text && !option.standard.empty())
      fail_usage(what + ": expected a value, found none");
    return;
  }
  const auto bounded = [&](auto value) {
    if (!std::isfinite(double(value)))
      fail_usage(fmt::format("{}: expected a finite number, found {}", what, option.value));
    if (value >= option.least && value <= option.most) return;
    fail_usage(fmt::format("{}: expected {}, found {}", what, bounds_text(option), option.value));
  };
  if (option.kind == Option::Kind::integer) bounded(parse_number<int64_t>(option.value, what));
  if (option.kind == Option::Kind::number) bounded(parse_number<double>(option.value, what));
  if (option.kind == Option::Kind::toggle) truth_of(option.value, what);
  if (option.kind == Option::Kind::numbers) numbers_of(option.value, what);
  if (option.words.empty()) return;
  std::vector<std::string> choices;
  for (const auto& same : option.words) choices.push_back(same[0]);
  if (std::find(choices.begin(), choices.end(), option.value) == choices.end())
    fail_usage(fmt::format("{}: expected {}, found {}", what, choice_text(choices), option.value));
}

void OptionTable::set(const std::string& flag, const std::string& value, const std::string& origin) {
  Option& option = options_[index_of(flag)];
  // A repeated list flag adds to itself; another source replaces it.
  const bool add = option.kind == Option::Kind::list && option.origin == origin && !option.value.empty();
  option.origin = origin;  // by which errors call it
  const bool spelled = !option.words.empty() || (option.kind == Option::Kind::toggle && !value.empty());
  option.value = add ? option.value + "," + value : spelled ? canonical(option, value) : value;
  check(option);
}

void OptionTable::load_yaml(const YamlFile& file) {
  const std::string& path = file_ = file.path;
  if (std::filesystem::is_directory(path)) fail_usage(path + ": expected a YAML file, found a folder");
  YAML::Node root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAllFromFile(path);
    if (documents.size() > 1) fail_usage(path + ": expected one document, found " + std::to_string(documents.size()));
    if (!documents.empty()) root = documents[0];
  } catch (const YAML::BadFile&) {
    fail_usage(path + ": cannot open the configuration");
  } catch (const YAML::Exception& error) {
    fail_usage(fmt::format("{}:{}: {}", path, error.mark.line + 1, error.msg));
  }
  if (!root.IsMap()) fail_usage(path + ": expected a YAML map of settings");
  std::set<std::string> seen;
  const auto apply_leaf = [&](const std::string& key, const YAML::Node& key_node, const YAML::Node& value) {
    const std::string where = fmt::format("{}:{}", path, key_node.Mark().line + 1), what = where + ": " + key;
    if (!seen.insert(key).second) fail_usage(fmt::format("{} is given twice", what));
    for (const Refusal& refusal : file.refusals)
      if (refusal.yaml == key && refusal.refused.empty()) {
        if (refusal.accepted == std::vector<std::string>{"*"}) return;
        const std::string text = value.IsNull() ? "none" : yaml_text(value, what);
        for (std::string_view part : split(text, ','))
          if (std::none_of(refusal.accepted.begin(), refusal.accepted.end(),
                           [&](const std::string& word) { return lower(word) == lower(std::string(part)); }))
            fail_usage(fmt::format("{}: expected {}, found {}: {}", what, choice_text(refusal.accepted), text,
                                   refusal.reason));
        return;
      }
    for (const Option& option : options_)
      if (option.yaml == key) {
        const auto refusal =
            std::find_if(file.refusals.begin(), file.refusals.end(), [&](const Refusal& r) { return r.yaml == key; });
        const bool refuses = refusal != file.refusals.end();
        if (value.IsNull() && is_off(option) && !refuses) return;  // asks for nothing, as the default does
        if (value.IsNull()) fail_usage(fmt::format("{}: expected a value, found none", what));
        if (option.kind != Option::Kind::list && (value.IsMap() || (value.size() > 0 && value[0].IsMap())))
          fail_usage(fmt::format("{}: expected a value, found a map", what));
        if (value.IsSequence() && value.size() > 0 && !option.takes_several())
          fail_usage(fmt::format("{}: expected a value, found a list", what));
        const std::string text = yaml_text(value, what);
        set(option.flag, key.ends_with("_dir") ? expand_variables(text) : text, where);
        if (refuses && agrees(option.flag, refusal->refused))
          fail_usage(fmt::format("{}: expected {}, found {}: {}", what, choice_text(refusal->accepted), text,
                                 refusal->reason));
        return;
      }
    fail_usage(fmt::format("{}: unknown key {}", where, key));
  };
  const auto known_section = [&](const std::string& name) {
    return std::any_of(options_.begin(), options_.end(),
                       [&](const Option& option) { return option.yaml.starts_with(name + "."); });
  };
  const auto key_of = [&](const YAML::Node& node) {
    const std::string key = node.IsScalar() ? node.Scalar() : "";
    if (key.empty())
      fail_usage(fmt::format("{}:{}: expected a key, found {}", path, node.Mark().line + 1,
                             node.IsScalar() ? "an empty one" : "a list or a map"));
    return key;
  };
  for (const auto& section : root) {
    const std::string name = key_of(section.first);
    if (section.second.IsNull() && known_section(name)) continue;  // all of it is commented out
    const bool leaf = !section.second.IsMap();
    if (leaf) {
      apply_leaf(name, section.first, section.second);
      continue;
    }
    for (const auto& item : section.second) apply_leaf(name + "." + key_of(item.first), item.first, item.second);
  }
}

void OptionTable::load_environment() {
  for (const Option& option : options_)
    for (const std::string& name : {option.alias, option.flag})
      if (const char* value = name.empty() ? nullptr : std::getenv(environment_name(name).c_str()))
        set(option.flag, value, environment_name(name));
}

/// The words of the command line as this parser takes them: the reference programs of the climate benchmark spell their
/// flags with underscores and write lists of numbers as words of their own; CosmoFlow's has a 0 or 1 behind a toggle.
std::vector<std::string> OptionTable::join_words(int argc, char** argv) const {
  std::vector<std::string> words;
  bool in_list = false;  // the last word is a value of a flag that takes numbers
  bool next_is_value = false;
  for (int i = 0; i < argc; ++i) {
    std::string word = argv[i];
    const bool number = !word.empty() && word.find_first_not_of("0123456789+-.eE,") == std::string::npos;
    if (word.starts_with("--")) {
      const auto name_end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
      std::replace(word.begin(), name_end, '_', '-');
      const std::string name(word.begin() + 2, name_end);
      const auto named = std::find_if(options_.begin(), options_.end(), [&](const Option& o) {
        return o.flag == name || (!o.alias.empty() && o.alias == name);
      });
      const bool known = named != options_.end(), toggles = known && named->kind == Option::Kind::toggle,
                 takes_numbers = known && named->kind == Option::Kind::numbers;
      // What an empty variable of a script leaves behind: --output-dir= and --output-dir --resume.
      if (known && name_end != word.end() && name_end + 1 == word.end())
        fail_usage("--" + name + ": expected a value, found none");
      if (known && !toggles && name_end == word.end() && i + 1 < argc &&
          std::string_view(argv[i + 1]).starts_with("--"))
        fail_usage("--" + name + ": expected a value, found " + argv[i + 1]);
      next_is_value = takes_numbers && name_end == word.end();
      in_list = takes_numbers && name_end != word.end();
      if (toggles && name_end == word.end() && i + 1 < argc && truth_of(argv[i + 1]))
        word += truth_of(argv[++i]).value() ? "=true" : "=false";
      else if (toggles && name_end != word.end())
        truth_of(std::string(name_end + 1, word.end()), "--" + name);
    } else if (in_list && number) {
      words.back() += "," + word;
      continue;
    } else {
      in_list = next_is_value;
      next_is_value = false;
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::string OptionTable::known_instead(const std::string& word) const {
  static constexpr std::pair<const char*, const char*> names[] = {
      {"batch-size", "local-batch-size"},   {"n-epochs", "max-epochs"},   {"lr", "start-lr"},
      {"warmup-epochs", "lr-warmup-steps"}, {"target-mae", "target-iou"}, {"decay-schedule", "lr-schedule"}};
  const std::string flag = word.substr(0, word.find('='));
  for (const auto& [one, other] : names)
    for (const auto& [asked, here] : {std::pair{one, other}, std::pair{other, one}})
      if (flag == std::string("--") + asked && has(here)) return std::string("here --") + here + " is its like";
  return "--help lists the flags";
}

bool OptionTable::read(int argc, char** argv, const std::string& description, YamlFile* yaml) {
  CLI::App app(description);
  app.set_version_flag("--version", long_version_text());
  app.footer(
      "A switch may be followed by true or false. Every flag is also an environment variable: CONVOY_THREADS is "
      "--threads.");
  app.allow_extras();  // CLI11 lists them in reverse
  std::vector<std::vector<std::string>> values(options_.size());
  std::vector<CLI::Option*> handles;
  for (size_t i = 0; i < options_.size(); ++i) {
    const Option& o = options_[i];
    const std::string help = o.help + (o.value.empty() ? "" : " [" + o.value + "]") +
                             (yaml && !o.yaml.empty() ? " (YAML: " + o.yaml + ")" : "");
    const std::string names = "--" + o.flag + (o.alias.empty() ? "" : ",--" + o.alias);
    if (o.kind == Option::Kind::toggle)
      handles.push_back(app.add_flag(names + ",!--no-" + o.flag, help));
    else
      handles.push_back(app.add_option(names, values[i], help)
                            ->type_name(o.kind == Option::Kind::integer   ? "INT"
                                        : o.kind == Option::Kind::number  ? "FLOAT"
                                        : o.kind == Option::Kind::numbers ? "NUMBERS"
                                                                          : "TEXT")
                            ->allow_extra_args(false));
  }
  if (yaml) app.add_option("config", yaml->path, "YAML configuration");
  const std::vector<std::string> words = join_words(argc, argv);
  std::vector<const char*> spelled;
  for (const std::string& word : words) spelled.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(spelled.size()), spelled.data());
  } catch (const CLI::Success& success) {
    app.exit(success);
    return false;
  } catch (const CLI::ParseError& error) {
    fail_usage(error.what());
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty())
    fail_usage("unknown flag or word: " + unknown.front() + " (" + known_instead(unknown.front()) + ")");
  if (yaml && !yaml->path.empty()) load_yaml(*yaml);
  load_environment();
  for (size_t i = 0; i < options_.size(); ++i) {
    if (handles[i]->count() == 0) continue;
    const std::string flag = options_[i].flag;
    if (options_[i].kind == Option::Kind::toggle)
      set(flag, handles[i]->as<bool>() ? "true" : "false", "flag");
    else
      for (const std::string& value : values[i]) set(flag, value, "flag");
  }
  return true;
}

bool OptionTable::has(const std::string& flag) const {
  return std::any_of(options_.begin(), options_.end(), [&](const Option& o) { return o.flag == flag; });
}

int64_t OptionTable::integer(const std::string& flag) const {
  return parse_number<int64_t>(text(flag), name(flag));
}
double OptionTable::number(const std::string& flag) const {
  return parse_number<double>(text(flag), name(flag));
}

std::string OptionTable::canonical(const Option& option, const std::string& value) const {
  for (const auto& same : option.words)
    if (std::find(same.begin(), same.end(), value) != same.end()) return same[0];
  if (option.kind == Option::Kind::toggle) return !value.empty() && truth_of(value, name(option)) ? "true" : "false";
  if (value.empty()) return value;
  switch (option.kind) {
    case Option::Kind::integer:
      return fmt::format("{}", parse_number<int64_t>(value, name(option)));
    case Option::Kind::number:
      return fmt::format("{}", parse_number<double>(value, name(option)));
    case Option::Kind::numbers:
      return fmt::format("{}", fmt::join(numbers_of(value, name(option)), ","));
    default:
      return value;
  }
}

bool OptionTable::toggle(const std::string& flag) const {
  return !text(flag).empty() && truth_of(text(flag), name(flag));
}

std::vector<std::string> OptionTable::list(const std::string& flag) const {
  std::vector<std::string> items;
  if (text(flag).empty()) return items;
  for (std::string_view part : split(text(flag), ',')) items.emplace_back(trim(part));
  return items;
}

std::vector<double> OptionTable::numbers(const std::string& flag) const {
  return numbers_of(text(flag), name(flag));
}

int wanted_threads(const OptionTable& options) {
  const int64_t wish = options.integer("threads");
  expect_granted(wish);
  if (wish > 0) return static_cast<int>(wish);
  const int granted = default_threads();
  if (granted > most_threads)
    fail_usage(fmt::format("OMP_NUM_THREADS: expected 1 to {}, found {}", most_threads, granted));
  return granted;
}

Failure current_failure() {
  const auto failure = [](const std::string& text, ErrorKind kind) { return Failure{text, static_cast<int>(kind)}; };
  try {
    throw;
  } catch (const Error& error) {
    return failure(error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return failure("out of memory", ErrorKind::runtime);
  } catch (const std::filesystem::filesystem_error& error) {
    return failure(error.path1().string() + ": " + error.code().message(), ErrorKind::data);
  } catch (const std::exception& error) {
    return failure(error.what(), ErrorKind::runtime);
  }
}

int run_program(const char* name, int (*body)(int, char**), int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond the limit is an error of its write
  // Behind what was printed, where both go to one file.
  const auto report = [name](const Failure& failure) {
    std::fflush(stdout);
    say(stderr, "{}: error: {}\n", name, failure.text);
    return failure.code;
  };
  try {
    const int code = body(argc, argv);
    if ((std::fflush(stdout) != 0 || std::ferror(stdout)) && code == 0)
      return report({"standard output: cannot write", static_cast<int>(ErrorKind::runtime)});
    return code;
  } catch (...) {
    return report(current_failure());
  }
}

}  // namespace convoy::apps
