// Times every kernel on every problem of a model's training step, of problem files or given on the command line, beside
// oneDNN and the measured ceilings. A kernel is checked on small versions of the problem before it is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "bench/agreement.h"
#include "bench/arguments.h"
#include "bench/candidate.h"
#include "bench/changed_ceilings.h"
#include "bench/check.h"
#include "bench/crash_note.h"
#include "bench/kernel_choice.h"
#include "bench/kernel_kind.h"
#include "bench/layer_row.h"
#include "bench/problem_list.h"
#include "bench/provenance.h"
#include "bench/row_file.h"
#include "core/conv_shapes.h"
#include "core/parallel.h"
#include "core/select.h"
#include "core/text.h"
#include "core/thread_limits.h"
#include "kernels/device/device.h"
#include "kernels/device/probes.h"
#include "kernels/plugin_list.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

constexpr int least_rounds = 8;  // what a rank test can tell apart among a hundred others (p = 0.00016)

/// How long candidates are timed.
struct Patience {
  double min_seconds;  ///< each
  int most_rounds;
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

/// Measures the roofs of the machine or of the device.
class Roofline {
 public:
  /// Of candidates that are timed for `seconds` each: brief runs take brief looks at the roofs, too.
  Roofline(int threads, DeviceKind device, double seconds)
      : threads_(threads), device_(device), patient_(std::min(patient, 5 * seconds)) {
    start_ = measure(patient_);
    roofs_ = roofs_of(start_);
  }
  const std::vector<Ceiling>& ceilings() const { return start_; }
  const Roofs& roofs() const { return roofs_; }
  /// Says which roofs are not what they were: neighbours come and go, and shares of a ceiling are off by as much.
  std::string changes() const {
    constexpr double brief = 0.1;
    if (changed_ceilings(start_, measure(std::min(brief, patient_))).empty()) return {};
    return changed_ceilings(start_, measure(patient_));
  }

 private:
  /// The scheduler may need half a second to spread a fresh team over the cores.
  static constexpr double patient = 0.5;
  std::vector<Ceiling> measure(double seconds) const { return measure_ceilings(device_, threads_, seconds); }
  int threads_;
  DeviceKind device_;
  double patient_;
  std::vector<Ceiling> start_;
  Roofs roofs_;
};

/// Where rows go, and what became of them.
class Report {
 public:
  Report(const Arguments& a) : json_(a.text("json")), csv_(a.text("csv")), refusals_(a.flag("refusals")) {
    csv_.head(csv_head());
  }
  /// What the run's rows were measured on and beside, and how.
  void machine(const std::string& name, const std::string& libraries, int threads, bool cold, double min_seconds) {
    std::printf("%s, %s, %d threads\n", name.c_str(), libraries.c_str(), threads);
    const std::string plugins = plugin_text();
    if (!plugins.empty()) std::printf("plugins: %s\n", plugins.c_str());
    json_.head("{\"machine\":" + json_string(name) + ",\"libraries\":" + json_string(libraries) +
               ",\"threads\":" + std::to_string(threads) + ",\"cold\":" + (cold ? "true" : "false") +
               ",\"min_seconds\":" + std::to_string(min_seconds) + ",\"plugins\":" + json_string(plugins) + "," +
               provenance() + "}");
  }
  void ceiling(const Ceiling& c) {
    std::printf("  ceiling %-9s %8.1f %s\n", c.name.c_str(), c.value, c.unit.c_str());
    std::ostringstream row;
    row << "{\"ceiling\":\"" << c.name << "\",\"value\":" << c.value << ",\"unit\":\"" << c.unit << "\"}";
    json_.head(row.str());
  }
  void changed(const std::string& changes) {
    std::fprintf(stderr,
                 "warning: the machine's speed changed during the run (%s); shares of the ceiling are off by as much\n",
                 changes.c_str());
    json_.row("{\"changed_ceilings\":" + json_string(changes) + "}");
  }
  /// Whoever asks for a kernel by its name wants to know why it is not here.
  void refused(const NamedProblem& named, std::string_view kernel, const std::string& reason, bool asked_for) {
    json_.head(refusal_json(named, kernel, reason));
    if (refusals_ || asked_for)
      std::printf("%-41s %-17s refuses: %s\n", named.name.c_str(), std::string(kernel).c_str(), reason.c_str());
  }
  /// The rest of the run goes on.
  void failed(const NamedProblem& named, std::string_view kernel, const std::string& error) {
    json_.row(refusal_json(named, kernel, "error: " + error));
    std::fprintf(stderr, "bench_layers: error: %s: %s: %s\n", named.name.c_str(), std::string(kernel).c_str(),
                 error.c_str());
    ++failures_;
  }
  void timed(const LayerRow& row) {
    std::printf("%s\n", row.terminal().c_str());
    std::fflush(stdout);
    json_.row(row.json());
    csv_.row(row.csv());
    ++timed_, wrong_ += row.candidate.wrong;
  }
  int timed_kernels() const { return timed_; }
  int failures() const { return failures_; }
  bool good() const { return wrong_ == 0 && failures_ == 0; }

