#include "core/plan.h"

#include <algorithm>
#include <climits>
#include <map>

#include "core/conv_shapes.h"
#include "core/ops/communication.h"
#include "core/passes/passes.h"
#include "core/passes/slices.h"
#include "core/passes/team.h"
#include "core/sweep.h"

namespace convoy {
namespace {

class Planner {
 public:
  Planner(const Tape& tape, const KernelList& kernels, const PlanOptions& options)
      : tape_(tape), kernels_(kernels), options_(options) {}

  Plan plan() {
    if (options_.drop_dead) drop_dead_nodes(tape_);
    lower(tape_, [&](const Node& node) {
      return options_.fused_kernels && !override_wants_definition(node) && !falls_to_reference(node);
    });
    if (options_.merge_equal) merge_equal_nodes(tape_);
    if (options_.recompute) recompute(tape_);
    if (options_.drop_dead) drop_dead_nodes(tape_);
    tape_.verify();
    plan_.values = tape_.values();
    plan_.device = options_.device, plan_.threads = options_.threads;
    plan_.reuses_memory = options_.reuse_memory || options_.in_place || options_.slice_aliasing;
    nodes_ = tape_.nodes();
    if (options_.sweep && options_.device != DeviceKind::cpu) {
      gather(plan_.values, nodes_);
      tape_.set_nodes(nodes_);
      tape_.verify();
    }
    slices_.assign(plan_.values.size(), {});
    if (options_.slice_aliasing)
      slices_ = alias_slices(
          plan_.values, nodes_, [&](const Node& node) { return !loses_kernel(node); },
          options_.device != DeviceKind::cpu);
    for (const Node& node : nodes_) place_node(node);
    hoist_refresh();
    if (options_.team > 1) share_packs(plan_, options_.team), share_updates(plan_, options_.team);
    if (options_.sweep) join_sweeps();
    place_values();
    return std::move(plan_);
  }

 private:
  std::vector<TensorDesc> descs(const std::vector<ValueId>& ids) const {
    std::vector<TensorDesc> result;
    for (ValueId id : ids)
      result.push_back(plan_.values.empty() ? tape_.desc(id) : plan_.values[static_cast<size_t>(id)].desc);
    return result;
  }

  Problem problem_of(const Node& node) const {
    Problem problem{node.op, descs(node.in), descs(node.out), options_.device, options_.threads};
    for (ValueId id : node.updated()) problem.out.push_back(descs({id})[0]);
    return problem;
  }

  std::vector<const KernelOverride*> wishes(const Node& node) const {
    return wishes_of(kernels_, original_name(node.name), options_.selection);
  }

  /// True when the first override that can be followed names a kernel that knows the op at the heart of a fused node
  /// but not the fused op.
  bool override_wants_definition(const Node& node) const {
    if (!op_def(node.op.kind).lower) return false;
    for (const KernelOverride* wish : wishes(node)) {
      if (kernel_supports(kernels_, wish->kernel, problem_of(node))) return false;
      Tape lowered = tape_;
      lowered.set_nodes({node});
      lower(lowered, [](const Node&) { return false; });
      const bool knows_heart = std::any_of(lowered.nodes().begin(), lowered.nodes().end(), [&](const Node& n) {
        const Problem problem{n.op, lowered.descs(n.in), lowered.descs(n.out), options_.device, options_.threads};
        return n.name == node.name && kernel_supports(kernels_, wish->kernel, problem);
      });
      if (knows_heart) return true;
    }
    return false;
  }

  bool runs(const Problem& problem) const {
    return std::any_of(kernels_.begin(), kernels_.end(), [&](const auto& kernel) {
      return !options_.selection.excludes(*kernel) && kernel->supports(problem).ok;
    });
  }

  /// Copies run what is asked for by their original's name.
  Choice choose(const Node& node, const Problem& problem) const {
    if (const Choice choice = choice_of_sum(node, problem); choice.kernel) return choice;
    return choose_kernel(kernels_, problem, original_name(node.name), options_.selection);
  }

  /// A convolution that adds to a value runs the kernel of the convolution alone: saving the addition's traffic is
  /// worth no slower kernel. Nothing for other ops, and where that kernel cannot.
  Choice choice_of_sum(const Node& node, const Problem& problem) const {
    if (!adds_to_value(problem)) return {};
    const Choice alone = choose_kernel(kernels_, without_addend(problem), original_name(node.name), options_.selection);
    return {supporting_kernel(kernels_, alone.kernel->name(), problem), alone.why};
  }

