// Which of the measured ceilings bounds arithmetic in a type.
#pragma once

#include <map>
#include <set>
#include <string>

namespace convoy::bench {

/// The fastest of the ceilings that a type may use: AMX and bf16 products for bf16, f16 FMA for f16, tensor cores for
/// both, f32 FMA for all. Empty name and 0 where none was measured.
inline std::pair<std::string, double> machine_ceiling(const std::map<std::string, double>& ceilings,
                                                      const std::string& dtype) {
  static const std::map<std::string, std::set<std::string>> usable{
      {"bf16", {"f32_fma", "bf16_dot", "amx_bf16", "bf16_mma", "bf16_wgmma"}},
      {"f16", {"f32_fma", "f16_fma", "f16_mma", "f16_wgmma"}}};
  const auto list = usable.find(dtype);
  std::pair<std::string, double> best;
  for (const auto& [name, value] : ceilings)
    if ((list == usable.end() ? name == "f32_fma" : list->second.contains(name)) && value > best.second)
      best = {name, value};
  return best;
}

}  // namespace convoy::bench
