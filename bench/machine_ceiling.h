// Which of the measured ceilings bounds arithmetic in a type.
#pragma once

#include <map>
#include <string>

namespace convoy::bench {

/// The fastest of the ceilings that a type may use: AMX and bf16 products for bf16, f16 FMA for f16, tensor cores for
/// both, f32 FMA for all. Empty name and 0 where none was measured.
inline std::pair<std::string, double> machine_ceiling(const std::map<std::string, double>& ceilings,
                                                      const std::string& dtype) {
  std::pair<std::string, double> best;
  for (const auto& [name, value] : ceilings) {
    const bool usable = name == "f32_fma" || name.starts_with(dtype + "_") || (dtype == "bf16" && name == "amx_bf16");
    if (usable && value > best.second) best = {name, value};
  }
  return best;
}

}  // namespace convoy::bench
