// Times every kernel on every problem of a model's training step, of a problem file or given on the command line,
// beside oneDNN and the measured ceilings. A kernel is checked on a small version of the problem before it is timed.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "bench/arguments.h"
#include "bench/candidate.h"
#include "bench/ceilings.h"
#include "bench/check.h"
#include "bench/machine_ceiling.h"
#include "bench/problem_strings.h"
#include "bench/valid_flops.h"
#include "core/parallel.h"
#include "core/select.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"
#include "models/program.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int least_rounds = 5;  // what a rank test can tell apart at p < 0.01
constexpr const char* definition_name = "onednn_definition";

struct Named {
  std::string name, pass;
  Problem problem;
};

DType parse_type(const std::string& text) {
  const auto type = parse_dtype(text);
  if (!type) fail_usage("--dtype: unknown type " + text);
  return *type;
}

/// "HEIGHTxWIDTH".
void set_image(const std::string& size, ClimateConfig& model) {
  const auto parts = split(size, 'x');
  if (parts.size() != 2) fail_usage("--size: expected HEIGHTxWIDTH for a climate model, found " + size);
  model.height = parse_number<int64_t>(parts[0], "--size");
  model.width = parse_number<int64_t>(parts[1], "--size");
}

/// The training step of --model at --size in one type.
Tape model_tape(const Arguments& a, DType compute) {
  const std::string &model = a.text("model"), &size = a.text("size");
  const auto record = [&](auto o) {
    o.batch = a.integer("batch");
    o.compute = compute;
    return training_tape(o);
  };
  if (model == "cosmoflow" || model == "sc18") {
    CosmoflowOptions o;
    if (model == "sc18") o.model = CosmoflowConfig::sc18(), o.normalisation = Normalisation::mean;
    if (!size.empty()) o.model.size = a.integer("size");
    return record(o);
  }
  ClimateOptions o;
  if (model == "deepcam")
    o.model.model = ClimateModel::deepcam;
  else if (model == "deeplab")
    o.model.model = ClimateModel::deeplab;
  else if (model == "tiramisu")
    o.model.model = ClimateModel::tiramisu;
  else
    fail_usage("--model: expected cosmoflow, sc18, deepcam, deeplab or tiramisu, found " + model);
  if (!size.empty()) set_image(size, o.model);
  return record(o);
}

std::vector<Named> model_problems(const Arguments& a) {
  std::vector<Named> list;
  for (std::string_view type : split(a.text("dtype"), ',')) {
    const Tape tape = model_tape(a, parse_type(std::string(type)));
    std::map<std::string, bool> seen;
    for (const Node& node : tape.nodes()) {
      Problem p{node.op, tape.descs(node.in), tape.descs(node.out), DeviceKind::cpu, 1};
      for (ValueId id : node.updated()) p.out.push_back(tape.desc(id));
      if (!seen.emplace(p.text(), true).second) continue;
      const size_t dot = node.name.rfind('.');
      list.push_back({node.name, dot == std::string::npos ? "" : node.name.substr(dot + 1), std::move(p)});
    }
  }
  return list;
}

/// One line of a problem file or of --problem: a convolution string, a verbose line, or a problem in our own text.
void add_line(const Arguments& a, std::string_view line, std::vector<Named>& list) {
  line = trim(line);
  if (line.empty() || line[0] == '#') return;
  const auto add = [&](ConvString conv, Pass pass, DType type) {
    conv.src[0] *= a.integer("batch"), conv.dst[0] *= a.integer("batch");
    const std::string name(name_of(pass));
    list.push_back({conv.name + "." + name, name, conv.problem(pass, type)});
  };
  if (is_verbose_line(line)) {
    const VerboseLine v = parse_verbose_line(line);
    return add(v.conv, v.pass, v.type);
  }
  if (line.find(" in=") != std::string_view::npos) {
    const size_t tab = line.find('\t');
    Problem p = Problem::parse(tab == std::string_view::npos ? line : line.substr(tab + 1));
    const std::string pass(name_of(p.op.kind));
    list.push_back({tab == std::string_view::npos ? pass : std::string(line.substr(0, tab)), pass, std::move(p)});
    return;
  }
  const ConvString conv = parse_conv_string(line);
  for (std::string_view type : split(a.text("dtype"), ','))
    for (Pass pass : parse_passes(a.text("pass"))) add(conv, pass, parse_type(std::string(type)));
}

