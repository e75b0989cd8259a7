// Times every kernel on every problem of a model's training step (or on given problems), beside oneDNN and the measured
// ceilings. A kernel is checked on a small version of the problem before it is timed.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>

#include "bench/arguments.h"
#include "bench/ceilings.h"
#include "core/parallel.h"
#include "core/select.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"
#include "models/program.h"
#include "tests/kernel_check.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

using Clock = std::chrono::steady_clock;

struct Named {
  std::string name;
  Problem problem;
};

std::vector<Named> model_problems(const Arguments& a, int threads) {
  ProgramOptions o;
  o.model = a.text("model") == "sc18" ? CosmoflowConfig::sc18() : CosmoflowConfig{};
  o.model.size = a.integer("size");
  o.batch = a.integer("batch");
  const auto compute = parse_dtype(a.text("compute"));
  if (!compute) fail_usage("--compute: unknown type " + a.text("compute"));
  o.compute = *compute;
  if (o.model.variant == CosmoflowVariant::sc18) o.normalisation = Normalisation::mean;
  const Tape tape = training_tape(o);
  std::vector<Named> list;
  std::map<std::string, bool> seen;
  for (const Node& node : tape.nodes()) {
    Problem p{node.op, tape.descs(node.in), tape.descs(node.out), DeviceKind::cpu, threads};
    for (ValueId id : node.updated()) p.out.push_back(tape.desc(id));
    if (!seen.emplace(p.text(), true).second) continue;
    list.push_back({node.name, std::move(p)});
  }
  return list;
}

std::vector<Named> file_problems(const std::string& path, int threads) {
  std::ifstream file(path);
  if (!file) fail_data(path + ": cannot open the problem file");
  std::vector<Named> list;
  std::string line;
  while (std::getline(file, line)) {
    if (trim(line).empty() || line[0] == '#') continue;
    const size_t tab = line.find('\t');
    Problem p = Problem::parse(tab == std::string::npos ? line : line.substr(tab + 1));
    p.threads = threads;
    list.push_back({tab == std::string::npos ? "problem" : line.substr(0, tab), std::move(p)});
  }
  return list;
}

/// The problem with spatial extents of at most 4 where the op allows it, for the exactness check.
std::optional<Problem> reduced(const Problem& p) {
  if (p.op.kind != OpKind::conv_forward && p.op.kind != OpKind::conv_backward_data &&
      p.op.kind != OpKind::conv_backward_weights)
    return std::nullopt;
  ConvAttrs a = p.op.as<ConvAttrs>();
  const bool forward = p.op.kind == OpKind::conv_forward, weights = p.op.kind == OpKind::conv_backward_weights;
  const TensorDesc x = forward || weights ? p.in[0] : p.out[0], w = weights ? p.out[0] : p.in[1];
  Shape small = x.shape;
  small[0] = 1;
  for (int i = 1; i < 4; ++i) small[i] = std::min<int64_t>(small[i], 4);
  std::vector<TensorDesc> in{TensorDesc(small, x.dtype), TensorDesc(w.shape, x.dtype)};
  ConvAttrs plain = a;
  plain.result_size = {0, 0, 0};
  const TensorDesc y = infer({OpKind::conv_forward, plain}, in)[0];
  Problem q = p;
  if (forward)
    q.in[0] = in[0], q.out[0] = y;
  else if (weights)
    q.in = {in[0], y};
  else
    a.result_size = {small[1], small[2], small[3]}, q.op.attrs = a, q.in[0] = y, q.out[0] = in[0];
  return q;
}

/// T0: small integers, bits equal to the reference.
bool exact(const Kernel& kernel, const Problem& p) {
  const auto small = reduced(p);
  if (!small || !kernel.supports(*small).ok) return true;
  testing::Run ours = testing::make_run(*small, testing::Fill::integers, 3),
               expected = testing::make_run(*small, testing::Fill::integers, 3);
  testing::execute(kernel, *small, ours);
  for (const auto& reference : kernel_list())
    if (reference->name() == reference_name && reference->supports(*small).ok)
      testing::execute(*reference, *small, expected);
  for (size_t i = 0; i < small->out.size(); ++i) {
    bool equal = true;
    for_each_index(small->out[i].shape,
                   [&](auto... at) { equal = equal && ours.out[i].at(at...) == expected.out[i].at(at...); });
    if (!equal) return false;
  }
  return true;
}

