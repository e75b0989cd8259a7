#include "bench/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "bench/kernel_kind.h"
#include "bench/measurements.h"
#include "bench/rank_test.h"
#include "core/error.h"
#include "core/median.h"

namespace convoy::bench {
namespace {

/// Of the samples that the rank test sees; the whole run's where a file holds none.
double middle(const Measurement& m) {
  return m.samples.empty() ? m.median_ms : convoy::median(m.samples);
}

std::set<std::string> keys(const std::vector<RowName>& rows) {
  std::set<std::string> all;
  for (const RowName& row : rows) all.insert(row.key());
  return all;
}

std::set<std::string> timed_keys(const Measurements& run) {
  std::set<std::string> all;
  for (const Measurement& m : run.timed) all.insert(m.key());
  return all;
}

/// The runs of a file may differ.
std::string condition_text(const Measurements& run, const std::string& name) {
  std::string text;
  for (const std::string& value : run.conditions.at(name))
    text += (text.empty() ? "" : " and ") + (value.empty() ? "none" : value);
  return text;
}

/// Whether both files say it.
bool both_say(const Measurements& before, const Measurements& after, const std::string& name) {
  return before.conditions.count(name) && after.conditions.count(name);
}

/// States the commits, and warns of whatever else differs. Returns whether both ran alike, as far as it decides times.
bool ran_alike(const Measurements& before, const Measurements& after) {
  bool alike = true;
  if (both_say(before, after, "commit"))
    fmt::print("  {:<17} {:>10} {:>10}\n", "commit", condition_text(before, "commit"), condition_text(after, "commit"));
  for (const char* name : {"machine", "threads", "CONVOY_MAX_ISA", "cold"}) {
    if (!both_say(before, after, name)) {
      alike = alike && name == std::string("CONVOY_MAX_ISA");  // machines name the sets that they may use
      continue;
    }
    if (before.conditions.at(name) == after.conditions.at(name)) continue;
    alike = false;
    fmt::print(stderr, "warning: {}: old {}, new {}: not the kernels alone differ\n", name,
               condition_text(before, name), condition_text(after, name));
  }
  return alike;
}

void warn_of_ceilings(const Measurements& before, const Measurements& after) {
  for (const Measurements* run : {&before, &after})
    for (const std::string& changes : run->changed_ceilings)
      fmt::print(stderr, "warning: {}: the machine's speed changed during the run ({})\n", run->path, changes);
  std::map<std::string, std::pair<double, double>> both;  // 0: not measured
  for (const auto& [name, value] : before.ceilings) both[name].first = value;
  for (const auto& [name, value] : after.ceilings) both[name].second = value;
  for (const auto& [name, values] : both) {
    const auto text = [](double value) { return value > 0 ? fmt::format("{:.1f}", value) : "-"; };
    const auto& [old, now] = values;
    fmt::print("  ceiling {:<9} {:>10} {:>10}\n", name, text(old), text(now));
    if (old > 0 && now > 0 && std::abs(now - old) > 0.1 * old)
      fmt::print(stderr,
                 "warning: {}: old {:.1f}, new {:.1f}: the machine had another speed, times differ by as much\n", name,
                 old, now);
  }
}

/// A count and a line for each row that `listed` says yes to.
template <class Row>
void list_rows(const std::string& what, const std::vector<Row>& rows,
               const std::function<bool(const RowName&)>& listed) {
  std::string lines;
  int count = 0;
  for (const Row& row : rows)
    if (listed(row)) lines += "  " + row.text() + "\n", ++count;
  if (count) fmt::print("{} {}:\n{}", count, what, lines);
}

void list_differences(const Measurements& before, const Measurements& after) {
  const std::set<std::string> old_timed = timed_keys(before), new_timed = timed_keys(after),
                              old_wrong = keys(before.wrong), new_wrong = keys(after.wrong),
                              old_refused = keys(before.refused), new_refused = keys(after.refused);
  list_rows("only in " + before.path, before.timed, [&](const RowName& row) {
    return !new_timed.count(row.key()) && !new_wrong.count(row.key()) && !new_refused.count(row.key());
  });
  list_rows("only in " + after.path, after.timed, [&](const RowName& row) {
    return !old_timed.count(row.key()) && !old_wrong.count(row.key()) && !old_refused.count(row.key());
  });
  list_rows("timed now, refused before", after.timed,
            [&](const RowName& row) { return old_refused.count(row.key()) > 0; });
  list_rows("WRONG before, not measured now", before.wrong,
            [&](const RowName& row) { return !new_timed.count(row.key()) && !new_wrong.count(row.key()); });
  list_rows("refused now, timed before", after.refused,
            [&](const RowName& row) { return old_timed.count(row.key()) > 0; });
  list_rows("right again", after.timed, [&](const RowName& row) { return old_wrong.count(row.key()) > 0; });
  list_rows("WRONG now, right before", after.wrong, [&](const RowName& row) { return old_timed.count(row.key()) > 0; });
  list_rows("WRONG, not right before either", after.wrong,
            [&](const RowName& row) { return !old_timed.count(row.key()); });
}

/// A problem and a kernel that both runs timed.
struct RowPair {
  const Measurement *before, *after;
  double ratio() const { return middle(*before) / middle(*after); }
};

std::vector<RowPair> pairs(const Measurements& before, const Measurements& after) {
  std::map<std::string, const Measurement*> old_of;
  for (const Measurement& m : before.timed) old_of[m.key()] = &m;
  std::vector<RowPair> both;
  for (const Measurement& m : after.timed)
    if (const auto found = old_of.find(m.key()); found != old_of.end()) both.push_back({found->second, &m});
  return both;
}

/// Rows of a library that is the same in both runs: what their times say is of the machine, where both ran alike.
/// `own`: the mean of old/new over our rows.
void print_control(const std::vector<RowPair>& both, double own, bool alike) {
  std::vector<double> ratios;
  for (const RowPair& pair : both)
    // Definitions run kernels of our own where the library has none.
    if (is_library(pair.after->kernel) && !is_definition(pair.after->kernel) && !pair.after->libraries.empty() &&
        pair.before->libraries == pair.after->libraries)
      ratios.push_back(pair.ratio());
  if (ratios.empty()) return;
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  fmt::print("rows of the same library: {}, old/new {:.3f} to {:.3f}, median {:.3f}\n", ratios.size(), *low, *high,
             convoy::median(ratios));
  constexpr double steady = 1.05;
  if (const double moved = convoy::median(ratios); std::max(moved, 1 / moved) > steady && !std::isnan(own))
    fmt::print("  {} took {:.3f} times as long: beside the library old/new is {:.3f}\n",
               alike ? "the machine, not the kernels," : "the library", 1 / moved, own / moved);
}

}  // namespace

int compare(const std::string& old_path, const std::string& new_path, const Judgement& judgement) {
  Measurements before = read_measurements(old_path), after = read_measurements(new_path);
  const auto on_one_number = [](const Measurements& run) {
    const auto threads = run.conditions.find("threads");
    return threads != run.conditions.end() && threads->second.size() == 1;
  };
  if (on_one_number(before) && on_one_number(after)) before.forget_threads(), after.forget_threads();
  const bool alike = ran_alike(before, after);
  warn_of_ceilings(before, after);
  const std::vector<RowPair> both = pairs(before, after);
  // A row of so few samples that it cannot be told apart is no test.
  std::vector<double> p, least;
  for (const auto& [o, m] : both) {
    least.push_back(least_p(o->samples.size(), m->samples.size()));
    if (least.back() < judgement.significance) p.push_back(rank_test(o->samples, m->samples));
  }
  const std::vector<double> q_of_tests = false_discovery(p);
  fmt::print("{:<36} {:<5} {:<18} {:>10} {:>10} {:>8} {:>8} {:>8}\n", "problem", "type", "kernel", "old ms", "new ms",
             "old/new", "p", "q");
  double log_sum = 0, own_log = 0;
  int own = 0;
  int faster = 0, slower = 0, own_slower = 0, few = 0;
  size_t tests = 0;
  for (size_t i = 0; i < both.size(); ++i) {
    const auto& [o, m] = both[i];
    const double ratio = both[i].ratio();
    const bool tested = least[i] < judgement.significance;
    const double p_here = tested ? p[tests] : 1, q = tested ? q_of_tests[tests] : 1;
    tests += tested;
    const bool differs = q < judgement.significance && std::max(ratio, 1 / ratio) >= 1 + judgement.least;
    faster += differs && ratio > 1, slower += differs && ratio < 1;
    constexpr double told_by_a_clock = 0.01;  // ms
    own_slower += differs && ratio < 1 && !is_library(m->kernel) && middle(*m) >= told_by_a_clock;
    few += least[i] * double(std::max<size_t>(1, p.size())) >= judgement.significance;
    fmt::print("{:<36} {:<5} {:<18} {:>10.3f} {:>10.3f} {:>8.3f} {:>8.1e} {:>8.1e}{}\n", m->name, m->dtype, m->kernel,
               middle(*o), middle(*m), ratio, p_here, q,
               !differs    ? ""
               : ratio > 1 ? "  faster"
                           : "  SLOWER");
    log_sum += std::log(ratio);
    if (!is_library(m->kernel)) own_log += std::log(ratio), ++own;
  }
  list_differences(before, after);
  if (!both.empty())
    fmt::print(
        "{} in common, geometric mean of old/new medians {:.3f}, {} faster and {} slower by {:g} % or more at q < "
        "{}\n",
        both.size(), std::exp(log_sum / double(both.size())), faster, slower, 100 * judgement.least,
        judgement.significance);
  else if (after.wrong.empty())
    fail_data(new_path + ": no problem and kernel in common with " + old_path);
  print_control(both, own ? std::exp(own_log / own) : NAN, alike);
  if (few)
    fmt::print("{} have too few samples to be called by themselves among {} tests at q < {}\n", few, p.size(),
               judgement.significance);
  if (!after.wrong.empty()) fmt::print("{} WRONG in {}\n", after.wrong.size(), new_path);
  if (judgement.slower_fails && own_slower) fmt::print("{} SLOWER in {}\n", own_slower, new_path);
  return after.wrong.empty() && !(judgement.slower_fails && own_slower) ? 0 : 1;
}

}  // namespace convoy::bench