 private:
  RowFile json_, csv_;
  bool refusals_;
  int timed_ = 0, wrong_ = 0, failures_ = 0;
};

using Candidates = std::vector<std::unique_ptr<Candidate>>;

constexpr std::string_view all_kernels = "all";

/// Whether the work on one kernel came to its end; otherwise its error is reported, and the rest of the run goes on.
bool attempt(const NamedProblem& named, std::string_view kernel, Report& report, const std::function<void()>& work) {
  std::string message;
  CrashNote::of_kernel(kernel == all_kernels ? std::string_view() : kernel);  // those are noted one by one
  try {
    work();
    return true;
  } catch (const std::exception& error) {  // too large for the memory, for one
    message = error.what();
  }
  report.failed(named, kernel, message);
  return false;
}

/// Further kernels that ran the problem once, where fewer than three candidates could not outvote one that is wrong at
/// this size alone.
Candidates referees_of(const Candidates& candidates, const Problem& p, const KernelChoice& chosen) {
  Candidates referees;
  for (const auto& kernel : kernel_list()) {
    if (candidates.size() + referees.size() >= 3) break;
    const auto same = [&](const auto& c) { return c->name() == kernel->name(); };
    if (kernel->name() == reference_name || std::any_of(candidates.begin(), candidates.end(), same)) continue;
    if (chosen.skips(kernel->name())) continue;
    CrashNote::of_kernel(kernel->name());
    try {
      if (!kernel->supports(p).ok) continue;
      auto referee = std::make_unique<Candidate>(*kernel, p);
      referee->run();
      referees.push_back(std::move(referee));
    } catch (const std::exception&) {  // too large for the memory, for one: nobody asked for it
    }
  }
  return referees;
}

/// The candidates of one problem, checked.
Candidates find_candidates(const NamedProblem& named, const KernelChoice& chosen, Report& report) {
  const Problem& p = named.problem;
  CrashNote::of_problem(named.name + ", " + p.text());
  const bool cpu = p.device == DeviceKind::cpu;
  Candidates candidates;
  std::unique_ptr<Candidate> plain;
  Checker checker(kernel_list(), p);
  const auto make = [&](const Kernel& kernel) {
    auto c = std::make_unique<Candidate>(kernel, p);
    if (cpu) {
      const Check result = checker(kernel);
      c->wrong = result == Check::wrong, c->checked = result != Check::none;
    } else if (kernel.name() != "cuda_plain") {  // against plain kernels, at full size
      if (!plain) plain = Candidate::plain(kernel_list(), p);
      if (plain) c->wrong = !c->agrees_with(*plain), c->checked = true;
    }
    candidates.push_back(std::move(c));
  };
  std::set<std::string_view> asked_for;
  for (const auto& kernel : kernel_list()) {
    const std::string_view name = kernel->name();
    Support support;
    if (!chosen(name) || !attempt(named, name, report, [&] { support = kernel->supports(p); })) continue;
    const bool asked = chosen.asks_for(name, kernel_list());
    if (asked) asked_for.insert(name);
    if (support.ok)
      attempt(named, name, report, [&] { make(*kernel); });
    else if (!is_for_others(support))
      report.refused(named, name, support.reason, asked);
  }
  for (const std::string_view name : asked_for)
    attempt(named, name, report, [&] {
      const Support answer = answer_of(kernel_list(), name, p);
      if (answer.ok || !is_for_others(answer)) return;
      // "avx512" names a kernel and the endings of others.
      const auto meant = [&](const auto& c) { return c->name() != name && chosen.asks_for_both(c->name(), name); };
      if (std::any_of(candidates.begin(), candidates.end(), meant)) return;
      const OpDef& def = op_def(p.op.kind);
      report.refused(named, name,
                     answer.reason != "other op"
                         ? answer.reason
                         : "runs other ops than " + std::string(def.name) +
                               (def.lower ? ", which is fused: --problem times a plain convolution" : ""),
                     true);
    });
  const char* definition = cpu ? "onednn_definition" : "cudnn_definition";
  if (chosen(definition))
    attempt(named, definition, report, [&] {
      if (auto c = Candidate::definition(kernel_list(), p)) candidates.push_back(std::move(c));
    });
  return candidates;
}

/// The fastest, or the kernel that runs the problem anyway where that is hardly slower: less than a machine's noise
/// decides nothing.
const Candidate& worth_choosing(const Candidate& best, const Candidates& candidates, const Problem& p) {
  constexpr double noise = 1.03;
  const std::string_view usual = choose_kernel(kernel_list(), p, "", {}).kernel->name();
  for (const auto& c : candidates)
    if (c->name() == usual && !c->wrong && c->checked == best.checked && c->minimum() <= noise * best.minimum())
      return *c;
  return best;
}

void warn_of_unchecked(const NamedProblem& named, const Candidate& faster, const Candidate& choice) {
  std::fprintf(stderr, "warning: %s: %s is faster than %s, but could not be checked: the table has %s\n",
               named.name.c_str(), faster.name().c_str(), choice.name().c_str(), choice.name().c_str());
}

/// Interleaved, so that a disturbance hits all candidates, and in another order every round: what a candidate leaves in
/// the caches would else be always the same one's.
void time_candidates(const Candidates& candidates, Patience patience, CacheFlush& flush) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> enough(patience.min_seconds * double(candidates.size()));
  const auto begin = Clock::now();  // a flush counts, too: it may take a thousand times as long as a kernel
  std::vector<Candidate*> order;
  for (const auto& c : candidates) order.push_back(c.get());
  std::minstd_rand random;
  for (int round = 0; round < least_rounds || (Clock::now() - begin < enough && round < patience.most_rounds);
       ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (Candidate* c : order) {
      flush();
      CrashNote::of_kernel(c->name());
      c->seconds.push_back(c->run());
    }
  }
}

