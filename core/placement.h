// Where the values of a plan lie: which of them share storage, how long each storage is in use, and its place in the
// arena or in the team's memory.
#pragma once

#include "core/by_value.h"
#include "core/passes/slices.h"
#include "core/plan.h"

namespace convoy {

/// The value whose storage holds another one, and the byte in it where that begins.
struct Home {
  ValueId root = no_value;
  int64_t begin = 0;
  bool operator==(const Home&) const = default;
};

/// Gives values and workspaces their offsets, and buckets and messages the bytes that they move. Order of the nodes,
/// what runs together, and `slices` (of all values) are settled.
void place_values(Plan& plan, const ByValue<SliceOf>& slices, const PlanOptions& options);

}  // namespace convoy
