#include "bench/problem_list.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>

#include "bench/network.h"
#include "bench/problem_strings.h"
#include "core/conv_shapes.h"
#include "core/plan.h"
#include "kernels/kernel_list.h"

namespace convoy::bench {
namespace {

std::vector<DType> wanted_types(const Arguments& a) {
  std::vector<DType> types;
  for (std::string_view text : split(a.text("dtype"), ',')) {
    const auto type = parse_dtype(text);
    if (!type || (*type != DType::f32 && *type != DType::bf16 && *type != DType::f16))
      fail_usage("--dtype: expected f32, bf16 or f16, found " + std::string(text));
    types.push_back(*type);
  }
  return types;
}

/// The training step of the network asked for, in one type.
Tape model_tape(const Arguments& a, DType compute) {
  return std::visit(
      [&](auto o) {
        o.compute = compute;
        return training_tape(o);
      },
      wanted_network(a));
}

std::vector<NamedProblem> model_problems(const Arguments& a, int threads, DeviceKind device) {
  std::vector<NamedProblem> list;
  std::set<std::string> seen;
  PlanOptions options;
  options.threads = threads, options.device = device;
  for (DType type : wanted_types(a)) {
    const Plan plan = make_plan(model_tape(a, type), kernel_list(), options);
    for (const PlannedNode& node : plan.nodes) {
      if (node.op.kind == OpKind::pack) continue;  // part of its user's time
      Problem p = plan.problem_of(node);
      if (!seen.insert(p.text()).second) continue;
      const size_t dot = node.name.rfind('.');
      const std::string pass = dot == std::string::npos ? "" : node.name.substr(dot + 1);
      // A sum runs the kernel of its convolution alone, which tables speak of.
      if (Problem alone = without_addend(p); adds_to_value(p) && seen.insert(alone.text()).second)
        list.push_back({node.name + " alone", pass, std::move(alone)});
      list.push_back({node.name, pass, std::move(p)});
    }
  }
  if (!a.given("pass")) return list;  // nodes that belong to no pass, too
  const std::vector<Pass> passes = parse_passes(a.text("pass"));
  std::erase_if(list, [&](const NamedProblem& n) {
    return std::none_of(passes.begin(), passes.end(), [&](Pass pass) { return n.pass == name_of(pass); });
  });
  return list;
}

/// What a line that carries its own type, pass and extents leaves without effect.
void refuse_beside_complete_line(const Arguments& a, std::initializer_list<const char*> flags, std::string_view line) {
  for (const char* flag : flags)
    if (a.given(flag))
      fail_usage(std::string("--") + flag + " has no effect on a line with its own: \"" + std::string(line) + "\"");
}

/// One line of a problem file or of --problem: a convolution string, a verbose line, or a problem in our own text.
void add_line(const Arguments& a, std::string_view line, int threads, std::vector<NamedProblem>& list) {
  line = trim(line);
  if (line.empty() || line[0] == '#') return;
  const auto add = [&](ConvString conv, Pass pass, DType type) {
    conv.src[0] *= wanted_batch(a), conv.dst[0] *= wanted_batch(a);
    const std::string name(name_of(pass));
    list.push_back({conv.name + "." + name, name, conv.problem(pass, type)});
    list.back().problem.threads = threads;
  };
  if (is_verbose_line(line)) {
    refuse_beside_complete_line(a, {"dtype", "pass"}, line);
    const VerboseLine v = parse_verbose_line(line);
    if (!v.post_ops.empty())
      std::fprintf(stderr, "warning: %s: its post-ops %s are left out\n", v.conv.name.c_str(), v.post_ops.c_str());
    return add(v.conv, v.pass, v.type);
  }
  if (line.find(" in=") != std::string_view::npos) {
    refuse_beside_complete_line(a, {"dtype", "pass", "batch"}, line);
    const size_t tab = line.find('\t');
    Problem p = Problem::parse(tab == std::string_view::npos ? line : line.substr(tab + 1));
    p.threads = threads;
    const std::string pass(name_of(p.op.kind));
    list.push_back({tab == std::string_view::npos ? pass : std::string(line.substr(0, tab)), pass, std::move(p)});
    return;
  }
  const ConvString conv = parse_conv_string(line);
  for (DType type : wanted_types(a))
    for (Pass pass : parse_passes(a.text("pass"))) add(conv, pass, type);
}

/// The same; what is wrong with a line is told with the place that it comes from.
void add_line_from(const std::string& place, const Arguments& a, std::string_view line, int threads,
                   std::vector<NamedProblem>& list) {
  try {
    add_line(a, line, threads, list);
  } catch (const Error& error) {
    throw Error(error.kind(), place + ": " + error.what());
  }
}

}  // namespace

std::vector<Arguments::Flag> problem_flags() {
  return with_network_flags(
      {{"problem", "",
        "one problem: 'conv mb1ic32id64oc64kd3pd1', 'deconv ...', a oneDNN verbose line (--batch multiplies the mb of "
        "these) or our own text; may be given several times",
        true},
       {"problems", "", "files of such lines, comma-separated (those of bench/problems)"},
       {"pass", "forward,backward_data,backward_weights", "passes of convolution strings, or of a model's nodes"},
       {"dtype", "f32", "f32, bf16, f16, comma-separated"},
       {"match", "", "only problems whose name contains this"}});
}

std::vector<NamedProblem> wanted_problems(const Arguments& a, int threads, DeviceKind device) {
  std::vector<NamedProblem> list;
  const bool lines = a.given("problem") || a.given("problems");
  for (const char* flag : {"model", "size", "batch-norm"})
    if (lines && a.given(flag)) fail_usage(std::string("--") + flag + " has no effect beside --problem or --problems");
  if (lines) wanted_types(a), parse_passes(a.text("pass")), wanted_batch(a);  // a line is not to blame for them
  for (const std::string& line : a.texts("problem")) add_line_from("--problem", a, line, threads, list);
  if (!a.text("problems").empty())
    for (std::string_view path : split(a.text("problems"), ',')) {
      std::ifstream file{std::string(path)};
      if (!file) fail_data(std::string(path) + ": cannot open the problem file");
      std::string line;
      for (int number = 1; std::getline(file, line); ++number)
        add_line_from(std::string(path) + ":" + std::to_string(number), a, line, threads, list);
      if (!file.eof())
        fail_data(std::string(path) + ": expected a file of problems, found one that cannot be read, or a folder");
    }
  if (!lines) list = model_problems(a, threads, device);
  for (NamedProblem& n : list) n.problem.device = device;
  std::set<std::string> seen;
  std::erase_if(list, [&](const NamedProblem& n) {
    return n.name.find(a.text("match")) == std::string::npos || !seen.insert(n.problem.text()).second;
  });
  if (list.empty() && a.text("match").empty())
    fail_usage(std::string("no problem to time: the ") +
               (lines ? "lines hold none" : "model has none of these passes"));
  if (list.empty()) fail_usage("--match: expected a part of a problem's name, found \"" + a.text("match") + "\"");
  return list;
}

}  // namespace convoy::bench
