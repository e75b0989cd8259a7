// Times every kernel on every problem of a model's training step, of a problem file or given on the command line,
// beside oneDNN and the measured ceilings. A kernel is checked on a small version of the problem before it is timed.
#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "bench/arguments.h"
#include "bench/candidate.h"
#include "bench/ceilings.h"
#include "bench/check.h"
#include "bench/machine_ceiling.h"
#include "bench/problem_list.h"
#include "bench/row_file.h"
#include "bench/valid_flops.h"
#include "core/parallel.h"
#include "core/select.h"
#include "kernels/device/device.h"
#include "kernels/device/probes.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

constexpr int least_rounds = 5;  // what a rank test can tell apart at p < 0.01
/// Of the library that is beside us on the CPU or on a device.
bool is_definition(std::string_view kernel) {
  return kernel.ends_with("_definition");
}
bool is_library(std::string_view kernel) {
  return kernel.starts_with("onednn") || kernel.starts_with("cudnn");
}

/// The kernels that --kernels and --skip leave: words are the beginning of a name, or what stands behind its underscore
/// ("avx512" for direct_avx512).
class Choice {
 public:
  Choice(const Arguments& a) : wanted_(words(a, "kernels")), skipped_(words(a, "skip")) {}
  bool operator()(std::string_view kernel) const {
    return (wanted_.empty() || any(wanted_, kernel)) && !any(skipped_, kernel);
  }

 private:
  static bool names(std::string_view word, std::string_view kernel) {
    return kernel.starts_with(word) || kernel.ends_with("_" + std::string(word));
  }
  static bool any(const std::vector<std::string>& list, std::string_view kernel) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& word) { return names(word, kernel); });
  }
  static std::vector<std::string> words(const Arguments& a, const std::string& flag) {
    std::vector<std::string> list;
    if (a.text(flag).empty()) return list;
    for (std::string_view word : split(a.text(flag), ',')) {
      if (word.empty()) fail_usage("--" + flag + ": expected names of kernels, found \"" + a.text(flag) + "\"");
      list.emplace_back(word);
      // oneDNN's names are known where it is not built in, too.
      bool known = names(word, "onednn") || names(word, "onednn_blocked") || names(word, "onednn_definition") ||
                   names(word, "cudnn_definition");
      for (const auto& kernel : kernel_list()) known = known || names(word, kernel->name());
      if (!known) fail_usage("--" + flag + ": no kernel is called \"" + list.back() + "\"");
    }
    return list;
  }
  std::vector<std::string> wanted_, skipped_;
};

/// Walks over more memory than the caches hold.
class CacheFlush {
 public:
  explicit CacheFlush(bool wanted) : memory_(wanted ? size_t{512} << 20 : 0) {}
  void operator()() {
    // Every thread walks all of it: each core has caches of its own.
    parallel_threads(default_threads(), [&](int) {
      for (size_t i = 0; i < memory_.size(); i += 64) sum_ = static_cast<char>(sum_ + memory_[i]);
    });
  }

 private:
  std::vector<char> memory_;
  static inline thread_local volatile char sum_ = 0;
};

/// At most 25 of the run times, taken evenly from all rounds.
std::string samples_text(const std::vector<double>& seconds) {
  std::string text;
  const size_t count = std::min<size_t>(seconds.size(), 25);
  for (size_t i = 0; i < count; ++i) text += (i ? "," : "") + std::to_string(1e3 * seconds[i * seconds.size() / count]);
  return text;
}

/// The beginning of every JSON row about one kernel.
std::string row_head(const NamedProblem& named, std::string_view kernel) {
  return "{\"name\":" + json_string(named.name) + ",\"pass\":\"" + named.pass + "\",\"dtype\":\"" +
         std::string(name_of(named.problem.in[0].dtype)) + "\",\"kernel\":\"" + std::string(kernel) + "\"";
}

