// Reads the JSON lines of bench_layers: compares two runs, merges them, draws a roofline.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/common/svg.h"
#include "bench/arguments.h"
#include "bench/compare.h"
#include "bench/measurements.h"
#include "bench/provenance.h"
#include "bench/summary.h"
#include "core/error.h"
#include "io/file.h"
#include "kernels/roofline/roofs.h"

namespace {

using namespace convoy::apps;
using namespace convoy::bench;
using convoy::fail_data;

/// Where points of all panels lie along x.
struct Range {
  double low = INFINITY, high = 0;
  void add(double x) { low = std::min(low, x), high = std::max(high, x); }
};

/// Under the bandwidth as far as the knee; flat where there is none.
Series roof_of(const std::string& name, double value, double bandwidth, const Range& range) {
  Series roof{fmt::format("{} {:.0f} GFLOP/s", name, value), {}, {}, Series::Mark::line};
  const double knee = bandwidth > 0 ? value / bandwidth : range.low;
  const double margin = bandwidth > 0 ? 1 : 2;  // a line also above a single point
  for (double x : {std::min(range.low, knee) / margin, knee, std::max(range.high, knee) * margin})
    roof.x.push_back(x), roof.y.push_back(bandwidth > 0 ? std::min(value, x * bandwidth) : value);
  return roof;
}

/// Panels of a type, each with its roofs and at most so many passes that no two series have one colour.
std::vector<Plot> panels_of(const std::string& type, std::map<std::string, Series>& passes, const Measurements& run,
                            const Range& range) {
  std::vector<Plot> panels;
  std::vector<Series> roofs;
  const double bandwidth = convoy::memory_ceiling(run.ceilings).second;
  for (const auto& [name, value] : run.ceilings)
    if (convoy::machine_ceiling({{name, value}}, type).second > 0)
      roofs.push_back(roof_of(name, value, bandwidth, range));
  for (auto& [name, points] : passes) {
    if (panels.empty() || panels.back().series.size() == svg_colours)
      panels.push_back({"roofline of " + type, "FLOP per byte (dense count, operands once)", "GFLOP/s", roofs,
                        Plot::Scale::log, Plot::Scale::log, false, true});
    points.name = name + " " + type, points.mark = Series::Mark::points;
    panels.back().series.push_back(std::move(points));
  }
  return panels;
}

/// Every problem's fastest kernel as a point, FLOP per byte against GFLOP/s, under the measured ceilings of its type.
int roofline(const std::string& path, const std::string& out) {
  const Measurements run = read_measurements(path);
  std::map<std::string, Measurement> best;
  for (const Measurement& m : run.timed)
    if (auto& b = best[m.problem]; b.kernel.empty() || m.min_ms < b.min_ms) b = m;
  Range range;
  std::map<std::string, std::map<std::string, Series>> points;  // by type and pass
  int drawn = 0;
  for (const auto& [problem, m] : best) {
    if (m.gflops <= 0 || m.flop_per_byte <= 0) continue;
    Series& s = points[m.dtype][m.pass.empty() ? "other" : m.pass];
    s.x.push_back(m.flop_per_byte), s.y.push_back(m.gflops);
    s.titles.push_back(
        fmt::format("{} {} {:.1f} GFLOP/s, {:.2f} FLOP/byte", m.name, m.kernel, m.gflops, m.flop_per_byte));
    ++drawn, range.add(m.flop_per_byte);
  }
  if (drawn == 0) fail_data(path + ": holds no measurement of a problem with floating-point operations");
  std::vector<Plot> plots;
  for (auto& [type, passes] : points)
    for (Plot& panel : panels_of(type, passes, run, range)) plots.push_back(std::move(panel));
  convoy::write_text(out, render_svg(plots));
  fmt::print("{} problems drawn to {}\n", drawn, out);
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Reports on the JSON lines of bench_layers");
  app.set_version_flag("--version", convoy::bench::long_version_text());
  app.require_subcommand(1);
  std::string first, second, json, out = "roofline.svg";
  std::vector<std::string> files;
  Judgement judgement;
  CLI::App* c = app.add_subcommand(
      "compare", "two runs, problem by problem, with a rank test for each and a bound on how many are called falsely");
  c->add_option("old", first)->required();
  c->add_option("new", second)->required();
  c->add_option("--significance", judgement.significance,
                "q below which a difference counts: the share of false ones among those that are called")
      ->capture_default_str();
  c->add_option("--least", judgement.least, "share by which medians differ at least where a difference counts")
      ->capture_default_str();
  c->add_flag("--fail-on-slower", judgement.slower_fails,
              "end with 1 where kernels of our own became slower, as where results are wrong");
  CLI::App* s = app.add_subcommand("summary", "our best kernel against the best oneDNN time of all files, merged");
  s->add_option("files", files)->required();
  s->add_option("--json", json, "also write a line per problem to this file");
  double below = 0;
  s->add_option("--below", below, "also count and name the problems whose ratio is below this");
  CLI::App* r = app.add_subcommand("roofline", "every problem under the measured ceilings, as SVG");
  r->add_option("file", first)->required();
  r->add_option("--out", out)->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // help, version
    convoy::fail_usage(e.what());
  }
  if (!(judgement.significance > 0 && judgement.significance < 1))
    convoy::fail_usage(
        fmt::format("--significance: expected a number between 0 and 1, found {}", judgement.significance));
  if (!(judgement.least >= 0 && judgement.least < 10))
    convoy::fail_usage(fmt::format("--least: expected a number from 0 to 10, found {}", judgement.least));
  if (!(below >= 0 && below < 1e6)) convoy::fail_usage(fmt::format("--below: expected 0 or more, found {}", below));
  if (c->parsed()) return compare(first, second, judgement);
  if (s->parsed()) {
    if (!json.empty()) convoy::InputFiles(files).refuse(json, "--json");
    return summarize(files, json, below), 0;
  }
  convoy::InputFiles({first}).refuse(out);
  return roofline(first, out);
}

}  // namespace

int main(int argc, char** argv) {
  return convoy::bench::run_program("bench_report", run, argc, argv);
}
