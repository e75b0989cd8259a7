#include "core/select.h"

#include <algorithm>
#include <fstream>

#include "core/text.h"

namespace convoy {
namespace {

std::string join_descs(std::span<const TensorDesc> descs) {
  std::string text;
  for (const TensorDesc& desc : descs) text.append(text.empty() ? "" : "|").append(desc.str());
  return text;
}

TensorDesc parse_desc(std::string_view text) {
  const size_t colon = text.find(':');
  const auto type = colon == std::string_view::npos ? std::nullopt : parse_dtype(text.substr(0, colon));
  if (!type) fail_usage("expected type:NxDxHxWxC, found \"" + std::string(text) + "\"");
  std::string_view rest = text.substr(colon + 1), strides;
  if (const size_t at = rest.find('@'); at != std::string_view::npos)
    strides = rest.substr(at + 1), rest = rest.substr(0, at);
  const auto parts = split(rest, 'x');
  if (parts.size() != 5) fail_usage("expected five extents, found \"" + std::string(rest) + "\"");
  Shape shape;
  for (int i = 0; i < 5; ++i) shape[i] = parse_number<int64_t>(parts[i], "extent");
  TensorDesc desc(shape, *type);
  if (!strides.empty()) {
    const auto values = split(strides, ',');
    if (values.size() != 4) fail_usage("expected four strides, found \"" + std::string(strides) + "\"");
    for (int i = 0; i < 4; ++i) desc.stride[i] = parse_number<int64_t>(values[i], "stride");
  }
  return desc;
}

std::vector<TensorDesc> parse_descs(std::string_view text) {
  std::vector<TensorDesc> descs;
  if (text.empty()) return descs;
  for (std::string_view part : split(text, '|')) descs.push_back(parse_desc(part));
  return descs;
}

}  // namespace

std::string Problem::text() const {
  return to_text(op) + " in=" + join_descs(in) + " out=" + join_descs(out) +
         " device=" + (device == DeviceKind::cpu ? "cpu" : "cuda") + " threads=" + std::to_string(threads);
}

Problem Problem::parse(std::string_view text) {
  Problem problem;
  bool has_out = false;
  const auto words = split(trim(text), ' ');
  problem.op = parse_op(words.at(0));
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string_view key = words[i].substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : words[i].substr(equals + 1);
    if (key == "in")
      problem.in = parse_descs(value);
    else if (key == "out")
      problem.out = parse_descs(value), has_out = true;
    else if (key == "device" && (value == "cpu" || value == "cuda"))
      problem.device = value == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
    else if (key == "threads")
      problem.threads = parse_number<int>(value, "threads");
    else
      fail_usage("problem text: cannot read \"" + std::string(words[i]) + "\"");
  }
  if (!has_out) problem.out = infer(problem.op, problem.in);
  return problem;
}

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  return name.size() >= head.size() + tail.size() && name.starts_with(head) && name.ends_with(tail);
}

KernelOverride parse_override(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size())
    fail_usage("--kernel expects node=kernel (\"conv1.forward=onednn\"), found \"" + std::string(text) + "\"");
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

TunedTable TunedTable::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail_data(path + ": cannot open the tuned table");
  TunedTable table;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (trim(line).empty() || line[0] == '#') continue;
    const size_t tab = line.find('\t');
    if (tab == std::string::npos)
      fail_data(path + ":" + std::to_string(number) + ": expected kernel<TAB>problem, found \"" + line + "\"");
    table.set(Problem::parse(line.substr(tab + 1)), line.substr(0, tab));
  }
  return table;
}

void TunedTable::save(const std::string& path) const {
  std::ofstream file(path);
  for (const auto& [problem, kernel] : best_) file << kernel << '\t' << problem << '\n';
  if (!file.flush()) fail_runtime(path + ": cannot write the tuned table");
}

std::set<std::string> TunedTable::kernels() const {
  std::set<std::string> names;
  for (const auto& [problem, kernel] : best_) names.insert(kernel);
  return names;
}

std::string TunedTable::find(const Problem& problem) const {
  const auto found = best_.empty() ? best_.end() : best_.find(problem.text());
  return found == best_.end() ? std::string() : found->second;
}

namespace {

/// The kernel of that name that supports the problem; else the last of that name, for its reason; null for no such
/// name.
const Kernel* find_kernel(const KernelList& list, std::string_view name, const Problem& problem) {
  const Kernel* last_of_name = nullptr;
  for (const auto& kernel : list)
    if (kernel->name() == name) {
      last_of_name = kernel.get();
      if (kernel->supports(problem).ok) return last_of_name;
    }
  return last_of_name;
}

}  // namespace

Choice choose_kernel(const KernelList& list, const Problem& problem, const std::string& node,
                     const Selection& selection) {
  for (const KernelOverride& wish : selection.overrides) {
    if (!matches(wish.node, node)) continue;
    const Kernel* kernel = find_kernel(list, wish.kernel, problem);
    if (!kernel) fail_usage("--kernel " + wish.node + "=" + wish.kernel + ": no kernel has that name");
    const Support support = kernel->supports(problem);
    // A pattern asks for the kernel wherever it can run; a full name insists.
    if (support.ok) return {kernel, "override"};
    if (wish.node.find('*') == std::string::npos)
      fail_usage("--kernel " + wish.node + "=" + wish.kernel + ": it refuses " + problem.text() + ": " +
                 support.reason);
  }
  const auto excluded = [&](const Kernel& kernel) {
    return std::any_of(selection.excluded.begin(), selection.excluded.end(),
                       [&](const std::string& start) { return kernel.name().starts_with(start); });
  };
  if (const std::string name = selection.tuned.find(problem); !name.empty())
    if (const Kernel* kernel = find_kernel(list, name, problem);
        kernel && !excluded(*kernel) && kernel->supports(problem).ok)
      return {kernel, "tuned"};
  const Kernel* first = nullptr;
  for (const auto& kernel : list) {
    if ((first && !kernel->preferred(problem)) || excluded(*kernel) || !kernel->supports(problem).ok) continue;
    if (kernel->preferred(problem)) return {kernel.get(), "preferred"};
    first = kernel.get();
  }
  if (first) return {first, "first"};
  fail_runtime("no kernel supports " + node + ": " + problem.text() + "\n" + explain(list, problem));
}

const KernelOverride* find_override(const KernelList& list, const std::string& node, const Selection& selection) {
  for (const KernelOverride& wish : selection.overrides) {
    if (!matches(wish.node, node)) continue;
    if (std::none_of(list.begin(), list.end(), [&](const auto& kernel) { return kernel->name() == wish.kernel; }))
      fail_usage("--kernel " + wish.node + "=" + wish.kernel + ": no kernel has that name");
    return &wish;
  }
  return nullptr;
}

bool kernel_supports(const KernelList& list, std::string_view name, const Problem& problem) {
  const Kernel* kernel = find_kernel(list, name, problem);
  return kernel && kernel->supports(problem).ok;
}

std::string explain(const KernelList& list, const Problem& problem) {
  std::string text;
  for (const auto& kernel : list) {
    const Support support = kernel->supports(problem);
    if (!support.ok && (support.reason == "other op" || support.reason.starts_with("runs on"))) continue;
    text += "  " + std::string(kernel->name()) + ": " +
            (support.ok ? (kernel->preferred(problem) ? "yes, preferred" : "yes") : support.reason) + "\n";
  }
  return text;
}

}  // namespace convoy