/// One kernel ready to run on random data, with the packing that a training step pays.
class Candidate {
 public:
  Candidate(const Kernel& kernel, const Problem& p)
      : name(kernel.name()),
        prepared_(kernel.prepare(p)),
        workspace_(prepared_->workspace_bytes(), Buffer::Fill::zero) {
    for (size_t i = 0; i < p.in.size(); ++i) {
      in_.push_back(Tensor::zeros(p.in[i]));
      const PhiloxStream random(1, i);
      const OpDef& def = op_def(p.op.kind);
      if (def.special_input && def.special_input(p.op, int(i), p.in, in_.back(), random)) continue;
      uint64_t k = 0;
      for_each_index(p.in[i].shape, [&](auto... at) { in_.back().set(at..., double(random.uniform(k++)) - 0.5); });
    }
    const auto updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
    for (size_t i = 0; i < p.out.size(); ++i)
      out_.push_back(i + updated >= p.out.size() ? in_[p.in.size() - (p.out.size() - i)] : Tensor::zeros(p.out[i]));
    for (const PackRequest& request : prepared_->packed_weights()) {
      packs_.push_back(std::make_unique<Buffer>(request.bytes, Buffer::Fill::zero));
      packed_.push_back(packs_.back()->data());
      requests_.push_back(request);
    }
  }
  double run() {
    const auto start = Clock::now();
    for (size_t i = 0; i < requests_.size(); ++i)
      requests_[i].pack(in_[static_cast<size_t>(requests_[i].input)], packed_[i]);
    prepared_->run({in_, out_, packed_, workspace_.data()});
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::string detail() const { return prepared_->detail(); }
  std::string name;
  std::vector<double> seconds;
  bool wrong = false;
  double median() const {
    std::vector<double> s = seconds;
    std::nth_element(s.begin(), s.begin() + std::ptrdiff_t(s.size() / 2), s.end());
    return s[s.size() / 2];
  }
  double minimum() const { return *std::min_element(seconds.begin(), seconds.end()); }

 private:
  std::unique_ptr<Prepared> prepared_;
  Buffer workspace_;
  std::vector<Tensor> in_, out_;
  std::vector<PackRequest> requests_;
  std::vector<std::unique_ptr<Buffer>> packs_;
  std::vector<std::byte*> packed_;
};

double ceiling(const std::vector<Ceiling>& list, const std::string& name) {
  for (const Ceiling& c : list)
    if (c.name == name) return c.value;
  return 0;
}

int run(int argc, char** argv) {
  const Arguments a(
      argc, argv,
      {{"model", "mlperf", "mlperf or sc18"},
       {"size", "128", "extent of the volume"},
       {"batch", "1", "samples"},
       {"compute", "f32", "f32, bf16 or f16"},
       {"threads", "0", "0 = all"},
       {"match", "", "only nodes whose name contains this"},
       {"problems", "", "read problems from a file (name<TAB>problem or problem per line) instead of the model"},
       {"skip", "reference", "kernels left out, comma-separated (reference is slow at full size)"},
       {"min-seconds", "0.5", "time spent per kernel at least"},
       {"json", "", "also write JSON lines to this file"},
       {"list", "no", "yes: print the problems in the form that --problems reads, and stop"},
       {"tune", "", "write the fastest kernel per problem to this table (cosmoflow_train --tuned)"}});
  const int threads = a.integer("threads") > 0 ? int(a.integer("threads")) : default_threads();
  set_default_threads(threads);
  const std::vector<Named> problems =
      a.text("problems").empty() ? model_problems(a, threads) : file_problems(a.text("problems"), threads);
  if (a.text("list") == "yes") {
    for (const Named& n : problems) std::printf("%s\t%s\n", n.name.c_str(), n.problem.text().c_str());
    return 0;
  }
  const auto skipped = split(a.text("skip"), ',');
  const std::vector<Ceiling> ceilings = measure_ceilings(threads);
  std::printf("%s [%s], %s, %d threads\n", cpu_features().model.c_str(), describe_cpu().c_str(),
              kernel_library_versions().c_str(), threads);
  for (const Ceiling& c : ceilings) std::printf("  ceiling %-9s %8.1f %s\n", c.name.c_str(), c.value, c.unit.c_str());
  std::ofstream json;
  if (!a.text("json").empty()) json.open(a.text("json"));
  for (const Ceiling& c : ceilings)
    if (json) json << "{\"ceiling\":\"" << c.name << "\",\"value\":" << c.value << ",\"unit\":\"" << c.unit << "\"}\n";

  std::printf("%-36s %-15s %-24s %9s %9s %9s %7s %8s %9s\n", "node", "kernel", "runs", "min ms", "median", "GFLOP/s",
              "of peak", "GB/s", "vs oneDNN");
  TunedTable tuned;
  int wrong = 0;
  for (const Named& named : problems) {
    if (named.name.find(a.text("match")) == std::string::npos) continue;
    const Problem& p = named.problem;
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const auto& kernel : kernel_list()) {
      if (std::find(skipped.begin(), skipped.end(), kernel->name()) != skipped.end() || !kernel->supports(p).ok)
        continue;
      candidates.push_back(std::make_unique<Candidate>(*kernel, p));
      candidates.back()->wrong = !exact(*kernel, p);
      wrong += candidates.back()->wrong;
    }
    if (candidates.empty()) continue;
    for (auto& c : candidates) c->run();  // page faults, first touches
    const auto start = Clock::now();
    // Interleaved, so that a disturbance hits all candidates.
    for (int round = 0; round < 3 || std::chrono::duration<double>(Clock::now() - start).count() <
                                         a.number("min-seconds") * double(candidates.size());
         ++round) {
      for (auto& c : candidates) c->seconds.push_back(c->run());
      if (round > 1000) break;
    }
    double onednn = 0;
    for (const auto& c : candidates)
      if (c->name.starts_with("onednn") && (onednn == 0 || c->minimum() < onednn)) onednn = c->minimum();
    const double peak = ceiling(ceilings, "f32_fma");
    const Candidate* fastest = nullptr;
    for (const auto& c : candidates) {
      const double ms = 1e3 * c->minimum(), gflops = double(p.flops()) / c->minimum() * 1e-9,
                   gbs = double(p.bytes()) / c->minimum() * 1e-9;
      std::printf("%-36s %-15s %-24s %9.3f %9.3f %9.1f %6.1f%% %8.1f %9s%s\n", named.name.c_str(), c->name.c_str(),
                  c->detail().substr(0, 24).c_str(), ms, 1e3 * c->median(), gflops, peak > 0 ? 100 * gflops / peak : 0,
                  gbs, onednn > 0 ? std::to_string(onednn / c->minimum()).substr(0, 5).c_str() : "-",
                  c->wrong ? "  WRONG" : "");
      std::fflush(stdout);
      if (json)
        json << "{\"node\":\"" << named.name << "\",\"kernel\":\"" << c->name << "\",\"detail\":\"" << c->detail()
             << "\",\"min_ms\":" << ms << ",\"median_ms\":" << 1e3 * c->median() << ",\"gflops\":" << gflops
             << ",\"gbytes_per_second\":" << gbs << ",\"flop_per_byte\":" << double(p.flops()) / double(p.bytes())
             << ",\"vs_onednn\":" << (onednn > 0 ? onednn / c->minimum() : 0)
             << ",\"correct\":" << (c->wrong ? "false" : "true") << ",\"problem\":\"" << p.text() << "\"}\n";
      if (!c->wrong && (!fastest || c->minimum() < fastest->minimum())) fastest = c.get();
    }
    if (fastest) tuned.set(p, fastest->name);
  }
  if (!a.text("tune").empty()) tuned.save(a.text("tune"));
  return wrong ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_layers: error: %s\n", error.what());
    return error.exit_code();
  }
}
