#include "core/placement.h"

#include <algorithm>

#include "core/memory_planner.h"
#include "core/ops/communication.h"
#include "core/passes/team.h"

namespace convoy {
namespace {

/// Nodes that touch a value or a storage, first and last; -1: none.
struct Use {
  int first = -1, last = -1;
  void touch(int at) {
    first = first < 0 ? at : std::min(first, at);
    last = std::max(last, at);
  }
  bool any() const { return first >= 0; }
};

/// What a bucket or a message joins: a whole, and its parts with the bytes in it where they begin.
struct Parts {
  ValueId whole = no_value;
  std::vector<ValueId> parts;
  std::vector<int64_t> begin;
  bool has_once(ValueId part) const { return std::count(parts.begin(), parts.end(), part) == 1; }
};

class Placement {
 public:
  Placement(Plan& plan, const ByValue<SliceOf>& slices, const PlanOptions& options)
      : plan_(plan),
        slices_(slices),
        options_(options),
        use_(plan.values.size()),
        home_(plan.values.size()),
        has_slices_(plan.values.size()) {}

  void run() {
    note_uses();
    for (ValueId id : ids_of(plan_.values)) home_[id] = {id, 0};
    for (ValueId id : ids_of(plan_.values))
      if (slices_[id].parent != no_value) has_slices_[slices_[id].parent] = true;
    if (options_.in_place) share_in_place(), share_buckets();
    share_slices();
    if (options_.team > 1) share_buckets_of_team(plan_, home_, options_.team, options_.place);
    count_moved_bytes();
    lay_out();
  }

 private:
  int count() const { return static_cast<int>(plan_.nodes.size()); }
  PlannedNode& node(int i) { return plan_.nodes[static_cast<size_t>(i)]; }

  /// The nodes that run together with node i, first and last: none of their values may share memory (but see Joinable).
  std::pair<int, int> together(int i) {
    while (node(i).sweep_size == 0) --i;
    return {i, i + node(i).sweep_size - 1};
  }

  void note_uses() {
    for (int i = 0; i < count(); ++i) {
      const auto [first, last] = together(i);
      for (const auto* list : {&node(i).in, &node(i).out, &node(i).packed})
        for (ValueId id : *list) use_[id].touch(first), use_[id].touch(last);
      if (node(i).refresh) use_[node(i).out[0]].touch(count() - 1);
    }
    // Refreshed values outlive the run that made them, so inputs written ahead of a later run may not share their
    // memory.
    const auto refreshed =
        std::count_if(plan_.nodes.begin(), plan_.nodes.end(), [](const PlannedNode& n) { return n.refresh; });
    for (ValueId id : ids_of(plan_.values)) {
      if (plan_.value(id).kind == ValueKind::input)
        use_[id].touch(0), use_[id].touch(std::max(0, std::min(static_cast<int>(refreshed), count() - 1)));
      // Also where no node is left that touches it: the parts of a concatenation are written straight into it.
      if (plan_.value(id).keep) use_[id].touch(std::max(0, count() - 1));
    }
  }

  /// Whether a value may as well lie elsewhere: nobody knows its place but the nodes that name it.
  bool movable(ValueId id) const {
    const Value& value = plan_.value(id);
    return value.kind == ValueKind::temporary && !value.keep && value.desc.dense() && !has_slices_[id] &&
           slices_[id].parent == no_value;
  }

  void share_in_place() {
    for (int i = 0; i < count(); ++i) {
      const int input = op_def(node(i).op.kind).in_place_input;
      if (input < 0 || node(i).refresh) continue;
      const std::vector<ValueId>& in = node(i).in;
      const ValueId from = in.at(static_cast<size_t>(input)), to = node(i).out.at(0);
      if (!movable(from) || !movable(to) || use_[from].last != i || std::count(in.begin(), in.end(), from) != 1 ||
          plan_.value(from).desc.bytes() != plan_.value(to).desc.bytes())
        continue;
      home_[to] = home_[from];
    }
  }

  void share_buckets() {
    for (int i = 0; i < count(); ++i) {
      if (node(i).op.kind == OpKind::bucket) write_into_bucket(i);
      if (node(i).op.kind == OpKind::unbucket) read_from_bucket(node(i));
    }
  }

  /// Gradients are written where their bucket wants them. Messages overwrite it: nobody may read a part behind node i,
  /// which would copy it.
  void write_into_bucket(int i) {
    move_into_whole(parts_of(node(i)), [&](ValueId, ValueId tenant) { return use_[tenant].last <= i; });
  }

  /// Averaged gradients are read from their bucket. What replaces one in place (the gradient of a penalty) waits until
  /// nobody reads the bucket as it was averaged.
  void read_from_bucket(const PlannedNode& unbucket) {
    const Parts p = parts_of(unbucket);
    if (plan_.value(p.whole).kind != ValueKind::temporary) return;
    move_into_whole(
        p, [&](ValueId part, ValueId tenant) { return tenant == part || use_[tenant].first > use_[p.whole].last; });
  }

