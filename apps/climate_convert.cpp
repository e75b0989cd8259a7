// Fields of NetCDF files on any latitude-longitude grid, as climate images in the layout of MLPerf HPC DeepCAM.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/say.h"
#include "apps/simulate/atmosphere.h"
#include "core/text.h"
#include "io/climate.h"
#include "io/file.h"
#include "io/netcdf.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
constexpr int channel_count = 16;

std::vector<Option> option_list() {
  using K = Option::Kind;
  return {{"map", "", "", "CHANNEL=FILE:VARIABLE[@LEVEL][*FACTOR][+OFFSET], repeatable (PSL=a.nc:slp*100)", K::list},
          {"list", "", "", "print the fields of this file, and stop"},
          {"out", "", "", "folder to write images and stats.h5 into"},
          {"name", "", "", "start of the file names (default: data-DAY where the time says days, else image)"},
          Option{"first", "", "0", "first step", K::integer}.within(0, 1 << 30),
          Option{"steps", "", "0", "steps converted (0 = all)", K::integer}.within(0, 1 << 30),
          Option{"height", "", "768", "rows of the images", K::integer}.within(32, 1 << 16),
          Option{"width", "", "1152", "columns of the images", K::integer}.within(32, 1 << 16),
          {"same-days", "", "true", "refuse fields whose times say different days for a step", K::toggle},
          {"labels", "", "false", "label by the detector of climate_simulate (needs TMQ, U850, V850, PSL and T500)",
           K::toggle}};
}

/// Where the mean of a channel lies over any large part of the globe, in the units of the official files.
struct UsualMean {
  double least, most;
  const char* unit;
};
constexpr UsualMean wind{-60, 60, "m/s"}, pressure{4e4, 1.2e5, "Pa"}, temperature{150, 350, "K"};
constexpr std::array<UsualMean, channel_count> usual_means{{{0, 100, "kg/m2"},
                                                            wind,
                                                            wind,
                                                            wind,
                                                            wind,
                                                            {0, 0.05, "kg/kg"},
                                                            pressure,
                                                            pressure,
                                                            temperature,
                                                            temperature,
                                                            {0, 1e-5, "m/s"},
                                                            temperature,
                                                            temperature,
                                                            {-2000, 2000, "m"},
                                                            {7000, 15000, "m"},
                                                            {0, 2000, "m"}}};

/// Other units train no worse, but mean something else to networks, pictures and the detector of storms.
void warn_of_units(size_t channel, double mean) {
  const UsualMean& usual = usual_means[channel];
  if (mean >= usual.least && mean <= usual.most) return;
  const char* name = climate_channels[channel];
  say(stderr, "warning: channel {}: expected a mean of {:g} to {:g} {}, found {:.6g}: in other units?", name,
      usual.least, usual.most, usual.unit, mean);
  say(stderr, " (--map {}=FILE:VARIABLE*FACTOR+OFFSET)\n", name);
}

struct Source {
  int channel = 0;
  std::string path, variable;
  std::optional<double> level;
  double factor = 1, offset = 0;
  bool stepped = true;  ///< false: the same at every step
  int64_t step(int64_t image) const { return stepped ? image : 0; }
  std::string text() const { return path + ": variable " + variable; }
};