  /// True when no kernel but the reference runs the node; on devices, where there is no reference: no kernel at all.
  bool falls_to_reference(const Node& node) const {
    const Problem problem = problem_of(node);
    const bool adds = adds_to_value(problem);
    if (!adds && options_.device != DeviceKind::cpu && !runs(problem)) return true;
    const Choice choice = adds ? choice_of_sum(node, problem) : choose(node, problem);
    if (!choice.kernel) return true;
    return choice.why != "override" && choice.kernel->name() == reference_name;
  }

  /// True when strided operands take from a node the kernel that an override asks for, push it from a real kernel to
  /// the reference, or leave it none (all-reduces).
  bool loses_kernel(const Node& node) const {
    const Problem strided = problem_of(node);
    Problem dense = strided;
    for (auto* list : {&dense.in, &dense.out})
      for (TensorDesc& desc : *list) desc = TensorDesc(desc.shape, desc.dtype);
    for (const KernelOverride* wish : wishes(node)) {
      const bool takes_dense = kernel_supports(kernels_, wish->kernel, dense),
                 takes_strided = kernel_supports(kernels_, wish->kernel, strided);
      // Later wishes count where this one cannot be followed.
      if (takes_dense || takes_strided || insists(*wish)) return takes_dense && !takes_strided;
    }
    if (runs(strided) && !falls_to_reference(node)) return false;
    return choose(node, dense).kernel->name() != reference_name;
  }

  void place_node(const Node& node) {
    PlannedNode planned;
    Problem problem = problem_of(node);
    if (options_.team > 1) planned.part = part_of_update(problem, options_.team, options_.place);
    const Choice choice = choose(node, problem);
    planned.name = node.name;
    planned.op = node.op;
    planned.kernel = choice.kernel->name();
    planned.why = choice.why;
    planned.prepared = prepare(*choice.kernel, problem);
    planned.detail = planned.prepared->detail();
    planned.in = node.in;
    planned.out = node.out;
    for (ValueId id : node.updated()) planned.out.push_back(id);
    planned.workspace_bytes = planned.prepared->workspace_bytes();
    planned.flops = problem.flops();
    planned.bytes = problem.bytes();
    for (const PackRequest& request : planned.prepared->packed_weights())
      planned.packed.push_back(packed_value(node.in.at(static_cast<size_t>(request.input)), request, planned));
    plan_.nodes.push_back(std::move(planned));
  }

  std::shared_ptr<const Prepared> prepare(const Kernel& kernel, const Problem& problem) {
    auto& slot = prepared_[std::string(kernel.name()) + " " + problem.text()];
    if (!slot) slot = kernel.prepare(problem);
    return slot;
  }

  /// One Pack node per (weight, form), in front of its first user.
  ValueId packed_value(ValueId weight, const PackRequest& request, const PlannedNode& user) {
    const std::string form = user.kernel + ":" + request.form;
    const auto key = std::make_pair(weight, form);
    if (const auto found = packs_.find(key); found != packs_.end()) return found->second;
    const auto id = static_cast<ValueId>(plan_.values.size());
    const std::string name = plan_.values[static_cast<size_t>(weight)].name + ".pack";
    plan_.values.push_back(
        {name + "(" + form + ")", TensorDesc(Shape::vector(request.bytes), DType::u8), ValueKind::temporary, false});
    slices_.emplace_back();
    PlannedNode node;
    node.name = name;
    node.op = {OpKind::pack, NoAttrs{}};
    node.kernel = user.kernel;
    node.detail = request.form;
    node.why = "needed by " + user.name;
    node.prepared = std::make_shared<PreparedFunction>(
        [pack = request.pack](const KernelArgs& args) { pack(args.in[0], args.out[0].bytes()); });
    node.in = {weight};
    node.out = {id};
    node.bytes = plan_.values[static_cast<size_t>(weight)].desc.bytes() + request.bytes;
    plan_.nodes.push_back(std::move(node));
    return packs_[key] = id;
  }

  /// In a tape without updates, casts and packs of states need to run only when the states changed.
  void hoist_refresh() {
    const bool updates = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.updated().empty(); });
    if (updates) return;
    std::vector<bool> constant(plan_.values.size());
    for (size_t i = 0; i < constant.size(); ++i) constant[i] = plan_.values[i].kind == ValueKind::state;
    for (PlannedNode& node : plan_.nodes) {
      const bool kind = node.op.kind == OpKind::pack || node.op.kind == OpKind::cast;
      node.refresh = kind && constant[static_cast<size_t>(node.in[0])];
      if (node.refresh) constant[static_cast<size_t>(node.out[0])] = true;
    }
    std::stable_partition(plan_.nodes.begin(), plan_.nodes.end(), [](const PlannedNode& n) { return n.refresh; });
  }

