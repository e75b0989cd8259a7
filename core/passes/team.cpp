#include "core/passes/team.h"

#include <algorithm>

#include "core/round_up.h"

namespace convoy {
namespace {

constexpr int64_t line = 64;

/// Members of a team write values of their own: no two of them share a page.
int64_t whole_pages(int64_t bytes) {
  constexpr int64_t page = 4096;
  return round_up(bytes, page);
}

/// The largest first, each to whoever has least to do.
void divide(std::vector<PlannedNode*> nodes, int team) {
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const PlannedNode* a, const PlannedNode* b) { return a->bytes > b->bytes; });
  std::vector<int64_t> load(static_cast<size_t>(team));
  for (PlannedNode* node : nodes) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += node->bytes;
    node->owner = static_cast<int>(least - load.begin());
  }
}

}  // namespace

Part part_of_update(Problem& problem, int team, int place) {
  constexpr int64_t smallest_part = 4096;  // elements
  const OpDef& def = op_def(problem.op.kind);
  const TensorDesc whole = problem.in[0];
  const int64_t elements = whole.shape.elements();
  if (!def.division || def.division(problem.op) != Division::by_element) return {};
  if (elements < team * smallest_part || !whole.dense()) return {};
  // Members write cache lines of their own.
  const int64_t unit = line / size_of(whole.dtype), lines = ceil_div(elements, unit);
  const auto begin_of = [&](int member) { return std::min(elements, lines * member / team * unit); };
  const Part part{begin_of(place), begin_of(place + 1) - begin_of(place)};
  take_part(problem, part);
  return part;
}

void take_part(Problem& problem, const Part& part) {
  const TensorDesc whole = problem.in[0];
  for (auto* list : {&problem.in, &problem.out})
    for (TensorDesc& desc : *list)
      if (desc == whole) desc = TensorDesc(Shape::vector(part.count), desc.dtype);
}

void share_packs(Plan& plan, int team) {
  plan.shared_offset = ByValue<int64_t>(plan.values.size(), -1);
  ByValue<bool> moved(plan.values.size());  // values whose writer moves
  std::vector<PlannedNode*> packs;
  const auto is_weight = [&](ValueId id) { return plan.value(id).kind == ValueKind::state; };
  for (PlannedNode& node : plan.nodes) {
    if (node.refresh || node.op.kind != OpKind::pack) continue;
    if (!is_weight(node.in[0])) {
      const auto cast = std::find_if(plan.nodes.begin(), plan.nodes.end(), [&](const PlannedNode& n) {
        return n.op.kind == OpKind::cast && n.out[0] == node.in[0] && is_weight(n.in[0]);
      });
      if (cast == plan.nodes.end()) continue;
      moved[node.in[0]] = true;
    }
    moved[node.out[0]] = true;
    packs.push_back(&node);
  }
  divide(packs, team);
  for (const PlannedNode* pack : packs) {
    plan.shared_offset[pack->out[0]] = plan.shared_bytes;
    plan.shared_bytes += whole_pages(plan.value(pack->out[0]).desc.bytes());
  }
  const auto rest = std::stable_partition(plan.nodes.begin(), plan.nodes.end(),
                                          [&](const PlannedNode& n) { return !n.out.empty() && moved[n.out[0]]; });
  plan.team_nodes = static_cast<size_t>(rest - plan.nodes.begin());
}

void share_updates(Plan& plan, int team) {
  const auto first = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                                  [](const PlannedNode& n) { return op_def(n.op.kind).division != nullptr; });
  const auto changes = std::stable_partition(
      first, plan.nodes.end(), [](const PlannedNode& n) { return op_def(n.op.kind).updated_inputs == 0; });
  plan.first_update = static_cast<size_t>(changes - plan.nodes.begin());
  std::vector<PlannedNode*> whole;
  for (auto node = changes; node != plan.nodes.end(); ++node) {
    const OpDef& def = op_def(node->op.kind);
    if (!def.division) continue;
    if (node->part.count == 0) whole.push_back(&*node);
    for (ValueId state : std::span(node->in).last(static_cast<size_t>(def.updated_inputs))) {
      plan.shared_states.emplace_back(state, plan.shared_state_bytes);
      plan.shared_state_bytes += round_up(plan.value(state).desc.bytes(), line);
    }
  }
  divide(whole, team);
}

void share_buckets_of_team(Plan& plan, const ByValue<Home>& home, int team, int place) {
  const int64_t packs = plan.shared_bytes;
  std::vector<ValueId> buckets;
  for (const PlannedNode& node : plan.nodes) {
    if (node.op.kind != OpKind::bucket) continue;
    const ValueId bucket = node.out[0];
    if (home[bucket].root != bucket || plan.value(bucket).kind != ValueKind::temporary) continue;
    plan.shared_offset[bucket] = plan.window_bytes;
    plan.window_bytes += whole_pages(plan.value(bucket).desc.bytes());
    buckets.push_back(bucket);
  }
  plan.window_begin = packs + place * plan.window_bytes;
  plan.shared_bytes = packs + team * plan.window_bytes;
  for (ValueId bucket : buckets) plan.shared_offset[bucket] += plan.window_begin;
  for (ValueId id : ids_of(plan.values))
    if (const Home& at = home[id]; at.root != id && plan.shared_offset[at.root] >= 0)
      plan.shared_offset[id] = plan.shared_offset[at.root] + at.begin;
}

}  // namespace convoy