/// Whether the sign at `at` belongs to the exponent of a number behind another mark: "v*1e+2", but not "v1e+2".
bool is_exponent(const std::string& text, size_t at) {
  if (at < 2 || (text[at - 1] != 'e' && text[at - 1] != 'E')) return false;
  const size_t mark = text.find_last_of("@*+", at - 1);
  if (mark == std::string::npos) return false;
  double number = 0;
  const char *first = text.data() + mark + 1, *end = text.data() + at - 1;
  const auto parsed = std::from_chars(first, end, number);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

/// Cuts "text<mark>number" into its two parts where the mark is there.
std::optional<double> take_number(std::string& text, char mark) {
  size_t at = text.rfind(mark);
  while (at != std::string::npos && is_exponent(text, at)) at = text.rfind(mark, at - 1);
  if (at == std::string::npos) return std::nullopt;
  const double number = parse_number<double>(text.substr(at + 1), "--map");
  if (!std::isfinite(number)) fail_usage("--map: expected a finite number, found \"" + text.substr(at + 1) + "\"");
  text.resize(at);
  return number;
}

Source parse_source(const std::string& text) {
  const size_t equals = text.find('='), colon = text.rfind(':');
  if (equals == std::string::npos || colon == std::string::npos || colon < equals)
    fail_usage("--map: expected CHANNEL=FILE:VARIABLE[@LEVEL][*FACTOR][+OFFSET], found " + text);
  Source s;
  const std::string channel = text.substr(0, equals);
  const auto* found = std::find(std::begin(climate_channels), std::end(climate_channels), channel);
  if (found == std::end(climate_channels)) {
    std::string names;
    for (const char* name : climate_channels) names += std::string(names.empty() ? "" : ", ") + name;
    fail_usage("--map: expected a channel of " + names + "; found " + channel);
  }
  s.channel = static_cast<int>(found - std::begin(climate_channels));
  s.path = text.substr(equals + 1, colon - equals - 1);
  s.variable = text.substr(colon + 1);
  s.offset = take_number(s.variable, '+').value_or(0);
  s.factor = take_number(s.variable, '*').value_or(1);
  s.level = take_number(s.variable, '@');
  return s;
}

/// All sources of --map, whose list is cut at commas: a piece that begins with no word and "=" belongs to the file name
/// ahead of it.
std::vector<Source> parse_sources(const std::vector<std::string>& pieces) {
  std::vector<std::string> texts;
  for (const std::string& piece : pieces) {
    const size_t word =
        std::find_if_not(piece.begin(), piece.end(), [](unsigned char c) { return std::isalnum(c); }) - piece.begin();
    const bool begins = word > 0 && word < piece.size() && piece[word] == '=';
    if (begins || texts.empty())
      texts.push_back(piece);
    else
      texts.back() += "," + piece;
  }
  std::vector<Source> sources;
  for (const std::string& text : texts) sources.push_back(parse_source(text));
  return sources;
}

/// The files that sources read.
using Files = std::map<std::string, std::unique_ptr<NetcdfFile>>;

/// The day of every step by the first source that says them. Throws Error(data) where another says a different one,
/// unless `differ` is meant. `undated` gets what is not understood of a time that says none.
std::vector<std::optional<std::string>> days_of_steps(const std::vector<Source>& sources, const Files& files,
                                                      int64_t first, int64_t end, bool differ, std::string& undated) {
  std::vector<std::optional<std::string>> days;
  std::string who;
  for (const Source& s : sources) {
    if (!s.stepped || (differ && !days.empty())) continue;
    const auto own = files.at(s.path)->days(s.variable, undated.empty() ? &undated : nullptr);
    if (own.empty() || !own[static_cast<size_t>(first)]) continue;
    if (days.empty()) days = own, who = s.text();
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i)
      if (!differ && own[i] && days[i] && *own[i] != *days[i])
        fail_data(
            fmt::format("{}: step {} is of {}, but {} is of {}: fields of different days make no image "
                        "(--no-same-days takes them)",
                        s.text(), i, *own[i], who, *days[i]));
  }
  return days;
}

/// The values of a channel at a step, and how many of them were missing.
std::pair<std::vector<float>, int64_t> read_channel(const Source& s, const NetcdfFile& file, int64_t step,
                                                    int64_t height, int64_t width) {
  const std::string where = s.text();
  std::vector<float> field = regrid(file.read(s.variable, s.step(step), s.level), height, width);
  const int64_t filled = fill_missing(field, height, width, where);
  for (float& v : field) {
    const double value = double(v) * s.factor + s.offset;
    if (!(std::abs(value) <= double(std::numeric_limits<float>::max())))
      fail_data(fmt::format("{}, channel {}: expected values that f32 holds, found {:g}", where,
                            climate_channels[s.channel], value));
    v = float(value);
  }
  return {std::move(field), filled};
}

