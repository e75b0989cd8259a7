// Simulated days of weather with labelled storms, in the layout of MLPerf HPC DeepCAM.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/simulation_record.h"
#include "apps/common/say.h"
#include "apps/simulate/atmosphere.h"
#include "core/error.h"
#include "core/parallel.h"
#include "io/file.h"
#include "io/climate.h"
#include "io/netcdf.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using namespace simulate;

std::vector<Option> option_list() {
  using K = Option::Kind;
  return {
      {"out", "", "", "folder to write train/, validation/ and stats.h5 into"},
      Option{"days", "", "16", "days to train on", K::integer}.within(1, 1 << 20),
      Option{"validation-days", "", "4", "further days, to validate on", K::integer}.within(0, 1 << 20),
      Option{"steps", "", "4", "images a day, evenly spaced (the official sets have 8)", K::integer}.within(1, 1440),
      Option{"height", "", "768", "rows from pole to pole", K::integer}.within(32, 1 << 16),
      Option{"width", "", "1152", "columns around the globe", K::integer}.within(32, 1 << 16),
      Option{"cyclones", "", "1.5", "tropical cyclones per image on average; fewer where warm sea runs out", K::number}
          .within(0, 500),
      Option{"rivers", "", "6", "atmospheric rivers per image on average", K::number}.within(0, 500),
      {"orography", "", "auto",
       "NetCDF file (FILE or FILE:VARIABLE) of heights in metres, none (drawn continents), or auto: Debian's "
       "ferret-datasets"},
      {"labels", "", "truth", "labels_0: truth (what was put there) or heuristic (what a detector finds)"},
      Option{"year", "", "2106", "year in the file names", K::integer}.within(0, 9999),
      {"run", "", "0", "number of the run in the file names", K::integer},
      Option{"seed", "", "1", "of everything random", K::integer}.within(-0x1p63),
      Option{"threads", "", "0", "0 = OMP_NUM_THREADS or all cores", K::integer}.within(0, most_threads)};
}

constexpr int64_t days_of_year = 365;  // as in the climate model's calendar

/// "data-2106-03-04-02-0.h5".
std::string file_name(int64_t year, int64_t day, int64_t step, int64_t run) {
  constexpr int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  year += day / days_of_year, day %= days_of_year;
  int month = 0;
  while (day >= lengths[month]) day -= lengths[month++];
  return fmt::format("data-{:04}-{:02}-{:02}-{:02}-{}.h5", year, month + 1, day + 1, step, run);
}

/// Heights on the grid, and the share of its pixels that are sea since they have none: many files hold heights of land
/// alone.
std::pair<std::vector<float>, double> regrid_land(GriddedField field, const Grid& grid) {
  // Interpolated with 0 in place of missing heights, and divided by the weight of those that are there: coasts lie half
  // way between cells, and land is as high as its cells.
  GriddedField weight = field;
  for (size_t i = 0; i < field.values.size(); ++i) {
    const bool missing = !std::isfinite(field.values[i]);
    weight.values[i] = missing ? 0.0f : 1.0f;
    if (missing) field.values[i] = 0;
  }
  std::vector<float> heights = regrid(field, grid.height, grid.width);
  const std::vector<float> weights = regrid(weight, grid.height, grid.width);
  int64_t missing = 0;
  for (size_t i = 0; i < heights.size(); ++i)
    if (weights[i] >= 0.5f)  // which NaN, outside of the field, is not
      heights[i] /= weights[i];
    else
      heights[i] = sea_floor, ++missing;
  return {std::move(heights), double(missing) / double(grid.pixels())};
}

/// Heights on the grid; empty where continents are to be drawn.
std::vector<float> read_orography(const std::string& wish, const Grid& grid) {
  const std::string known = "/usr/share/ferret-vis/data/etopo20.cdf";
  if (wish == "none" || (wish == "auto" && (!has_netcdf() || !fs::exists(known)))) return {};
  std::string path = wish == "auto" ? known : wish, name;
  if (const size_t colon = path.rfind(':'); colon != std::string::npos && !fs::exists(path))
    name = path.substr(colon + 1), path.resize(colon);
  const NetcdfFile file(path);
  const auto fields = file.fields();
  if (name.empty() && fields.size() != 1)
    fail_data(fmt::format("{}: expected one field, found {}: name the heights as {}:VARIABLE", path,
                          fields.empty() ? "none" : fmt::format("{}", fmt::join(fields, ", ")), path));
  if (name.empty()) name = fields[0];
  const auto [heights, missing] = regrid_land(file.read(name, 0, std::nullopt), grid);
  const std::string what = path + ": variable " + name;
  if (missing == 1) fail_data(what + ": expected heights, found every value missing");
  const float low = *std::min_element(heights.begin(), heights.end()),
              high = *std::max_element(heights.begin(), heights.end());
  constexpr float least_mountain = 1000, most_mountain = 10000;
  if (!(high >= least_mountain && high <= most_mountain))
    fail_data(fmt::format("{}: expected heights in metres, the largest between {} and {}, found {:g}", what,
                          least_mountain, most_mountain, high));
  if (low > 0)
    fail_data(fmt::format("{}: expected sea, where heights are 0, negative or missing, found heights from {:g} m on",
                          what, low));
  const auto sea = std::count_if(heights.begin(), heights.end(), [](float v) { return v <= 0; });
  say("orography: {}, up to {:.0f} m, {:.2f} % sea, {:.2f} % for lack of heights\n", what, high,
      100 * double(sea) / double(grid.pixels()), 100 * missing);
  return heights;
}

