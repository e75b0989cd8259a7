#include "core/plan.h"

#include <algorithm>
#include <map>

#include "core/conv_shapes.h"
#include "core/passes/passes.h"
#include "core/passes/team.h"
#include "core/placement.h"
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
    slices_ = ByValue<SliceOf>(plan_.values.size());
    if (options_.slice_aliasing)
      slices_ = alias_slices(
          plan_.values, nodes_, [&](const Node& node) { return !loses_kernel(node); },
          options_.device != DeviceKind::cpu);
    for (const Node& node : nodes_) place_node(node);
    hoist_refresh();
    if (options_.team > 1) share_packs(plan_, options_.team), share_updates(plan_, options_.team);
    if (options_.sweep) join_sweeps();
    place_values(plan_, slices_, options_);
    return std::move(plan_);
  }

 private:
  std::vector<TensorDesc> descs(const std::vector<ValueId>& ids) const {
    std::vector<TensorDesc> result;
    for (ValueId id : ids) result.push_back(plan_.values.empty() ? tape_.desc(id) : plan_.value(id).desc);
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
    const std::string name = plan_.value(weight).name + ".pack";
    plan_.values.push_back(
        {name + "(" + form + ")", TensorDesc(Shape::vector(request.bytes), DType::u8), ValueKind::temporary, false});
    slices_.grow(plan_.values.size());
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
    node.bytes = plan_.value(weight).desc.bytes() + request.bytes;
    plan_.nodes.push_back(std::move(node));
    return packs_[key] = id;
  }

  /// In a tape without updates, casts and packs of states need to run only when the states changed.
  void hoist_refresh() {
    const bool updates = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.updated().empty(); });
    if (updates) return;
    ByValue<bool> constant(plan_.values.size());
    for (ValueId id : ids_of(plan_.values)) constant[id] = plan_.value(id).kind == ValueKind::state;
    for (PlannedNode& node : plan_.nodes) {
      const bool kind = node.op.kind == OpKind::pack || node.op.kind == OpKind::cast;
      node.refresh = kind && constant[node.in[0]];
      if (node.refresh) constant[node.out[0]] = true;
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

  Tape tape_;
  const KernelList& kernels_;
  const PlanOptions& options_;
  Plan plan_;
  std::vector<Node> nodes_;
  ByValue<SliceOf> slices_;
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
  for (ValueId id : ids_of(values))
    if (value(id).name == name) return id;
  fail_usage("no value is named \"" + name + "\"");
}

Problem Plan::problem_of(const PlannedNode& node) const {
  Problem problem{node.op, {}, {}, device, threads};
  for (ValueId id : node.in) problem.in.push_back(value(id).desc);
  for (ValueId id : node.out) problem.out.push_back(value(id).desc);
  if (node.part.count > 0) take_part(problem, node.part);
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
