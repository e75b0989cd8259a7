#include "core/memory_planner.h"

#include <algorithm>
#include <numeric>

#include "core/round_up.h"

namespace convoy {

ArenaLayout plan_arena(std::span<const Lifetime> blocks, Reuse reuse) {
  const auto rounded = [](int64_t bytes) { return round_up(bytes, 64); };
  ArenaLayout layout;
  layout.offset.assign(blocks.size(), 0);
  int nodes = 0;
  for (const Lifetime& block : blocks) nodes = std::max(nodes, block.last + 1);
  std::vector<int64_t> alive(static_cast<size_t>(nodes) + 1);
  for (const Lifetime& block : blocks) {
    layout.naive_bytes += rounded(block.bytes);
    alive[static_cast<size_t>(block.first)] += rounded(block.bytes);
    alive[static_cast<size_t>(block.last) + 1] -= rounded(block.bytes);
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  for (int64_t bytes : alive) layout.lower_bound = std::max(layout.lower_bound, bytes);

  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (reuse == Reuse::off) {
    int64_t next = 0;
    for (size_t i : order) layout.offset[i] = next, next += rounded(blocks[i].bytes);
    layout.arena_bytes = next;
    return layout;
  }

  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<size_t> placed;  // sorted by offset
  for (size_t i : order) {
    const int64_t need = rounded(blocks[i].bytes);
    int64_t best = -1, best_gap = INT64_MAX, end = 0;
    for (size_t j : placed) {
      if (blocks[j].last < blocks[i].first || blocks[j].first > blocks[i].last) continue;
      const int64_t gap = layout.offset[j] - end;
      if (gap >= need && gap < best_gap) best = end, best_gap = gap;
      end = std::max(end, layout.offset[j] + rounded(blocks[j].bytes));
    }
    layout.offset[i] = best >= 0 ? best : end;
    layout.arena_bytes = std::max(layout.arena_bytes, layout.offset[i] + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return layout.offset[a] < layout.offset[b]; }),
                  i);
  }
  return layout;
}

}  // namespace convoy