/// The candidates of one problem, checked; refusals go to `json` and, where wanted, to the terminal.
std::vector<std::unique_ptr<Candidate>> find_candidates(const NamedProblem& named, const Choice& chosen,
                                                        bool print_refusals, RowFile& json) {
  const Problem& p = named.problem;
  std::vector<std::unique_ptr<Candidate>> candidates;
  std::unique_ptr<Candidate> plain;
  for (const auto& kernel : kernel_list()) {
    if (!chosen(kernel->name())) continue;
    if (const Support support = kernel->supports(p); !support.ok) {
      if (support.reason == "other op" || support.reason.starts_with("runs on")) continue;
      json.row(row_head(named, kernel->name()) + ",\"refused\":" + json_string(support.reason) +
               ",\"problem\":" + json_string(p.text()) + "}");
      if (print_refusals)
        std::printf("%-41s %-17s refuses: %s\n", named.name.c_str(), std::string(kernel->name()).c_str(),
                    support.reason.c_str());
      continue;
    }
    candidates.push_back(std::make_unique<Candidate>(*kernel, p));
    Candidate& c = *candidates.back();
    if (p.device == DeviceKind::cpu) {
      const Check result = check(kernel_list(), *kernel, p);
      c.wrong = result == Check::wrong, c.checked = result != Check::none;
    } else if (kernel->name() != "cuda_plain") {  // against plain kernels, at full size
      if (!plain) plain = Candidate::plain(kernel_list(), p);
      if (plain) c.wrong = !c.agrees_with(*plain), c.checked = true;
    }
  }
  if (chosen(p.device == DeviceKind::cpu ? "onednn_definition" : "cudnn_definition"))
    if (auto definition = Candidate::definition(kernel_list(), p)) candidates.push_back(std::move(definition));
  return candidates;
}

std::vector<Ceiling> device_ceilings() {
  std::vector<Ceiling> list;
  for (const DeviceProbe& probe : probe_device()) list.push_back({probe.name, probe.value, probe.unit});
  return list;
}

/// Interleaved, so that a disturbance hits all candidates.
void time_candidates(const std::vector<std::unique_ptr<Candidate>>& candidates, double min_seconds, CacheFlush& flush) {
  for (const auto& c : candidates) c->run();  // page faults, first touches
  double spent = 0;
  for (int round = 0; round < least_rounds || (spent < min_seconds * double(candidates.size()) && round <= 1000);
       ++round)
    for (const auto& c : candidates) {
      flush();
      c->seconds.push_back(c->run());
      spent += c->seconds.back();
    }
}

/// A long run may meet another machine at its end than at its start: neighbours come and go.
void warn_of_changes(const std::vector<Ceiling>& start, std::chrono::steady_clock::time_point began, int threads,
                     RowFile& json) {
  if (std::chrono::steady_clock::now() - began < std::chrono::seconds(30)) return;
  const std::string changes = changed_ceilings(start, measure_ceilings(threads));
  if (changes.empty()) return;
  std::fprintf(stderr,
               "warning: the machine's speed changed during the run (%s); shares of the ceiling are off by as much\n",
               changes.c_str());
  json.row("{\"changed_ceilings\":" + json_string(changes) + "}");
}

