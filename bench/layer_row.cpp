#include "bench/layer_row.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "bench/kernel_kind.h"
#include "bench/valid_flops.h"
#include "core/text.h"
#include "kernels/roofline/roofs.h"

namespace convoy::bench {
namespace {

/// At most 25 of the run times, taken evenly from all rounds.
std::string samples_text(const std::vector<double>& seconds) {
  std::string text;
  const size_t count = std::min<size_t>(seconds.size(), 25);
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += ',';
    text += std::to_string(1e3 * seconds[i * seconds.size() / count]);
  }
  return text;
}

/// The beginning of every JSON row about one kernel.
std::string row_head(const NamedProblem& named, std::string_view kernel) {
  return "{\"name\":" + json_string(named.name) + ",\"pass\":\"" + named.pass + "\",\"dtype\":\"" +
         std::string(name_of(named.problem.in[0].dtype)) + "\",\"kernel\":\"" + std::string(kernel) + "\"";
}

std::string number_or(const std::optional<double>& value, const char* nothing) {
  if (!value) return nothing;
  std::ostringstream text;
  text << *value;
  return text.str();
}

double flop_per_byte(const Problem& p) {
  return double(p.flops()) / double(p.bytes());
}

}  // namespace

LayerRow::LayerRow(const NamedProblem& n, const Candidate& c, const Roofs& roofs, double library_seconds)
    : named(n), candidate(c) {
  const Problem& p = named.problem;
  const double seconds = c.minimum();
  gflops = double(p.flops()) / seconds * 1e-9;
  gflops_valid = double(valid_tap_flops(p)) / seconds * 1e-9;
  gbs = double(p.bytes()) / seconds * 1e-9;
  const auto [roof, peak] = machine_ceiling(roofs, std::string(name_of(p.in[0].dtype)));
  ceiling_name = roof;
  if (peak > 0) ceiling_share = gflops / peak;
  if (const double bandwidth = memory_ceiling(roofs).second; bandwidth > 0) bandwidth_share = gbs / bandwidth;
  if (library_seconds > 0) library_ratio = library_seconds / seconds;
}

std::string LayerRow::terminal() const {
  const Candidate& c = candidate;
  const char* verdict = c.wrong ? "  WRONG" : c.checked || is_definition(c.name()) ? "" : "  not checked";
  char share[16] = "-", stream[16] = "-", ratio[16] = "-", line[512];
  if (ceiling_share) std::snprintf(share, sizeof share, "%.1f%%", 100 * *ceiling_share);
  if (bandwidth_share) std::snprintf(stream, sizeof stream, "%.1f%%", 100 * *bandwidth_share);
  if (library_ratio) std::snprintf(ratio, sizeof ratio, "%.3f", *library_ratio);
  std::snprintf(line, sizeof line, " %-4s %-17s %-24s %9.3f %9.3f %9.1f %9.1f %7s %7.4g %8.1f %9s %9s%s%s",
                std::string(name_of(named.problem.in[0].dtype)).c_str(), c.name().c_str(),
                c.detail().substr(0, 24).c_str(), 1e3 * c.minimum(), 1e3 * c.median(), gflops, gflops_valid, share,
                flop_per_byte(named.problem), gbs, stream, ratio, c.runs > 1 ? "  median run" : "", verdict);
  std::string name = named.name;
  name.resize(std::max<size_t>(name.size(), 36), ' ');
  return name + line;
}

std::string LayerRow::json() const {
  const Candidate& c = candidate;
  const Problem& p = named.problem;
  std::ostringstream row;
  row << row_head(named, c.name()) << ",\"detail\":" << json_string(c.detail()) << ",\"min_ms\":" << 1e3 * c.minimum()
      << ",\"median_ms\":" << 1e3 * c.median() << ",\"gflops\":" << gflops << ",\"gflops_valid\":" << gflops_valid
      << ",\"ceiling_share\":" << number_or(ceiling_share, "null") << ",\"ceiling_name\":\"" << ceiling_name
      << "\",\"bandwidth_share\":" << number_or(bandwidth_share, "null") << ",\""
      << (p.device == DeviceKind::cpu ? "onednn" : "cudnn") << "_ratio\":" << number_or(library_ratio, "null")
      << ",\"runs\":" << c.runs << ",\"bytes\":" << p.bytes() << ",\"flop_per_byte\":" << flop_per_byte(p)
      << ",\"correct\":"
      << (c.wrong     ? "false"
          : c.checked ? "true"
                      : "null")
      << ",\"samples_ms\":[" << samples_text(c.seconds) << "],\"problem\":" << json_string(p.text()) << "}";
  return row.str();
}

std::string LayerRow::csv() const {
  const Candidate& c = candidate;
  const Problem& p = named.problem;
  std::ostringstream cells;
  cells << csv_field(named.name) << ',' << named.pass << ',' << name_of(p.in[0].dtype) << ',' << c.name() << ','
        << csv_field(c.detail()) << ',' << 1e3 * c.minimum() << ',' << 1e3 * c.median() << ',' << gflops << ','
        << number_or(ceiling_share, "") << ',' << ceiling_name << ',' << number_or(bandwidth_share, "") << ','
        << number_or(library_ratio, "") << ','
        << (c.wrong     ? "false"
            : c.checked ? "true"
                        : "")
        << ',' << gflops_valid << ',' << p.bytes() << ',' << flop_per_byte(p) << ',' << c.runs << ','
        << csv_field(p.text());
  return cells.str();
}

std::string terminal_head(DeviceKind device) {
  char line[256];
  std::snprintf(line, sizeof line, "%-36s %-4s %-17s %-24s %9s %9s %9s %9s %7s %7s %8s %9s %9s", "problem", "type",
                "kernel", "runs", "min ms", "median", "GFLOP/s", "valid", "of peak", "FLOP/B", "GB/s",
                device == DeviceKind::cpu ? "of memory" : "of copy",
                device == DeviceKind::cpu ? "vs oneDNN" : "vs cuDNN");
  return line;
}

std::string csv_head() {
  return "name,pass,dtype,kernel,detail,min_ms,median_ms,gflops,ceiling_share,ceiling_name,bandwidth_share,"
         "onednn_ratio,correct,gflops_valid,bytes,flop_per_byte,runs,problem";
}

std::string refusal_json(const NamedProblem& named, std::string_view kernel, std::string_view reason) {
  return row_head(named, kernel) + ",\"refused\":" + json_string(reason) +
         ",\"problem\":" + json_string(named.problem.text()) + "}";
}

}  // namespace convoy::bench