std::vector<Named> all_problems(const Arguments& a) {
  std::vector<Named> list;
  if (!a.text("problem").empty()) add_line(a, a.text("problem"), list);
  if (!a.text("problems").empty())
    for (std::string_view path : split(a.text("problems"), ',')) {
      std::ifstream file{std::string(path)};
      if (!file) fail_data(std::string(path) + ": cannot open the problem file");
      std::string line;
      while (std::getline(file, line)) add_line(a, line, list);
    }
  if (a.text("problem").empty() && a.text("problems").empty()) list = model_problems(a);
  std::erase_if(list, [&](const Named& n) { return n.name.find(a.text("match")) == std::string::npos; });
  if (list.empty() && a.text("match").empty()) fail_usage("no problem to time: the files hold none");
  if (list.empty()) fail_usage("--match: expected a part of a problem's name, found \"" + a.text("match") + "\"");
  return list;
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
      bool known = names(word, "onednn") || names(word, "onednn_blocked") || names(word, definition_name);
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

std::string samples_text(const std::vector<double>& seconds) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(seconds.size(), 25); ++i)
    text += (i ? "," : "") + std::to_string(1e3 * seconds[i]);
  return text;
}

int run(int argc, char** argv) {
  const Arguments a(
      argc, argv,
      {{"model", "cosmoflow", "cosmoflow, sc18, deepcam, deeplab or tiramisu: the problems of its training step"},
       {"size", "", "extent of the volume, default 128; HEIGHTxWIDTH of the images, default 768x1152"},
       {"batch", "1", "samples"},
       {"problem", "", "one problem: 'conv ic32id64oc64kd3pd1', 'deconv ...', a oneDNN verbose line or our own text"},
       {"problems", "", "files of such lines, comma-separated (bench/problems/*.txt)"},
       {"pass", "forward,backward_data,backward_weights", "passes of convolution strings"},
       {"dtype", "f32", "f32, bf16, f16, comma-separated"},
       {"threads", "0", "0 = all"},
       {"match", "", "only problems whose name contains this"},
       {"kernels", "",
        "only these kernels: beginnings or endings of names (direct, avx512), comma-separated; onednn gives the ratio"},
       {"skip", "reference", "kernels left out, named alike (reference is slow at full size)"},
       {"min-seconds", "0.5", "time spent per kernel at least"},
       {"cold", "no", "flush the caches before every run"},
       {"json", "", "also write JSON lines to this file"},
       {"csv", "", "also write a table to this file"},
       {"list", "no", "print the problems in our own text, and stop"},
       {"refusals", "no", "also print why kernels refused"},
       {"tune", "", "write the fastest kernel per problem to this table (cosmoflow_train, climseg_train --tuned)"}});
  const int threads = a.integer("threads") > 0 ? int(a.integer("threads")) : default_threads();
  set_default_threads(threads);
  std::vector<Named> problems = all_problems(a);
  for (Named& n : problems) n.problem.threads = threads;
  if (a.flag("list")) {
    for (const Named& n : problems) std::printf("%s\t%s\n", n.name.c_str(), n.problem.text().c_str());
    return 0;
  }
  const Choice chosen(a);
  const std::vector<Ceiling> ceilings = measure_ceilings(threads);
  std::printf("%s [%s], %s, %d threads\n", cpu_features().model.c_str(), describe_cpu().c_str(),
              kernel_library_versions().c_str(), threads);
  for (const Ceiling& c : ceilings) std::printf("  ceiling %-9s %8.1f %s\n", c.name.c_str(), c.value, c.unit.c_str());
  std::ofstream json, csv;
  if (!a.text("json").empty()) json.open(a.text("json"));
  if (!a.text("csv").empty()) csv.open(a.text("csv"));
  if (json.fail() || csv.fail()) fail_runtime("cannot write " + a.text(json.fail() ? "json" : "csv"));
  std::map<std::string, double> roofs;
  for (const Ceiling& c : ceilings) roofs[c.name] = c.value;
  for (const Ceiling& c : ceilings)
    if (json) json << "{\"ceiling\":\"" << c.name << "\",\"value\":" << c.value << ",\"unit\":\"" << c.unit << "\"}\n";
  csv << "name,pass,dtype,kernel,min_ms,median_ms,gflops,ceiling_share,onednn_ratio\n";

  std::printf("%-36s %-4s %-17s %-24s %9s %9s %9s %7s %8s %9s\n", "problem", "type", "kernel", "runs", "min ms",
              "median", "GFLOP/s", "of peak", "GB/s", "vs oneDNN");
  TunedTable tuned;
  CacheFlush flush(a.flag("cold"));
  int wrong = 0;
  for (const Named& named : problems) {
    const Problem& p = named.problem;
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const auto& kernel : kernel_list()) {
      if (!chosen(kernel->name())) continue;
      if (const Support support = kernel->supports(p); !support.ok) {
        if (support.reason == "other op") continue;
        if (json)
          json << "{\"name\":\"" << named.name << "\",\"pass\":\"" << named.pass << "\",\"dtype\":\""
               << name_of(p.in[0].dtype) << "\",\"kernel\":\"" << kernel->name() << "\",\"refused\":\""
               << support.reason << "\",\"problem\":\"" << p.text() << "\"}\n";
        if (a.flag("refusals"))
          std::printf("%-41s %-17s refuses: %s\n", named.name.c_str(), std::string(kernel->name()).c_str(),
                      support.reason.c_str());
        continue;
      }
      candidates.push_back(std::make_unique<Candidate>(*kernel, p));
      const Check result = check(kernel_list(), *kernel, p);
      candidates.back()->wrong = result == Check::wrong, candidates.back()->checked = result != Check::none;
      wrong += candidates.back()->wrong;
    }
    if (chosen(definition_name))
      if (auto definition = Candidate::definition(kernel_list(), p)) candidates.push_back(std::move(definition));
    if (candidates.empty()) continue;
    for (auto& c : candidates) c->run();  // page faults, first touches
    const auto start = Clock::now();
    // Interleaved, so that a disturbance hits all candidates.
    for (int round = 0; round < least_rounds || std::chrono::duration<double>(Clock::now() - start).count() <
                                                    a.number("min-seconds") * double(candidates.size());
         ++round) {
      for (auto& c : candidates) {
        flush();
        c->seconds.push_back(c->run());
      }
      if (round > 1000) break;
    }
    double onednn = 0;
    for (const auto& c : candidates)
      if (c->name().starts_with("onednn") && (onednn == 0 || c->minimum() < onednn)) onednn = c->minimum();
    const std::string type(name_of(p.in[0].dtype));
    const auto [roof, peak] = machine_ceiling(roofs, type);
    const double valid = double(valid_tap_flops(p));
    const Candidate* fastest = nullptr;
    for (const auto& c : candidates) {
      const double ms = 1e3 * c->minimum(), gflops = double(p.flops()) / c->minimum() * 1e-9,
                   gbs = double(p.bytes()) / c->minimum() * 1e-9, share = peak > 0 ? gflops / peak : 0,
                   ratio = onednn > 0 ? onednn / c->minimum() : 0;
      std::printf("%-36s %-4s %-17s %-24s %9.3f %9.3f %9.1f %6.1f%% %8.1f %9s%s\n", named.name.c_str(), type.c_str(),
                  c->name().c_str(), c->detail().substr(0, 24).c_str(), ms, 1e3 * c->median(), gflops, 100 * share, gbs,
                  onednn > 0 ? std::to_string(ratio).substr(0, 5).c_str() : "-",
                  c->wrong                                     ? "  WRONG"
                  : c->checked || c->name() == definition_name ? ""
                                                               : "  not checked");
      std::fflush(stdout);
      if (json)
        json << "{\"name\":\"" << named.name << "\",\"pass\":\"" << named.pass << "\",\"dtype\":\"" << type
             << "\",\"kernel\":\"" << c->name() << "\",\"detail\":\"" << c->detail() << "\",\"min_ms\":" << ms
             << ",\"median_ms\":" << 1e3 * c->median() << ",\"gflops\":" << gflops
             << ",\"gflops_valid\":" << valid / c->minimum() * 1e-9 << ",\"ceiling_share\":" << share
             << ",\"ceiling_name\":\"" << roof << "\""
             << ",\"onednn_ratio\":" << ratio << ",\"bytes\":" << p.bytes()
             << ",\"flop_per_byte\":" << double(p.flops()) / double(p.bytes()) << ",\"correct\":"
             << (c->wrong     ? "false"
                 : c->checked ? "true"
                              : "null")
             << ",\"samples_ms\":[" << samples_text(c->seconds) << "],\"problem\":\"" << p.text() << "\"}" << std::endl;
      if (csv)
        csv << named.name << ',' << named.pass << ',' << type << ',' << c->name() << ',' << ms << ','
            << 1e3 * c->median() << ',' << gflops << ',' << share << ',' << ratio << '\n';
      if (!c->wrong && c->name() != definition_name && (!fastest || c->minimum() < fastest->minimum()))
        fastest = c.get();
    }
    if (fastest) tuned.set(p, fastest->name());
  }
  if (!a.text("tune").empty()) tuned.save(a.text("tune"));
  return wrong ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench_layers", run, argc, argv);
}