  /// Moves each part to its place in the whole for which `may(part, tenant)` holds of all values in its storage.
  template <class May>
  void move_into_whole(const Parts& p, const May& may) {
    for (size_t k = 0; k < p.parts.size(); ++k) {
      if (!p.has_once(p.parts[k])) continue;
      const std::vector<ValueId> tenants = movable_with(p.parts[k]);
      if (std::all_of(tenants.begin(), tenants.end(), [&](ValueId tenant) { return may(p.parts[k], tenant); }))
        move(tenants, p.whole, p.begin[k]);
    }
  }

  /// All values in a part's storage, which are as large as the part; none where they have to stay.
  std::vector<ValueId> movable_with(ValueId part) const {
    const ValueId root = home_[part].root;
    std::vector<ValueId> tenants;
    if (home_[root] != Home{root, 0} || !movable(root) ||
        plan_.value(root).desc.bytes() != plan_.value(part).desc.bytes())
      return tenants;
    for (ValueId id : ids_of(plan_.values))
      if (home_[id].root == root) tenants.push_back(id);
    return tenants;
  }

  void move(const std::vector<ValueId>& tenants, ValueId whole, int64_t begin) {
    const Home base = home_[whole];
    for (ValueId id : tenants) home_[id] = {base.root, base.begin + begin};
  }

  Parts parts_of(const PlannedNode& node) const {
    const bool out_of = node.op.kind == OpKind::unbucket;
    Parts p{out_of ? node.in[0] : node.out[0], out_of ? node.out : node.in, {}};
    if (node.op.kind == OpKind::all_reduce_later) p.parts.resize(1);  // behind it stands the state, which is the whole
    std::vector<TensorDesc> descs;
    for (ValueId id : p.parts) descs.push_back(plan_.value(id).desc);
    for (int64_t at : bucket_offsets(descs)) p.begin.push_back(at * size_of(descs[0].dtype));
    return p;
  }

  void share_slices() {
    for (ValueId id : ids_of(plan_.values)) {
      int64_t channel = 0;
      ValueId root = id;
      for (; slices_[root].parent != no_value; root = slices_[root].parent) channel += slices_[root].channel;
      if (root != id) home_[id] = {root, channel * size_of(plan_.value(id).desc.dtype)};
    }
  }

  /// Buckets and messages move only those parts that lie elsewhere than in their whole.
  void count_moved_bytes() {
    for (PlannedNode& node : plan_.nodes) {
      if (family_of(node.op.kind) != OpFamily::communication) continue;
      const Parts p = parts_of(node);
      const Home whole = home_[p.whole];
      node.bytes = 0;
      for (size_t i = 0; i < p.parts.size(); ++i)
        if (home_[p.parts[i]] != Home{whole.root, whole.begin + p.begin[i]})
          node.bytes += 2 * plan_.value(p.parts[i]).desc.bytes();
    }
  }

  /// How long the storage of each root is in use, by itself and by all values that live there.
  ByValue<Use> lives() const {
    ByValue<Use> life(plan_.values.size());
    for (ValueId id : ids_of(plan_.values)) {
      const bool in_team = !plan_.shared_offset.empty() && plan_.shared_offset[id] >= 0;
      if (!use_[id].any() || plan_.value(id).kind == ValueKind::state || in_team) continue;
      Use& root = life[home_[id].root];
      root.touch(use_[id].first), root.touch(use_[id].last);
    }
    return life;
  }

  /// Places roots and workspaces in the arena.
  void lay_out() {
    const ByValue<Use> life = lives();
    std::vector<Lifetime> blocks;
    ByValue<int> block_of(plan_.values.size(), -1);
    for (ValueId id : ids_of(plan_.values)) {
      if (!life[id].any()) continue;
      block_of[id] = static_cast<int>(blocks.size());
      blocks.push_back({plan_.value(id).desc.span_bytes(), life[id].first, life[id].last});
    }
    const size_t first_workspace = blocks.size();
    for (int i = 0; i < count(); ++i) {
      const auto [first, last] = together(i);
      blocks.push_back({node(i).workspace_bytes, first, last});
    }

    const ArenaLayout layout = plan_arena(blocks, options_.reuse_memory ? Reuse::on : Reuse::off);
    plan_.offset = ByValue<int64_t>(plan_.values.size(), -1);
    for (ValueId id : ids_of(plan_.values))
      if (const int block = block_of[home_[id].root]; block >= 0 && use_[id].any())
        plan_.offset[id] = layout.offset[static_cast<size_t>(block)] + home_[id].begin;
    for (int i = 0; i < count(); ++i) {
      node(i).workspace_offset = layout.offset[first_workspace + static_cast<size_t>(i)];
      plan_.workspace_bytes = std::max(plan_.workspace_bytes, node(i).workspace_bytes);
    }
    plan_.arena_bytes = layout.arena_bytes;
    plan_.lower_bound = layout.lower_bound;
    plan_.naive_bytes = layout.naive_bytes;
  }

  Plan& plan_;
  const ByValue<SliceOf>& slices_;
  const PlanOptions& options_;
  ByValue<Use> use_;
  ByValue<Home> home_;
  ByValue<bool> has_slices_;
};

}  // namespace

void place_values(Plan& plan, const ByValue<SliceOf>& slices, const PlanOptions& options) {
  Placement(plan, slices, options).run();
}

}  // namespace convoy