enum class Whose : uint8_t { library, ours };

/// The fastest that is not wrong; 0 where none ran.
double fastest_seconds(const Candidates& candidates, Whose whose) {
  double seconds = 0;
  for (const auto& c : candidates)
    if (!c->wrong && is_library(c->name()) == (whose == Whose::library) && (seconds == 0 || c->minimum() < seconds))
      seconds = c->minimum();
  return seconds;
}

/// How many times as fast as the library our fastest is; 0 where either did not run.
double library_ratio(const Candidates& candidates) {
  const double ours = fastest_seconds(candidates, Whose::ours);
  return ours > 0 ? fastest_seconds(candidates, Whose::library) / ours : 0;
}

constexpr int reruns = 5;

/// Measures all candidates so many times more, and keeps the times of the run with the median ratio to the library.
void measure_again(const Candidates& candidates, Patience patience, CacheFlush& flush) {
  std::multimap<double, std::vector<std::vector<double>>> runs;
  for (int run = 0; run < reruns; ++run) {
    for (const auto& c : candidates) c->seconds.clear();
    time_candidates(candidates, patience, flush);
    std::vector<std::vector<double>> times;
    for (const auto& c : candidates) times.push_back(c->seconds);
    runs.emplace(library_ratio(candidates), std::move(times));
  }
  const auto& median = std::next(runs.begin(), reruns / 2)->second;
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i]->seconds = median[i], candidates[i]->runs = reruns;
}

/// Files that rows go to must be separate and none that is read, and the tuned table writable before hours of
/// measuring.
void check_files(const Arguments& a) {
  const auto place = [](std::string_view path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  };
  std::map<std::filesystem::path, std::string> flag_of;
  if (!a.text("problems").empty())
    for (std::string_view path : split(a.text("problems"), ',')) flag_of.emplace(place(path), "problems");
  for (const char* flag : {"json", "csv", "tune"}) {
    const std::string& path = a.text(flag);
    if (path.empty()) continue;
    const auto [same, fresh] = flag_of.try_emplace(place(path), flag);
    if (!fresh) fail_usage("--" + same->second + ", --" + flag + ": expected two files, found " + path + " for both");
  }
  if (!a.text("tune").empty()) require_writable(a.text("tune"));
}