int run(int argc, char** argv) {
  std::vector<Arguments::Flag> flags = problem_flags();
  for (Arguments::Flag flag : std::vector<Arguments::Flag>{
           {"device", "cpu", "cpu, cuda or cuda:N"},
           {"threads", "0", "0 = all"},
           {"kernels", "",
            "only these kernels: beginnings or endings of names (direct, avx512), comma-separated; onednn gives the "
            "ratio"},
           {"skip", "reference", "kernels left out, named alike (reference is slow at full size)"},
           {"min-seconds", "0.5", "time spent per kernel at least"},
           {"cold", "no", "flush the caches before every run"},
           {"json", "", "also write JSON lines to this file"},
           {"csv", "", "also write a table to this file"},
           {"list", "no", "print the problems in our own text, and stop"},
           {"refusals", "no", "also print why kernels refused"},
           {"tune", "", "write the fastest kernel per problem to this table (cosmoflow_train, climseg_train --tuned)"}})
    flags.push_back(std::move(flag));
  const Arguments a(argc, argv, std::move(flags));
  const int64_t wish = a.integer_within("threads", 0, 4096);
  const int threads = wish > 0 ? static_cast<int>(wish) : default_threads();
  set_default_threads(threads);
  const double min_seconds = a.number("min-seconds");
  if (!(min_seconds >= 0 && min_seconds < 1e6))
    fail_usage("--min-seconds: expected a number of at least 0, found " + a.text("min-seconds"));
  const DeviceChoice place = parse_device(a.text("device"));
  std::shared_ptr<Device> device;
  if (place.kind != DeviceKind::cpu) {
    if (a.flag("cold")) fail_usage("--cold: on a device there are no caches to flush from here");
    device = open_cuda_device(place.ordinal);
    use_device(device.get());
  }
  const std::vector<NamedProblem> problems = wanted_problems(a, threads, place.kind);
  if (a.flag("list")) {
    for (const NamedProblem& n : problems) std::printf("%s\t%s\n", n.name.c_str(), n.problem.text().c_str());
    return 0;
  }
  const Choice chosen(a);
  RowFile json(a.text("json")), csv(a.text("csv"));
  const auto began = std::chrono::steady_clock::now();
  const std::vector<Ceiling> ceilings = device ? device_ceilings() : measure_ceilings(threads);
  if (device)
    std::printf("%s\n", device->description().c_str());
  else
    std::printf("%s [%s], %s, %d threads\n", cpu_features().model.c_str(), describe_cpu().c_str(),
                kernel_library_versions().c_str(), threads);
  std::map<std::string, double> roofs;
  for (const Ceiling& c : ceilings) {
    std::printf("  ceiling %-9s %8.1f %s\n", c.name.c_str(), c.value, c.unit.c_str());
    std::ostringstream row;
    row << "{\"ceiling\":\"" << c.name << "\",\"value\":" << c.value << ",\"unit\":\"" << c.unit << "\"}";
    json.row(row.str());
    roofs[c.name] = c.value;
  }
  csv.row("name,pass,dtype,kernel,min_ms,median_ms,gflops,ceiling_share,onednn_ratio,correct");

  std::printf("%-36s %-4s %-17s %-24s %9s %9s %9s %7s %8s %9s\n", "problem", "type", "kernel", "runs", "min ms",
              "median", "GFLOP/s", "of peak", "GB/s", device ? "vs cuDNN" : "vs oneDNN");
  TunedTable tuned;
  CacheFlush flush(a.flag("cold"));
  int wrong = 0, timed = 0;
  for (const NamedProblem& named : problems) {
    const Problem& p = named.problem;
    const auto candidates = find_candidates(named, chosen, a.flag("refusals"), json);
    if (candidates.empty()) continue;
    time_candidates(candidates, min_seconds, flush);
    double onednn = 0;
    for (const auto& c : candidates)
      if (!c->wrong && is_library(c->name()) && (onednn == 0 || c->minimum() < onednn)) onednn = c->minimum();
    const std::string type(name_of(p.in[0].dtype));
    const auto [roof, peak] = machine_ceiling(roofs, type);
    const double valid = double(valid_tap_flops(p));
    const Candidate* fastest = nullptr;
    for (const auto& c : candidates) {
      const double ms = 1e3 * c->minimum(), gflops = double(p.flops()) / c->minimum() * 1e-9,
                   gbs = double(p.bytes()) / c->minimum() * 1e-9, share = peak > 0 ? gflops / peak : 0,
                   ratio = onednn > 0 ? onednn / c->minimum() : 0, stream = roofs[device ? "copy" : "triad"],
                   bandwidth = stream > 0 ? gbs / stream : 0;
      std::printf("%-36s %-4s %-17s %-24s %9.3f %9.3f %9.1f %6.1f%% %8.1f %9s%s\n", named.name.c_str(), type.c_str(),
                  c->name().c_str(), c->detail().substr(0, 24).c_str(), ms, 1e3 * c->median(), gflops, 100 * share, gbs,
                  onednn > 0 ? std::to_string(ratio).substr(0, 5).c_str() : "-",
                  c->wrong                                 ? "  WRONG"
                  : c->checked || is_definition(c->name()) ? ""
                                                           : "  not checked");
      std::fflush(stdout);
      const char* correct = c->wrong ? "false" : c->checked ? "true" : "null";
      std::ostringstream row;
      row << row_head(named, c->name()) << ",\"detail\":" << json_string(c->detail()) << ",\"min_ms\":" << ms
          << ",\"median_ms\":" << 1e3 * c->median() << ",\"gflops\":" << gflops
          << ",\"gflops_valid\":" << valid / c->minimum() * 1e-9 << ",\"ceiling_share\":" << share
          << ",\"ceiling_name\":\"" << roof << "\",\"bandwidth_share\":" << bandwidth << ",\""
          << (device ? "cudnn" : "onednn") << "_ratio\":" << ratio << ",\"bytes\":" << p.bytes()
          << ",\"flop_per_byte\":" << double(p.flops()) / double(p.bytes()) << ",\"correct\":" << correct
          << ",\"samples_ms\":[" << samples_text(c->seconds) << "],\"problem\":" << json_string(p.text()) << "}";
      json.row(row.str());
      std::ostringstream cells;
      cells << csv_field(named.name) << ',' << named.pass << ',' << type << ',' << c->name() << ',' << ms << ','
            << 1e3 * c->median() << ',' << gflops << ',' << share << ',' << ratio << ',' << correct;
      csv.row(cells.str());
      wrong += c->wrong, ++timed;
      if (!c->wrong && !is_definition(c->name()) && (!fastest || c->minimum() < fastest->minimum())) fastest = c.get();
    }
    if (fastest) tuned.set(p, fastest->name());
  }
  if (timed == 0)
    fail_usage("nothing was timed: of the kernels asked for none supports a problem (--refusals says why)");
  if (!a.text("tune").empty()) tuned.save(a.text("tune"));
  if (!device) warn_of_changes(ceilings, began, threads, json);
  return wrong ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench_layers", run, argc, argv);
}
