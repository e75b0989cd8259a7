// Which kernel runs a problem: an override, else the tuned table, else the first of the list that supports it, unless a
// later one says that it was measured faster there.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/kernel.h"

namespace convoy {

/// "conv1.forward=onednn": nodes whose name equals the left side, or matches it with one '*', run that kernel. A full
/// name goes before patterns; among equals, the first one.
struct KernelOverride {
  std::string node;
  std::string kernel;
};

/// Whether a node's name fits a pattern with at most one `*`.
bool matches(std::string_view pattern, std::string_view name);

/// Parses "node=kernel"; throws Error(usage).
KernelOverride parse_override(std::string_view text);

/// Problems and the kernel that was fastest for them on this machine: lines "kernel<TAB>problem".
class TunedTable {
 public:
  /// Throws Error(data) for a file that cannot be read, and naming the line for one that holds something else.
  static TunedTable load(const std::string& path);
  void save(const std::string& path) const;
  void set(const Problem& problem, std::string_view kernel) { best_[problem.text()] = kernel; }
  /// Empty when the problem was never tuned.
  std::string find(const Problem& problem) const;
  size_t size() const { return best_.size(); }
  /// Throws Error(usage) where the table, read from `path`, names a kernel that the list lacks.
  void require_kernels(const KernelList& list, const std::string& path) const;

 private:
  std::map<std::string, std::string> best_;
};

struct Selection {
  std::vector<KernelOverride> overrides;
  TunedTable tuned;
  std::vector<std::string> excluded;  ///< kernels whose name starts with one of these are left out (run-wide switches)
  bool excludes(const Kernel& kernel) const {
    return std::any_of(excluded.begin(), excluded.end(),
                       [&](const std::string& start) { return kernel.name().starts_with(start); });
  }
};

struct Choice {
  const Kernel* kernel = nullptr;
  std::string why;  ///< "override", "tuned", "preferred", "first"
};

/// Whether a refusal says nothing of the problem: the kernel is for another op or another device.
bool is_for_others(const Support& refusal);
/// What the kernels of that name, which each run an op of their own, say of a problem: yes, or the reason that tells
/// most. The list must have one.
Support answer_of(const KernelList& list, std::string_view name, const Problem& problem);
/// The same; of a fused op that they do not know, with what they refuse of the ops that it stands for.
Support full_answer_of(const KernelList& list, std::string_view name, const Problem& problem);

/// Throws Error(usage) when an override names an unknown kernel or, of the node's full name, one that refuses it, and
/// when nothing supports the problem.
Choice choose_kernel(const KernelList& list, const Problem& problem, const std::string& node,
                     const Selection& selection);

/// What overrides ask for at `node`, in the order in which they are tried: those that give its full name, which insist,
/// then patterns, which take their kernel wherever it can run (slices stay copies where it takes no views). Throws
/// Error(usage) for kernels that the list lacks.
std::vector<const KernelOverride*> wishes_of(const KernelList& list, const std::string& node,
                                             const Selection& selection);
/// Whether the override gives a node's full name.
bool insists(const KernelOverride& wish);
/// Throws Error(usage) where the list has no kernel of the override's name.
void require_kernel(const KernelList& list, const KernelOverride& wish);
/// The kernel of this name that supports the problem; null for none.
const Kernel* supporting_kernel(const KernelList& list, std::string_view name, const Problem& problem);
/// Whether some kernel of this name supports the problem.
bool kernel_supports(const KernelList& list, std::string_view name, const Problem& problem);

/// One line per candidate: name, "yes" or its reason.
std::string explain(const KernelList& list, const Problem& problem);

}  // namespace convoy
