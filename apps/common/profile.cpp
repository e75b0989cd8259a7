#include "apps/common/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "apps/common/version.h"
#include "core/median.h"
#include "core/text.h"
#include "kernels/plugin_list.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"

namespace convoy::apps {
namespace {

double mib(int64_t bytes) {
  return double(bytes) / (1 << 20);
}

/// Lines of events that have a time begin with it, so that another origin needs no parser.
constexpr std::string_view time_field = "{\"ts\":";

/// What the events of a node, or of another source, have in common.
std::string event_text(const std::string& name, std::string_view category, const nlohmann::json& args) {
  return fmt::format("\"name\":{},\"cat\":\"{}\",\"args\":{}", nlohmann::json(name).dump(), category, args.dump());
}

template <class Each>
void for_each_line(std::string_view text, Each each) {
  while (!text.empty()) {
    const size_t length = text.find('\n');
    each(text.substr(0, length));
    text.remove_prefix(length + 1);
  }
}

/// The time of an event's line, and what stands behind it.
std::pair<double, std::string_view> time_of(std::string_view line) {
  line.remove_prefix(time_field.size());
  const size_t length = line.find(',');
  return {parse_number<double>(line.substr(0, length), "trace: time"), line.substr(length)};
}

}  // namespace

std::string share_of_roof(double bound, double seconds) {
  return bound > 0 ? fmt::format("{:.1f}%", 100 * bound / seconds) : "-";
}

std::string_view name_of(Phase phase) {
  constexpr std::string_view names[] = {"forward", "backward", "communication", "pack", "update", "other"};
  return names[static_cast<int>(phase)];
}

Phase phase_of(const Plan& plan, size_t index) {
  const PlannedNode& node = plan.nodes[index];
  const OpFamily family = family_of(node.op.kind);
  if (family == OpFamily::pack) return Phase::pack;
  if (family == OpFamily::communication) return Phase::communication;
  if (family == OpFamily::update || node.name.ends_with(".penalty_gradient")) return Phase::update;
  for (size_t i = 0; i < index; ++i)
    if (plan.nodes[i].op.kind == OpKind::loss || plan.nodes[i].op.kind == OpKind::pixel_loss) return Phase::backward;
  return Phase::forward;
}

std::string profile_table(const Executor& executor, const Roofs& roofs) {
  const Plan& plan = executor.plan();
  std::vector<size_t> order(plan.nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return executor.times()[a].seconds > executor.times()[b].seconds; });
  double total = 0, run = 0, bound = 0;  // of all runs, in the mean of one
  int64_t most = 0;
  for (const NodeTime& t : executor.times()) {
    total += t.seconds, most = std::max<int64_t>(most, t.runs);
    if (t.runs) run += t.seconds / double(t.runs);
  }
  std::string text = fmt::format("{:<38} {:<15} {:<26} {:>10} {:>7} {:>8} {:<10} {:>9} {:>8}\n", "node", "kernel",
                                 "runs", "ms", "share", "of roof", "", "GFLOP/s", "GB/s");
  for (size_t i : order) {
    const NodeTime& t = executor.times()[i];
    if (t.runs == 0) continue;
    const PlannedNode& node = plan.nodes[i];
    const double seconds = t.seconds / double(t.runs);
    const Bound roof = bound_of_node(plan, node, roofs);
    bound += roof.seconds;
    text += fmt::format("{:<38} {:<15} {:<26} {:>10.3f} {:>6.1f}% {:>8} {:<10} {:>9.1f} {:>8.1f}\n", node.name,
                        node.kernel, node.detail.substr(0, 26), 1e3 * seconds, 100 * t.seconds / total,
                        share_of_roof(roof.seconds, seconds), roof.name, double(node.flops) / seconds * 1e-9,
                        double(node.bytes) / seconds * 1e-9);
  }
  text += fmt::format(
      "all nodes: {:.3f} ms in the mean of {} runs, {:.3f} under the roofs ({:.1f} %), where the dense arithmetic of a "
      "definition counts and every operand once\n",
      1e3 * run, most, 1e3 * bound, 100 * bound / run);
  return text;
}

std::string ceilings_text(std::span<const Ceiling> ceilings) {
  std::string text = "ceilings, measured behind the last step:";
  for (const Ceiling& c : ceilings) text += fmt::format(" {} {:.1f} {}", c.name, c.value, c.unit);
  return text;
}