  /// Neighbours whose kernels are sweeps, or join each other on a device, run as one; what waits for the team in
  /// between keeps them apart, and so does the end of what runs once per change of the states.
  void join_sweeps() {
    for (size_t i = 0; i < plan_.nodes.size();) {
      size_t end = i;
      while (end < plan_.nodes.size() && dynamic_cast<const Sweep*>(plan_.nodes[end].prepared.get()) &&
             !(end > i && (end == plan_.team_nodes || end == plan_.first_update)))
        plan_.nodes[end++].sweep_size = 0;
      if (const auto* first = dynamic_cast<const Joinable*>(plan_.nodes[i].prepared.get())) {
        plan_.nodes[end++].sweep_size = 0;
        while (end < plan_.nodes.size() && plan_.nodes[end].refresh == plan_.nodes[i].refresh &&
               first->joins(*plan_.nodes[end].prepared))
          plan_.nodes[end++].sweep_size = 0;
      }
      if (end > i) plan_.nodes[i].sweep_size = static_cast<int>(end - i);
      i = std::max(end, i + 1);
    }
  }

  /// The nodes that run together with node i, first and last: none of their values may share memory (but see Joinable).
  std::pair<int, int> together(int i) const {
    while (plan_.nodes[static_cast<size_t>(i)].sweep_size == 0) --i;
    return {i, i + plan_.nodes[static_cast<size_t>(i)].sweep_size - 1};
  }

  bool shared(size_t value) const { return !plan_.shared_offset.empty() && plan_.shared_offset[value] >= 0; }

  /// Nodes that touch a value, first and last; -1: none.
  struct Use {
    int first = -1, last = -1;
    void touch(int at) {
      first = first < 0 ? at : std::min(first, at);
      last = std::max(last, at);
    }
  };
  /// Root value and byte offset inside it, for values that share storage.
  using Home = std::pair<ValueId, int64_t>;

  void place_values() {
    const std::vector<Use> use = note_uses();
    const std::vector<Home> home = find_homes(use);
    if (options_.team > 1) share_buckets_of_team(plan_, home, options_.team, options_.place);
    count_moved_bytes(home);
    lay_out(use, home);
  }

  std::vector<Use> note_uses() const {
    const int count = static_cast<int>(plan_.nodes.size());
    std::vector<Use> use(plan_.values.size());
    for (int i = 0; i < count; ++i) {
      const PlannedNode& node = plan_.nodes[static_cast<size_t>(i)];
      const auto [first, last] = together(i);
      for (const auto* list : {&node.in, &node.out, &node.packed})
        for (ValueId id : *list) use[static_cast<size_t>(id)].touch(first), use[static_cast<size_t>(id)].touch(last);
      if (node.refresh) use[static_cast<size_t>(node.out[0])].touch(count - 1);
    }
    // Refreshed values outlive the run that made them, so inputs written ahead of a later run may not share their
    // memory.
    const auto refreshed =
        std::count_if(plan_.nodes.begin(), plan_.nodes.end(), [](const PlannedNode& n) { return n.refresh; });
    for (size_t v = 0; v < use.size(); ++v) {
      if (plan_.values[v].kind == ValueKind::input)
        use[v].touch(0), use[v].touch(std::max(0, std::min(static_cast<int>(refreshed), count - 1)));
      // Also where no node is left that touches it: the parts of a concatenation are written straight into it.
      if (plan_.values[v].keep) use[v].touch(std::max(0, count - 1));
    }
    return use;
  }

  std::vector<Home> find_homes(const std::vector<Use>& use) const {
    const size_t values = plan_.values.size();
    std::vector<Home> home(values);
    for (size_t v = 0; v < values; ++v) home[v] = {static_cast<ValueId>(v), 0};
    std::vector<bool> has_slices(values);
    for (size_t v = 0; v < values; ++v)
      if (slices_[v].parent != no_value) has_slices[static_cast<size_t>(slices_[v].parent)] = true;
    if (options_.in_place) {
      share_in_place(use, has_slices, home);
      share_buckets(use, has_slices, home);
    }
    for (size_t v = 0; v < values; ++v) {
      int64_t channel = 0;
      ValueId at = static_cast<ValueId>(v);
      for (; slices_[static_cast<size_t>(at)].parent != no_value; at = slices_[static_cast<size_t>(at)].parent)
        channel += slices_[static_cast<size_t>(at)].channel;
      if (channel || at != static_cast<ValueId>(v)) home[v] = {at, channel * size_of(plan_.values[v].desc.dtype)};
    }
    return home;
  }