int run(int argc, char** argv) {
  std::vector<Arguments::Flag> flags = problem_flags();
  for (Arguments::Flag flag : std::vector<Arguments::Flag>{
           {"device", "cpu", "cpu, cuda or cuda:N"},
           {"threads", "0", "0 = OMP_NUM_THREADS or all cores"},
           {"kernels", "",
            "only these kernels: beginnings or endings of names (direct, avx512), comma-separated; onednn gives the "
            "ratio"},
           {"skip", "reference",
            "kernels left out, named alike; without it all that --kernels names run (reference is slow at full size)"},
           {"min-seconds", "0.5",
            "time spent per kernel at least, unless 1000 runs take less and it is not given; below 0.1 ceilings are "
            "rough, too"},
           {"cold", "no",
            "flush the caches before every run, of which there are 1000 at most; --min-seconds then counts flushes, "
            "too"},
           {"rerun-below", "0",
            "problems on which our fastest kernel is below this many times the library's speed are measured five times "
            "more; the run with the median ratio counts"},
           {"json", "", "also write JSON lines to this file"},
           {"csv", "", "also write a table to this file"},
           {"list", "no", "print the problems in our own text, and stop"},
           {"refusals", "no", "also print why kernels refused"},
           {"tune", "",
            "write the fastest kernel per problem, where it gains 3 % or more, to this table (cosmoflow_train, "
            "climseg_train --tuned)"}})
    flags.push_back(std::move(flag));
  const Arguments a(argc, argv, std::move(flags));
  CrashNote::install();
  const int64_t wish = a.integer_within("threads", 0, 4096);
  const int threads = wish > 0 ? static_cast<int>(wish) : default_threads();
  expect_granted(wish);
  set_default_threads(threads);
  const double min_seconds = a.number("min-seconds");
  if (!(min_seconds >= 0 && min_seconds < 1e6))
    fail_usage("--min-seconds: expected a number of at least 0, found " + a.text("min-seconds"));
  // Whoever asks for seconds gets them, as far as there is memory for the samples; a flush takes far longer than a
  // brief run.
  const Patience patience{min_seconds, a.given("min-seconds") && !a.flag("cold") ? 1'000'000 : 1000};
  const double rerun_below = a.number("rerun-below");
  if (!(rerun_below >= 0 && rerun_below < 1e6))
    fail_usage("--rerun-below: expected a number of at least 0, found " + a.text("rerun-below"));
  const DeviceChoice place = parse_device(a.text("device"));
  std::shared_ptr<Device> device;
  if (place.kind != DeviceKind::cpu) {
    if (a.flag("cold")) fail_usage("--cold: on a device there are no caches to flush from here");
    device = open_cuda_device(place.ordinal);
    use_device(device.get());
  }
  const std::vector<NamedProblem> problems = wanted_problems(a, threads, place.kind);
  if (a.flag("list")) {
    for (const char* flag : {"json", "csv", "tune", "kernels", "skip", "cold", "rerun-below", "refusals"})
      if (a.given(flag)) fail_usage("--" + std::string(flag) + " has no effect beside --list");
    for (const NamedProblem& n : problems) std::printf("%s\t%s\n", n.name.c_str(), n.problem.text().c_str());
    return 0;
  }
  const KernelChoice chosen(a);
  check_files(a);
  Report report(a);
  const Roofline roofline(threads, place.kind, min_seconds);
  report.machine(device ? device->description() : describe_cpu(), kernel_library_versions(), threads, a.flag("cold"),
                 min_seconds);
  for (const Ceiling& c : roofline.ceilings()) report.ceiling(c);
  std::printf("%s\n", terminal_head(place.kind).c_str());
  TunedTable tuned;
  const bool tunes = !a.text("tune").empty();
  CacheFlush flush(a.flag("cold"));
  for (const NamedProblem& named : problems) {
    const Candidates candidates = find_candidates(named, chosen, report);
    const auto time = [&] {
      for (const auto& c : candidates) CrashNote::of_kernel(c->name()), c->run();  // page faults, first touches
      if (!device)
        mark_disagreement(candidates, size_of(named.problem.in[0].dtype) == 2,
                          referees_of(candidates, named.problem, chosen));
      time_candidates(candidates, patience, flush);
      if (const double ratio = library_ratio(candidates); ratio > 0 && ratio < rerun_below)
        measure_again(candidates, patience, flush);
    };
    if (candidates.empty() || !attempt(named, all_kernels, report, time)) continue;
    const double library = fastest_seconds(candidates, Whose::library);
    for (const auto& c : candidates) report.timed({named, *c, roofline.roofs(), library});
    if (const Candidate* best = fastest_kernel(candidates); best && tunes && !adds_to_value(named.problem))
      attempt(named, all_kernels, report, [&] {
        const Candidate& choice = worth_choosing(*best, candidates, named.problem);
        tuned.set(named.problem, choice.name());
        if (const Candidate* faster = passed_over(candidates, choice)) warn_of_unchecked(named, *faster, choice);
      });
  }
  if (report.timed_kernels() == 0 && report.failures() == 0)
    fail_usage("nothing was timed: of the kernels asked for none supports a problem (--refusals says why)");
  if (report.timed_kernels() > 0) {
    if (tunes) tuned.save(a.text("tune"));
    if (const std::string changes = roofline.changes(); !changes.empty()) report.changed(changes);
  }
  return report.good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench_layers", run, argc, argv);
}
