#include "apps/common/options.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>

#include "apps/common/version.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/text.h"

namespace convoy::apps {
namespace {

std::string environment_name(const std::string& flag) {
  std::string name = "CONVOY_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

/// A YAML value as the text a flag would carry: lists comma-separated, maps as key:value pairs.
std::string yaml_text(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::string text;
  for (const auto& item : node)
    text +=
        (text.empty() ? "" : ",") + (node.IsMap() ? item.first.Scalar() + ":" + item.second.Scalar() : item.Scalar());
  return text;
}

std::string bounds_text(const Option& option) {
  if (std::isinf(option.least)) return "a finite number";
  if (std::isinf(option.most)) return fmt::format("{} or more", option.least);
  const bool two = option.kind == Option::Kind::integer && option.most == option.least + 1;
  return fmt::format("{} {} {}", option.least, two ? "or" : "to", option.most);
}

}  // namespace

const Option& OptionTable::find(const std::string& flag) const {
  for (const Option& option : options_)
    if (option.flag == flag) return option;
  fail_usage("no setting is named " + flag);
}

void OptionTable::refuse_idle(const std::vector<IdleFlag>& rules) const {
  for (const IdleFlag& rule : rules) {
    const Option& option = find(rule.flag);
    const bool from_environment = option.origin == environment_name(rule.flag);
    if (rule.used || !(option.origin == "flag" || from_environment)) continue;
    if (option.kind == Option::Kind::toggle && !toggle(rule.flag)) continue;  // "off" asks for nothing
    fail_usage((from_environment ? option.origin : "--" + rule.flag) + " has no effect on " + rule.where);
  }
}

bool OptionTable::overrides(const std::string& flag, const std::string& other) const {
  const auto turn = [this](const std::string& name) {
    const std::string& origin = find(name).origin;
    return origin == "flag" ? 3 : origin == environment_name(name) ? 2 : origin == "default" ? 0 : 1;
  };
  return turn(flag) > turn(other);
}

void OptionTable::check(const Option& option) const {
  if (option.value.empty()) return;
  const std::string what = "--" + option.flag + (option.origin == "flag" ? "" : " (" + option.origin + ")");
  const auto bounded = [&](auto value) {
    if (value >= option.least && value <= option.most && std::isfinite(double(value))) return;
    fail_usage(fmt::format("{}: expected {}, found {}", what, bounds_text(option), option.value));
  };
  if (option.kind == Option::Kind::integer) bounded(parse_number<int64_t>(option.value, what));
  if (option.kind == Option::Kind::number) bounded(parse_number<double>(option.value, what));
  if (option.kind == Option::Kind::toggle) toggle(option.flag);
  if (option.kind == Option::Kind::numbers) numbers(option.flag);
}

void OptionTable::set(const std::string& flag, const std::string& value, const std::string& origin) {
  Option& option = const_cast<Option&>(find(flag));
  // A repeated list flag adds to itself; another source replaces it.
  const bool add = option.kind == Option::Kind::list && option.origin == origin && !option.value.empty();
  option.value = add ? option.value + "," + value : value;
  option.origin = origin;
  check(option);
}

void OptionTable::load_yaml(const YamlFile& file) {
  const std::string& path = file.path;
  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    fail_usage(path + ": cannot open the configuration");
  } catch (const YAML::Exception& error) {
    fail_usage(fmt::format("{}:{}: {}", path, error.mark.line + 1, error.msg));
  }
  if (!root.IsMap()) fail_usage(path + ": expected a YAML map of settings");
  std::set<std::string> seen;
  const auto apply_leaf = [&](const std::string& key, const YAML::Node& key_node, const YAML::Node& value) {
    const std::string text = yaml_text(value), where = fmt::format("{}:{}", path, key_node.Mark().line + 1);
    if (!seen.insert(key).second) fail_usage(fmt::format("{}: {} is given twice", where, key));
    for (const Refusal& refusal : file.refusals)
      if (refusal.yaml == key) {
        if (refusal.accepted == "*" || text == refusal.accepted) return;
        fail_usage(fmt::format("{}: {}: expected {}, found {}: {}", where, key,
                               refusal.accepted.empty() ? "nothing" : refusal.accepted, text, refusal.reason));
      }
    for (const Option& option : options_)
      if (option.yaml == key) return set(option.flag, text, where);
    fail_usage(fmt::format("{}: unknown key {}", where, key));
  };
  for (const auto& section : root) {
    const std::string name = section.first.Scalar();
    const bool leaf = !section.second.IsMap();
    if (leaf) {
      apply_leaf(name, section.first, section.second);
      continue;
    }
    for (const auto& item : section.second) apply_leaf(name + "." + item.first.Scalar(), item.first, item.second);
  }
}

void OptionTable::load_environment() {
  for (const Option& option : options_)
    for (const std::string& name : {option.alias, option.flag})
      if (const char* value = name.empty() ? nullptr : std::getenv(environment_name(name).c_str()))
        set(option.flag, value, environment_name(option.flag));
}

/// The words of the command line as this parser takes them: the reference programs of the climate benchmark spell their
/// flags with underscores and write lists of numbers as words of their own.
std::vector<std::string> OptionTable::join_numbers(int argc, char** argv) const {
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
      const bool takes_numbers = std::any_of(options_.begin(), options_.end(), [&](const Option& o) {
        return o.kind == Option::Kind::numbers && (o.flag == name || o.alias == name);
      });
      next_is_value = takes_numbers && name_end == word.end();
      in_list = takes_numbers && name_end != word.end();
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

bool OptionTable::read(int argc, char** argv, const std::string& description, YamlFile* yaml) {
  CLI::App app(description);
  app.set_version_flag("--version", version_text());
  std::vector<std::vector<std::string>> values(options_.size());
  std::vector<CLI::Option*> handles;
  for (size_t i = 0; i < options_.size(); ++i) {
    const Option& o = options_[i];
    const std::string help = o.help + (o.value.empty() ? "" : " [" + o.value + "]");
    if (o.kind == Option::Kind::toggle)
      handles.push_back(app.add_flag("--" + o.flag + ",!--no-" + o.flag, help));
    else
      handles.push_back(app.add_option("--" + o.flag + (o.alias.empty() ? "" : ",--" + o.alias), values[i], help)
                            ->type_name(o.kind == Option::Kind::integer   ? "INT"
                                        : o.kind == Option::Kind::number  ? "FLOAT"
                                        : o.kind == Option::Kind::numbers ? "NUMBERS"
                                                                          : "TEXT")
                            ->allow_extra_args(false));
  }
  if (yaml) app.add_option("config", yaml->path, "YAML configuration");
  const std::vector<std::string> words = join_numbers(argc, argv);
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
  return parse_number<int64_t>(text(flag), "--" + flag);
}
double OptionTable::number(const std::string& flag) const {
  return parse_number<double>(text(flag), "--" + flag);
}

std::string OptionTable::canonical(const Option& option, const std::string& value) {
  switch (option.kind) {
    case Option::Kind::toggle:
      return truth_of(option.flag, value) ? "true" : "false";
    case Option::Kind::integer:
      return value.empty() ? value : fmt::format("{}", parse_number<int64_t>(value, "--" + option.flag));
    case Option::Kind::number:
      return value.empty() ? value : fmt::format("{}", parse_number<double>(value, "--" + option.flag));
    case Option::Kind::numbers: {
      std::string all;
      if (!value.empty())
        for (std::string_view part : split(value, ','))
          all += fmt::format("{}{}", all.empty() ? "" : ",", parse_number<double>(trim(part), "--" + option.flag));
      return all;
    }
    default:
      return value;
  }
}

bool OptionTable::toggle(const std::string& flag) const {
  return truth_of(flag, text(flag));
}

bool OptionTable::truth_of(const std::string& flag, std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (value == "true" || value == "1" || value == "on" || value == "yes") return true;
  if (value == "false" || value == "0" || value == "off" || value == "no" || value.empty()) return false;
  fail_usage("--" + flag + ": expected true or false, found " + value);
}

std::vector<std::string> OptionTable::list(const std::string& flag) const {
  std::vector<std::string> items;
  if (text(flag).empty()) return items;
  for (std::string_view part : split(text(flag), ',')) items.emplace_back(trim(part));
  return items;
}

std::vector<double> OptionTable::numbers(const std::string& flag) const {
  std::vector<double> values;
  for (const std::string& item : list(flag)) values.push_back(parse_number<double>(item, "--" + flag));
  return values;
}

int wanted_threads(const OptionTable& options) {
  const int64_t wish = options.integer("threads");
  return wish > 0 ? static_cast<int>(wish) : default_threads();
}

int run_program(const char* name, int (*body)(int, char**), int argc, char** argv) {
  try {
    return body(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "{}: error: {}\n", name, error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: error: out of memory\n", name);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: error: {}\n", name, error.what());
  }
  return static_cast<int>(ErrorKind::runtime);
}

}  // namespace convoy::apps
