#include "apps/common/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "apps/common/profile.h"
#include "core/backward.h"
#include "core/conv_shapes.h"

namespace convoy::apps {
namespace {

std::string conv_family(const ConvAttrs& a, const Shape& w, bool transposed) {
  if (a.groups > 1 && w.c() == 1) return "convolution depthwise";
  std::string name = transposed ? "convolution transposed " : "convolution ";
  if (w.d() > 1) name += fmt::format("{}x", w.d());
  name += fmt::format("{}x{}", w.h(), w.w());
  if (a.dilation != Int3{1, 1, 1}) name += " dilated";
  if (a.stride != Int3{1, 1, 1} && !transposed) name += fmt::format(" stride {}", a.stride[2]);
  return name;
}

std::string_view name_of(OpFamily family) {
  constexpr std::string_view names[] = {
      "none",       "convolution",       "dense layers", "pools and resizing", "point-wise",
      "batch norm", "sums per channel",  "loss",         "casts and copies",   "communication",
      "updates",    "packing of weights"};
  return names[static_cast<int>(family)];
}

}  // namespace

std::vector<FamilyTime> family_times(const Executor& executor, const Roofs& roofs) {
  const Plan& plan = executor.plan();
  // The forward pass of a transposed convolution is a convolution's backward_data.
  std::set<std::string> transposed;
  for (const PlannedNode& node : plan.nodes)
    if (is_data_gradient(node.op.kind) && node.name.ends_with(".forward")) transposed.insert(layer_of(node.name));
  std::map<std::string, FamilyTime> families;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodeTime& t = executor.times()[i];
    if (t.runs == 0) continue;
    const PlannedNode& node = plan.nodes[i];
    const auto conv = conv_shapes(plan.problem_of(node));
    const std::string name = conv ? conv_family(conv->attrs, conv->w, transposed.count(layer_of(node.name)) > 0)
                                  : std::string(name_of(family_of(node.op.kind)));
    FamilyTime& f = families[name];
    f.name = name;
    f.seconds += t.seconds / double(t.runs), f.bound += bound_of_node(plan, node, roofs).seconds;
    f.flops += double(node.flops), f.bytes += double(node.bytes), ++f.nodes;
  }
  std::vector<FamilyTime> list;
  for (auto& [name, family] : families) list.push_back(std::move(family));
  std::stable_sort(list.begin(), list.end(),
                   [](const FamilyTime& a, const FamilyTime& b) { return a.seconds > b.seconds; });
  return list;
}

std::string family_table(const Executor& executor, const Roofs& roofs) {
  const std::vector<FamilyTime> list = family_times(executor, roofs);
  double total = 0;
  for (const FamilyTime& f : list) total += f.seconds;
  std::string text = fmt::format("{:<32} {:>6} {:>10} {:>7} {:>8} {:>9} {:>8} {:>10}\n", "family", "nodes", "ms",
                                 "share", "of roof", "GFLOP/s", "GB/s", "FLOP/byte");
  for (const FamilyTime& f : list)
    text += fmt::format("{:<32} {:>6} {:>10.3f} {:>6.1f}% {:>8} {:>9.1f} {:>8.1f} {:>10}\n", f.name, f.nodes,
                        1e3 * f.seconds, 100 * f.seconds / total, share_of_roof(f.bound, f.seconds),
                        f.flops / f.seconds * 1e-9, f.bytes / f.seconds * 1e-9,
                        f.bytes > 0 ? fmt::format("{:.1f}", f.flops / f.bytes) : "-");
  return text;
}

}  // namespace convoy::apps
