#include "core/select.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "core/passes/passes.h"
#include "core/replace_file.h"
#include "core/text.h"

namespace convoy {

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
    try {
      table.set(Problem::parse(line.substr(tab + 1)), line.substr(0, tab));
    } catch (const Error& error) {
      fail_data(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  if (file.bad()) fail_data(path + ": cannot read the tuned table");  // a folder opens, too
  return table;
}

void TunedTable::save(const std::string& path) const {
  std::ostringstream table;
  for (const auto& [problem, kernel] : best_) table << kernel << '\t' << problem << '\n';
  replace_file(path, table.view());
}

void TunedTable::require_kernels(const KernelList& list, const std::string& path) const {
  for (const auto& [problem, name] : best_)
    if (std::none_of(list.begin(), list.end(), [&, &wanted = name](const auto& k) { return k->name() == wanted; }))
      fail_usage(path + ": no kernel is called " + name + ", of this build or of CONVOY_PLUGINS");
}

std::string TunedTable::find(const Problem& problem) const {
  const auto found = best_.empty() ? best_.end() : best_.find(problem.text());
  return found == best_.end() ? std::string() : found->second;
}

namespace {

/// How much a refusal tells about the problem: kernels of one name each run an op of their own, some of them elsewhere.
int telling(const Support& refusal) {
  return refusal.reason == "other op" ? 0 : refusal.reason.starts_with("runs on") ? 1 : 2;
}

/// The kernel of that name that supports the problem; else the one whose reason tells most; null for no such name.
const Kernel* find_kernel(const KernelList& list, std::string_view name, const Problem& problem) {
  const Kernel* refusing = nullptr;
  int told = 0;
  for (const auto& kernel : list) {
    if (kernel->name() != name) continue;
    const Support support = kernel->supports(problem);
    if (support.ok) return kernel.get();
    if (telling(support) >= told) refusing = kernel.get(), told = telling(support);
  }
  return refusing;
}

}  // namespace

bool is_for_others(const Support& refusal) {
  return telling(refusal) < 2;
}

Support answer_of(const KernelList& list, std::string_view name, const Problem& problem) {
  return find_kernel(list, name, problem)->supports(problem);
}

Support full_answer_of(const KernelList& list, std::string_view name, const Problem& problem) {
  const Support answer = answer_of(list, name, problem);
  if (answer.ok || !is_for_others(answer) || !op_def(problem.op.kind).lower) return answer;
  const Definition d = definition_of(problem.op, problem.in);
  for (const Node& node : d.tape.nodes()) {
    const Problem part{node.op, d.tape.descs(node.in), d.tape.descs(node.out), problem.device, problem.threads};
    const Support support = answer_of(list, name, part);
    if (!support.ok && !is_for_others(support))
      return Support::no(answer.reason + ", and its part " + part.text() + ": " + support.reason);
  }
  return answer;
}

bool insists(const KernelOverride& wish) {
  return wish.node.find('*') == std::string::npos;
}

void require_kernel(const KernelList& list, const KernelOverride& wish) {
  std::set<std::string_view> alike;
  for (const auto& kernel : list) {
    if (kernel->name() == wish.kernel) return;
    if (kernel->name().starts_with(wish.kernel) || kernel->name().ends_with("_" + wish.kernel))
      alike.insert(kernel->name());
  }
  std::string names;
  for (const std::string_view name : alike) names.append(names.empty() ? " (there is " : ", ").append(name);
  fail_usage("--kernel " + wish.node + "=" + wish.kernel +
             ": no kernel of this build or of CONVOY_PLUGINS has that name" + names + (names.empty() ? "" : ")"));
}

std::vector<const KernelOverride*> wishes_of(const KernelList& list, const std::string& node,
                                             const Selection& selection) {
  std::vector<const KernelOverride*> wishes;
  for (const KernelOverride& wish : selection.overrides) {
    if (!matches(wish.node, node)) continue;
    require_kernel(list, wish);
    wishes.push_back(&wish);
  }
  std::stable_partition(wishes.begin(), wishes.end(), [](const KernelOverride* wish) { return insists(*wish); });
  return wishes;
}

Choice choose_kernel(const KernelList& list, const Problem& problem, const std::string& node,
                     const Selection& selection) {
  for (const KernelOverride* wish : wishes_of(list, node, selection)) {
    if (const Kernel* kernel = supporting_kernel(list, wish->kernel, problem)) return {kernel, "override"};
    if (insists(*wish))
      fail_usage("--kernel " + wish->node + "=" + wish->kernel + ": it refuses " + problem.text() + ": " +
                 full_answer_of(list, wish->kernel, problem).reason);
  }
  const auto excluded = [&](const Kernel& kernel) { return selection.excludes(kernel); };
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
  fail_usage("no kernel supports " + node + ": " + problem.text() + "\n" + explain(list, problem));
}

const Kernel* supporting_kernel(const KernelList& list, std::string_view name, const Problem& problem) {
  const Kernel* kernel = find_kernel(list, name, problem);
  return kernel && kernel->supports(problem).ok ? kernel : nullptr;
}

bool kernel_supports(const KernelList& list, std::string_view name, const Problem& problem) {
  return supporting_kernel(list, name, problem) != nullptr;
}

std::string explain(const KernelList& list, const Problem& problem) {
  std::string text;
  for (const auto& kernel : list) {
    const Support support = kernel->supports(problem);
    if (!support.ok && telling(support) < 2) continue;
    text += "  " + std::string(kernel->name()) + ": " +
            (support.ok ? (kernel->preferred(problem) ? "yes, preferred" : "yes") : support.reason) + "\n";
  }
  return text;
}

}  // namespace convoy
