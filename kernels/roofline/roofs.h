// The roofline: how long arithmetic and traffic take at least at measured ceilings.
// S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>

#include "core/plan.h"
#include "kernels/roofline/ceilings.h"

namespace convoy {

/// Measured ceilings by name.
using Roofs = std::map<std::string, double>;
Roofs roofs_of(std::span<const Ceiling> ceilings);

/// The fastest of the ceilings that arithmetic in a type may use: AMX and bf16 products for bf16, f16 FMA for f16,
/// tensor cores for both, f32 FMA for all. Empty name and 0 where none was measured.
std::pair<std::string, double> machine_ceiling(const Roofs& roofs, const std::string& dtype);
/// Memory's, in GB/s: memory of a CPU (triad, which reads what it overwrites unseen, in files of versions before),
/// copy of a device. Empty name and 0 where none was measured.
std::pair<std::string, double> memory_ceiling(const Roofs& roofs);

/// The roof that a piece of work lies under.
struct Bound {
  std::string name;    ///< of the ceiling; empty where none is known
  double seconds = 0;  ///< the work takes at least, were all of it done as counted and every byte moved once
};

/// `flops` in the arithmetic of `dtype`, `bytes` from and to memory: the longer of both times.
Bound bound_of(const Roofs& roofs, const std::string& dtype, double flops, double bytes);
/// Of a node; the type is its first input's.
Bound bound_of_node(const Plan& plan, const PlannedNode& node, const Roofs& roofs);

}  // namespace convoy