std::string profile_rows(const Executor& executor, std::span<const Ceiling> ceilings) {
  using Json = nlohmann::json;
  const Plan& plan = executor.plan();
  const Roofs roofs = roofs_of(ceilings);
  const char* limit = std::getenv("CONVOY_MAX_ISA");
  std::string text = Json{{"machine", describe_cpu()},
                          {"libraries", kernel_library_versions()},
                          {"threads", plan.threads},
                          {"version", build_text()},
                          {"commit", commit_text()},
                          {"cold", false},
                          {"CONVOY_MAX_ISA", limit ? limit : ""},
                          {"plugins", plugin_text()}}
                         .dump() +
                     "\n";
  for (const Ceiling& c : ceilings)
    text += Json{{"ceiling", c.name}, {"value", c.value}, {"unit", c.unit}}.dump() + "\n";
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const PlannedNode& node = plan.nodes[i];
    const std::vector<double> seconds = executor.times()[i].latest();
    if (seconds.empty()) continue;
    const double least = *std::min_element(seconds.begin(), seconds.end());
    const Bound roof = bound_of_node(plan, node, roofs);
    const Problem problem = plan.problem_of(node);
    Json row{{"name", node.name},
             {"pass", name_of(phase_of(plan, i))},
             {"dtype", problem.in.empty() ? "" : name_of(problem.in[0].dtype)},
             {"kernel", node.kernel},
             {"detail", node.detail},
             {"min_ms", 1e3 * least},
             {"median_ms", 1e3 * median(seconds)},
             {"gflops", double(node.flops) / least * 1e-9},
             {"bound", roof.name},
             {"bound_ms", 1e3 * roof.seconds},
             {"bytes", node.bytes},
             {"flop_per_byte", node.bytes > 0 ? double(node.flops) / double(node.bytes) : 0.0},
             {"problem", problem.text()}};
    for (double s : seconds) row["samples_ms"].push_back(1e3 * s);
    text += row.dump() + "\n";
  }
  return text;
}

nlohmann::json phase_seconds(const Executor& executor) {
  std::map<std::string, double> seconds;
  for (size_t i = 0; i < executor.plan().nodes.size(); ++i) {
    const NodeTime& t = executor.times()[i];
    if (t.runs) seconds[std::string(name_of(phase_of(executor.plan(), i)))] += t.seconds / double(t.runs);
  }
  return seconds;
}

nlohmann::json kernel_table(const Plan& plan) {
  nlohmann::json table = nlohmann::json::array();
  for (const PlannedNode& node : plan.nodes)
    table.push_back({{"node", node.name}, {"kernel", node.kernel}, {"detail", node.detail}, {"why", node.why}});
  return table;
}

std::string trace_events(const RankTrace& t) {
  std::string text;
  const auto event = [&](double start, double duration, int64_t row, std::string_view rest) {
    fmt::format_to(std::back_inserter(text), "{}{:.3f},\"dur\":{:.3f},\"ph\":\"X\",\"pid\":{},\"tid\":{},{}}}\n",
                   time_field, start - 1e6 * t.clock_offset, duration, t.rank, row, rest);
  };
  for (const Executor* executor : t.executors) {
    const Plan& plan = executor->plan();
    std::vector<std::string> nodes;
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      const PlannedNode& node = plan.nodes[i];
      nodes.push_back(event_text(node.name, name_of(phase_of(plan, i)),
                                 {{"kernel", node.kernel}, {"flops", node.flops}, {"bytes", node.bytes}}));
    }
    for (const TraceEvent& e : executor->trace())
      event(e.start_us, e.duration_us, 0, nodes[static_cast<size_t>(e.node)]);
  }
  for (const HostEvent& e : *t.host)
    event(e.start_us, e.duration_us, 0, event_text(e.name, "trainer", nlohmann::json::object()));
  for (const MessageEvent& m : *t.messages)
    event(m.start_us, m.duration_us, 1 + m.id, event_text(m.name, "messages", {{"bytes", m.bytes}}));
  text += fmt::format("{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"args\":{{\"name\":\"rank {0}\"}}}}\n",
                      t.rank);
  return text;
}

std::string chrome_trace(const std::vector<std::string>& ranks) {
  double origin = INFINITY;
  size_t size = 0;
  for (const std::string& text : ranks) {
    size += text.size() + text.size() / 64;
    for_each_line(text, [&](std::string_view line) {
      if (line.starts_with(time_field)) origin = std::min(origin, time_of(line).first);
    });
  }
  std::string all = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  all.reserve(size);
  const char* between = "\n";
  for (const std::string& text : ranks)
    for_each_line(text, [&](std::string_view line) {
      all += std::exchange(between, ",\n");
      if (!line.starts_with(time_field)) {
        all += line;
        return;
      }
      const auto [time, rest] = time_of(line);
      fmt::format_to(std::back_inserter(all), "{}{:.3f}{}", time_field, time - origin, rest);
    });
  all += "\n]}\n";
  return all;
}

std::string memory_text(const ProgramPlans& plans, int team) {
  const auto line = [](const char* name, const Plan& p) {
    return fmt::format(
        "  {:<10} arena {:>8.1f} MiB   one buffer per value {:>8.1f}   lower bound {:>8.1f}   largest workspace "
        "{:>7.1f}\n",
        name, mib(p.arena_bytes), mib(p.naive_bytes), mib(p.lower_bound), mib(p.workspace_bytes));
  };
  const int64_t shared = plans.shared_bytes() / team;
  std::string text = line("step", plans.step);
  if (plans.micro) text += line("accumulate", *plans.micro);
  text += line("evaluate", plans.evaluate);
  if (plans.statistics) text += line("statistics", *plans.statistics);
  if (shared > 0)
    text += fmt::format("  {:<10} {:>14.1f} MiB parameters, moments, packed weights, buckets: a rank's share for {}\n",
                        "shared", mib(shared), team);
  return text + fmt::format("  {:<10} {:>14.1f} MiB {}\n  {:<10} {:>14.1f} MiB planned in all\n", "state",
                            mib(plans.own_state_bytes()),
                            shared > 0 ? "counters and others of one rank alone" : "parameters, moments and counters",
                            "total", mib(plans.own_bytes() + shared));
}

}  // namespace convoy::apps