  /// How long the storage of each root is in use, by itself and by all values that live there.
  std::vector<Use> lives(const std::vector<Use>& use, const std::vector<Home>& home) const {
    std::vector<Use> life(use.size());
    for (size_t v = 0; v < use.size(); ++v) {
      if (use[v].first < 0 || plan_.values[v].kind == ValueKind::state || shared(v)) continue;
      Use& root = life[static_cast<size_t>(home[v].first)];
      root.touch(use[v].first), root.touch(use[v].last);
    }
    return life;
  }

  /// Places roots and workspaces in the arena.
  void lay_out(const std::vector<Use>& use, const std::vector<Home>& home) {
    const size_t values = plan_.values.size();
    const int count = static_cast<int>(plan_.nodes.size());
    const std::vector<Use> life = lives(use, home);
    std::vector<Lifetime> blocks;
    std::vector<int> block_of(values, -1);
    for (size_t v = 0; v < values; ++v) {
      if (life[v].first < 0) continue;
      block_of[v] = static_cast<int>(blocks.size());
      blocks.push_back({plan_.values[v].desc.span_bytes(), life[v].first, life[v].last});
    }
    const size_t first_workspace = blocks.size();
    for (int i = 0; i < count; ++i) {
      const auto [first, last] = together(i);
      blocks.push_back({plan_.nodes[static_cast<size_t>(i)].workspace_bytes, first, last});
    }

    const ArenaLayout layout = plan_arena(blocks, options_.reuse_memory ? Reuse::on : Reuse::off);
    plan_.offset.assign(values, -1);
    for (size_t v = 0; v < values; ++v)
      if (const int block = block_of[static_cast<size_t>(home[v].first)]; block >= 0 && use[v].first >= 0)
        plan_.offset[v] = layout.offset[static_cast<size_t>(block)] + home[v].second;
    for (int i = 0; i < count; ++i) {
      plan_.nodes[static_cast<size_t>(i)].workspace_offset = layout.offset[first_workspace + static_cast<size_t>(i)];
      plan_.workspace_bytes = std::max(plan_.workspace_bytes, plan_.nodes[static_cast<size_t>(i)].workspace_bytes);
    }
    plan_.arena_bytes = layout.arena_bytes;
    plan_.lower_bound = layout.lower_bound;
    plan_.naive_bytes = layout.naive_bytes;
  }

