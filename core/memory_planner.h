// Places blocks with known lifetimes into one arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

/// A block of memory alive from node `first` to node `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offset;  ///< of each block, 64-byte aligned
  int64_t arena_bytes = 0;      ///< what the layout needs
  int64_t naive_bytes = 0;      ///< one buffer per block
  int64_t lower_bound = 0;      ///< most bytes alive at any one node: no layout can need less
};

/// off: every block keeps its own bytes.
enum class Reuse : uint8_t { on, off };
/// Largest block first, each into the smallest gap among the blocks it overlaps in time. Deterministic.
ArenaLayout plan_arena(std::span<const Lifetime> blocks, Reuse reuse);

}  // namespace convoy