int simulate_main(int argc, char** argv) {
  OptionTable o(option_list());
  if (!o.read(argc, argv, "Simulates labelled climate images. Exit codes: 0 done, 1 run-time error, 2 usage, 3 data."))
    return 0;
  expect_single_task();
  if (o.text("out").empty()) fail_usage("--out is required");
  const bool heuristic = o.text("labels") == "heuristic";
  if (!heuristic && o.text("labels") != "truth")
    fail_usage("--labels: expected truth or heuristic, found " + o.text("labels"));
  const int64_t train = o.integer("days"), validation = o.integer("validation-days"), steps = o.integer("steps");
  if (const int64_t last = o.integer("year") + (train + validation - 1) / days_of_year; last > 9999)
    fail_usage(fmt::format("--year: expected days up to the year 9999, found {}", last));
  AtmosphereOptions a;
  a.grid = {o.integer("height"), o.integer("width")};
  a.seed = static_cast<uint64_t>(o.integer("seed"));
  a.cyclones = o.number("cyclones"), a.rivers = o.number("rivers");
  a.orography = read_orography(o.text("orography"), a.grid);
  const int threads = wanted_threads(o);
  const fs::path out = o.text("out");
  if (validation == 0) refuse_used_folder(out / "validation");
  std::set<std::string> folders{out / "train"};
  if (validation > 0) folders.insert(out / "validation");
  NewDataSet data_set(folders, {out / "stats.h5", out / simulation_file});

  // Images in parallel, each on one thread; statistics are merged in image order.
  const int64_t images = (train + validation) * steps;
  std::vector<ClimateStats> stats(static_cast<size_t>(train * steps));
  std::vector<std::array<int64_t, 3>> counts(static_cast<size_t>(images));
  std::mutex mutex;
  int64_t done = 0;
  parallel_units(images, threads, [&](int64_t image) {
    const int64_t day = image / steps, step = image % steps;
    const AtmosphereImage fields = simulate_atmosphere(a, draw_day(a, day), 24.0 * double(step) / double(steps));
    const std::vector<uint8_t> found = detect_storms(a.grid, fields.values, 24);
    const std::vector<uint8_t>& labels = heuristic ? found : fields.truth;
    const std::vector<uint8_t> second = heuristic ? detect_storms(a.grid, fields.values, 21) : found;
    const fs::path folder = out / (day < train ? "train" : "validation");
    write_climate_file(folder / file_name(o.integer("year"), day, step, o.integer("run")),
                       {a.grid.height, a.grid.width, 16}, fields.values, labels, second);
    for (uint8_t label : labels) ++counts[static_cast<size_t>(image)][label];
    if (day < train) stats[static_cast<size_t>(image)] = image_stats(fields.values, 16);
    const std::lock_guard lock(mutex);
    if (++done % std::max<int64_t>(1, images / 8) == 0) say("{} of {} images\n", done, images), std::fflush(stdout);
  });
  ClimateStats all;
  for (const ClimateStats& s : stats) all.add(s);
  write_stats(out / "stats.h5", all);
  write_simulation(out.string(), "climate_simulate", o);
  data_set.complete();
  std::array<int64_t, 3> sum{};
  for (const auto& c : counts)
    for (size_t k = 0; k < 3; ++k) sum[k] += c[k];
  const double pixels = double(images * a.grid.pixels());
  say("wrote {} + {} images of {}x{}x16 to {}\n", train * steps, validation * steps, a.grid.height, a.grid.width,
      out.string());
  say("background {:.3f} %, tropical cyclones {:.4f} %, atmospheric rivers {:.3f} %\n", 100 * double(sum[0]) / pixels,
      100 * double(sum[1]) / pixels, 100 * double(sum[2]) / pixels);
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("climate_simulate", convoy::apps::simulate_main, argc, argv);
}
