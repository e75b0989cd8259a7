#include "kernels/roofline/roofs.h"

namespace convoy {

Roofs roofs_of(std::span<const Ceiling> ceilings) {
  Roofs roofs;
  for (const Ceiling& c : ceilings) roofs[c.name] = c.value;
  return roofs;
}

std::pair<std::string, double> machine_ceiling(const Roofs& roofs, const std::string& dtype) {
  std::pair<std::string, double> best;
  for (const auto& [name, value] : roofs) {
    const bool usable = name == "f32_fma" || name.starts_with(dtype + "_") || (dtype == "bf16" && name == "amx_bf16");
    if (usable && value > best.second) best = {name, value};
  }
  return best;
}

std::pair<std::string, double> memory_ceiling(const Roofs& roofs) {
  for (const char* name : {"memory", "triad", "copy"})
    if (const auto roof = roofs.find(name); roof != roofs.end() && roof->second > 0) return *roof;
  return {};
}

Bound bound_of(const Roofs& roofs, const std::string& dtype, double flops, double bytes) {
  const auto [arithmetic, rate] = machine_ceiling(roofs, dtype);
  const auto [memory, bandwidth] = memory_ceiling(roofs);
  Bound bound;
  if (rate > 0 && flops > 0) bound = {arithmetic, flops / rate * 1e-9};
  if (bandwidth > 0 && bytes / bandwidth * 1e-9 > bound.seconds) bound = {memory, bytes / bandwidth * 1e-9};
  return bound;
}

Bound bound_of_node(const Plan& plan, const PlannedNode& node, const Roofs& roofs) {
  const DType type = node.in.empty() ? DType::f32 : plan.value(node.in[0]).desc.dtype;
  return bound_of(roofs, std::string(name_of(type)), double(node.flops), double(node.bytes));
}

}  // namespace convoy