  void share_in_place(const std::vector<Use>& use, const std::vector<bool>& has_slices, std::vector<Home>& home) const {
    const auto plain = [&](ValueId id) {
      const auto v = static_cast<size_t>(id);
      const Value& value = plan_.values[v];
      return value.kind == ValueKind::temporary && !value.keep && value.desc.dense() && !has_slices[v] &&
             slices_[v].parent == no_value;
    };
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      const PlannedNode& node = plan_.nodes[i];
      const int input = op_def(node.op.kind).in_place_input;
      if (input < 0 || node.refresh) continue;
      const ValueId from = node.in.at(static_cast<size_t>(input)), to = node.out.at(0);
      if (!plain(from) || !plain(to) || use[static_cast<size_t>(from)].last != static_cast<int>(i) ||
          std::count(node.in.begin(), node.in.end(), from) != 1 ||
          plan_.values[static_cast<size_t>(from)].desc.bytes() != plan_.values[static_cast<size_t>(to)].desc.bytes())
        continue;
      home[static_cast<size_t>(to)] = home[static_cast<size_t>(from)];
    }
  }

  /// Gradients are written where their bucket wants them, and averaged ones read from it.
  void share_buckets(const std::vector<Use>& use, const std::vector<bool>& has_slices, std::vector<Home>& home) const {
    const auto move = [&](ValueId part, ValueId bucket, int64_t offset, int last_reader, int last_of_bucket) {
      const auto root = static_cast<size_t>(home[static_cast<size_t>(part)].first);
      const Value& value = plan_.values[root];
      const bool whole = home[root] == std::make_pair(static_cast<ValueId>(root), int64_t{0}) &&
                         value.desc.bytes() == plan_.values[static_cast<size_t>(part)].desc.bytes();
      if (!whole || value.kind != ValueKind::temporary || value.keep || !value.desc.dense() || has_slices[root] ||
          slices_[root].parent != no_value)
        return;
      // Messages overwrite the bucket: nobody may read a part behind it.
      for (size_t v = 0; v < home.size(); ++v)
        if (home[v].first == static_cast<ValueId>(root) && use[v].last > last_reader) return;
      // What replaces a part in place (the gradient of a penalty) waits until nobody reads the bucket as it was
      // averaged.
      for (size_t v = 0; v < home.size(); ++v)
        if (home[v].first == static_cast<ValueId>(root) && v != static_cast<size_t>(part) &&
            use[v].first <= last_of_bucket)
          return;
      const Home base = home[static_cast<size_t>(bucket)];
      for (auto& h : home)
        if (h.first == static_cast<ValueId>(root)) h = {base.first, base.second + offset};
    };
    for (size_t n = 0; n < plan_.nodes.size(); ++n) {
      const PlannedNode& node = plan_.nodes[n];
      const bool into = node.op.kind == OpKind::bucket;
      if (!into && node.op.kind != OpKind::unbucket) continue;
      const auto [whole, parts, offsets] = parts_of(node);
      if (!into && plan_.values[static_cast<size_t>(whole)].kind != ValueKind::temporary) continue;
      for (size_t i = 0; i < parts.size(); ++i)
        if (std::count(parts.begin(), parts.end(), parts[i]) == 1)
          move(parts[i], whole, offsets[i], into ? static_cast<int>(n) : INT_MAX,
               into ? -1 : use[static_cast<size_t>(whole)].last);
    }
  }

  /// What a bucket or a message joins: a whole, and its parts with the bytes in it where they begin.
  struct Parts {
    ValueId whole;
    std::vector<ValueId> parts;
    std::vector<int64_t> offsets;
  };
  Parts parts_of(const PlannedNode& node) const {
    const bool out_of = node.op.kind == OpKind::unbucket;
    Parts p{out_of ? node.in[0] : node.out[0], out_of ? node.out : node.in, {}};
    if (node.op.kind == OpKind::all_reduce_later) p.parts.resize(1);  // behind it stands the state, which is the whole
    std::vector<TensorDesc> descs;
    for (ValueId id : p.parts) descs.push_back(plan_.values[static_cast<size_t>(id)].desc);
    for (int64_t at : bucket_offsets(descs)) p.offsets.push_back(at * size_of(descs[0].dtype));
    return p;
  }

  /// Buckets and messages move only those parts that lie elsewhere than in their whole.
  void count_moved_bytes(const std::vector<Home>& home) {
    for (PlannedNode& node : plan_.nodes) {
      if (family_of(node.op.kind) != OpFamily::communication) continue;
      const auto [whole, parts, offsets] = parts_of(node);
      const auto [root, begin] = home[static_cast<size_t>(whole)];
      node.bytes = 0;
      for (size_t i = 0; i < parts.size(); ++i)
        if (const auto part = static_cast<size_t>(parts[i]); home[part] != Home(root, begin + offsets[i]))
          node.bytes += 2 * plan_.values[part].desc.bytes();
    }
  }

  Tape tape_;
  const KernelList& kernels_;
  const PlanOptions& options_;
  Plan plan_;
  std::vector<Node> nodes_;
  std::vector<SliceOf> slices_;
  std::map<std::string, std::shared_ptr<const Prepared>> prepared_;
  std::map<std::pair<ValueId, std::string>, ValueId> packs_;
};

}  // namespace

PlanOptions plain_options(const PlanOptions& base) {
  PlanOptions options = base;
  options.drop_dead = options.fused_kernels = options.merge_equal = options.slice_aliasing = options.in_place =
      options.recompute = options.sweep = options.reuse_memory = false;
  return options;
}

ValueId Plan::find(const std::string& name) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].name == name) return static_cast<ValueId>(i);
  fail_usage("no value is named \"" + name + "\"");
}

Problem Plan::problem_of(const PlannedNode& node) const {
  Problem problem{node.op, {}, {}, device, threads};
  for (ValueId id : node.in) problem.in.push_back(values[static_cast<size_t>(id)].desc);
  for (ValueId id : node.out) problem.out.push_back(values[static_cast<size_t>(id)].desc);
  return problem;
}

std::vector<std::string> Plan::reference_nodes() const {
  std::vector<std::string> names;
  for (const PlannedNode& node : nodes)
    if (node.kernel == reference_name) names.push_back(node.name);
  return names;
}

Plan make_plan(const Tape& tape, const KernelList& kernels, const PlanOptions& options) {
  if (options.threads < 1) fail_usage("a plan needs a thread or more, found " + std::to_string(options.threads));
  if (options.team < 1 || options.place < 0 || options.place >= options.team)
    fail_usage("a plan's place is within its team, found place " + std::to_string(options.place) + " of " +
               std::to_string(options.team));
  return Planner(tape, kernels, options).plan();
}

}  // namespace convoy