int convert_main(int argc, char** argv) {
  OptionTable o(option_list());
  if (!o.read(argc, argv,
              "Converts NetCDF fields to climate images. Exit codes: 0 done, 1 run-time error, 2 usage, 3 data."))
    return 0;
  expect_single_task();
  const bool lists = !o.text("list").empty();
  std::vector<IdleFlag> rules;  // a list depends on the file alone
  for (const Option& option : o.all())
    if (option.flag != "list") rules.push_back({option.flag, !lists, "--list"});
  o.refuse_idle(rules);
  if (lists) {
    const NetcdfFile file(o.text("list"));
    for (const std::string& name : file.fields()) try {
        const auto steps = file.steps(name);
        say("{}  {}\n", name, steps ? fmt::format("{} steps", *steps) : "no time");
      } catch (const Error& error) {
        say("{}  cannot be converted: {}\n", name, error.what());
      }
    return 0;
  }
  std::vector<Source> sources = parse_sources(o.list("map"));
  if (sources.empty()) fail_usage("--map is required");
  if (o.text("out").empty()) fail_usage("--out is required");
  const int64_t height = o.integer("height"), width = o.integer("width"), first = o.integer("first");
  Files files;
  for (const Source& s : sources)
    if (!files.count(s.path)) files[s.path] = std::make_unique<NetcdfFile>(s.path);
  std::vector<bool> mapped(channel_count);
  int64_t available = INT64_MAX;
  std::string shortest;  ///< the variable with the fewest steps
  int64_t longest = 0;
  for (Source& s : sources) {
    if (mapped[static_cast<size_t>(s.channel)])
      fail_usage(std::string("--map: ") + climate_channels[s.channel] + " is mapped twice");
    mapped[static_cast<size_t>(s.channel)] = true;
    const auto steps = files[s.path]->steps(s.variable);
    s.stepped = steps.has_value();
    if (!steps) continue;
    longest = std::max(longest, *steps);
    if (*steps < available) available = *steps, shortest = s.text();
  }
  if (longest == 0) available = 1, shortest = sources[0].text();
  if (o.toggle("labels"))
    for (int channel : {0, 1, 2, 7, 9})
      if (!mapped[static_cast<size_t>(channel)])
        fail_usage(std::string("--labels needs ") + climate_channels[channel] + ", which is not mapped");
  const int64_t wanted = o.integer("steps"), steps = wanted > 0 ? wanted : available - first;
  if (steps < 1 || steps > available - first)
    fail_data(fmt::format("{}: expected {} steps for --first {} and --steps {}, found {}", shortest,
                          first + std::max<int64_t>(1, wanted), first, wanted, available));
  if (wanted == 0 && longest > available)
    say(stderr, "warning: {} has {} steps, another {}: those behind are left out\n", shortest, available, longest);
  const bool differ = !o.toggle("same-days"), named = o.is_set("name");
  std::vector<std::optional<std::string>> days;  // which names and a check ask for
  std::string undated;
  if (!named || !differ) days = days_of_steps(sources, files, first, first + steps, differ, undated);
  const bool dated = !named && !days.empty();
  if (!dated && steps > 1)
    say(stderr, "warning: {}: a random split will take every image for a day of its own\n",
        named              ? "--name: the files' names tell no days"
        : !undated.empty() ? undated
                           : "no time has units like \"days since 2106-01-01\"");
  const std::string name = o.is_set("name") ? o.text("name") : "image";
  if (name.empty() || name.find('/') != std::string::npos)
    fail_usage("--name: expected the start of a file's name, found " + name);
  NewDataSet data_set({o.text("out")});
  ClimateStats stats;
  std::map<int, int64_t> filled;
  for (int64_t step = first; step < first + steps; ++step) {
    const auto day = dated ? days[static_cast<size_t>(step)] : std::nullopt;
    std::vector<float> image(static_cast<size_t>(height * width * channel_count));
    for (const Source& s : sources) {
      const auto [field, missing] = read_channel(s, *files[s.path], step, height, width);
      filled[s.channel] += missing;
      for (size_t i = 0; i < field.size(); ++i) image[i * channel_count + static_cast<size_t>(s.channel)] = field[i];
    }
    std::vector<uint8_t> labels_0, labels_1;
    if (o.toggle("labels")) {
      labels_0 = simulate::detect_storms({height, width}, image, 24);
      labels_1 = simulate::detect_storms({height, width}, image, 21);
    }
    const std::string file =
        day ? fmt::format("data-{}-{:04d}-0.h5", *day, step) : fmt::format("{}-{:04d}.h5", name, step);
    write_climate_file((fs::path(o.text("out")) / file).string(), {height, width, channel_count}, image, labels_0,
                       labels_1);
    stats.add(image_stats(image, channel_count));
  }
  for (const Source& s : sources) {
    const double share = double(filled[s.channel]) / double(steps * height * width);
    if (share > 0.5)
      say(stderr, "warning: {}, channel {}: {:.2f} % of the values were missing, and are made up from neighbours\n",
          s.text(), climate_channels[s.channel], 100 * share);
  }
  for (int c = 0; c < channel_count; ++c) {
    const auto k = static_cast<size_t>(c);
    if (!mapped[k]) {
      say("{:<7} not mapped: 0 everywhere\n", climate_channels[c]);
      continue;
    }
    warn_of_units(k, stats.mean[k]);
    say("{:<7} from {:.5g} to {:.5g}, {:.2f} % filled from neighbours\n", climate_channels[c], stats.minimum[k],
        stats.maximum[k], 100 * double(filled[c]) / double(steps * height * width));
  }
  widen_constant_channels(stats);
  write_stats((fs::path(o.text("out")) / "stats.h5").string(), stats);
  data_set.complete();
  say("wrote {} images of {}x{}x16 to {}\n", steps, height, width, o.text("out"));
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("climate_convert", convoy::apps::convert_main, argc, argv);
}
