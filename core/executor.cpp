#include "core/executor.h"

#include "core/all_finite.h"
#include "core/flush_subnormals.h"
#include "core/node_failure.h"

namespace convoy {
namespace {

Plan of_a_device(Plan plan) {
  if (plan.shared_bytes + plan.shared_state_bytes > 0) fail_usage("a device has no memory to share with a team");
  return plan;
}

}  // namespace

Executor::Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared)
    : bound_(std::move(plan), store, std::move(arena), std::move(shared)), times_(bound_.plan().nodes.size()) {}

Executor::Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, Device& device,
                   const StateStore& states)
    : bound_(of_a_device(std::move(plan)), states, std::move(arena), nullptr),
      times_(bound_.plan().nodes.size()),
      device_(std::make_unique<DeviceRun>(bound_, times_, store, device)) {}

const Tensor& Executor::tensor(ValueId id) const {
  if (const Tensor* host = device_ ? device_->on_host(id) : nullptr) return *host;
  const Tensor& stored = bound_.stored(id);
  const Value& value = plan().value(id);
  if (value.kind == ValueKind::temporary && !value.keep && (plan().reuses_memory || device_))
    fail_usage("value " + value.name + ": expected an input, a state or a kept value (Tape::keep" +
               (device_ ? "" : ", or PlanOptions::reuse_memory, in_place and slice_aliasing = false") +
               "), found one whose memory others take");
  return stored;
}

Executor::~Executor() {
  // Another executor may come to lie where this one was.
  if (bound_.arena()->held_by(this)) bound_.arena()->hold(nullptr);
}

void Executor::set_groups(std::vector<Communicator*> groups) {
  for (const PlannedNode& node : plan().nodes) {
    const auto* a = std::get_if<AllReduceAttrs>(&node.op.attrs);
    if (!a || groups.empty()) continue;
    const auto group = static_cast<size_t>(a->group);
    const int64_t found = group < groups.size() && groups[group] ? groups[group]->size() : 0;
    if (found != a->ranks)
      fail_usage(node.name + ": expected a group of " + std::to_string(a->ranks) + " ranks, found " +
                 (found ? std::to_string(found) : "none"));
  }
  groups_ = std::move(groups);
  if (device_) device_->set_groups(groups_);
}

bool Executor::meet_peers(Communicator& world, const std::function<std::shared_ptr<Buffer>(int64_t bytes)>& flags) {
  return device_ && device_->meet_peers(world, flags);
}

void Executor::leave_peers() {
  if (device_) device_->leave_peers();
}

void Executor::expect_fresh() {
  if (bound_.refresh_nodes() > 0 && !bound_.arena()->held_by(this))
    fail_usage("run: expected refresh() ahead of it, found " + plan().nodes[0].name +
               " not made yet, or overwritten by another executor of the arena");
  bound_.arena()->hold(this);
}

void Executor::refresh() {
  bound_.arena()->hold(this);
  if (device_) return device_->refresh();
  const FlushSubnormals flush(plan().threads);
  run_nodes(0, bound_.refresh_nodes());
}

void Executor::run() {
  if (device_) {
    stage_inputs(), start(), finish();
    return;
  }
  expect_fresh();
  const FlushSubnormals flush(plan().threads);
  if (plan().shared_bytes + plan().shared_state_bytes == 0)
    return run_nodes(bound_.refresh_nodes(), plan().nodes.size());
  if (!team_) fail_usage("a plan that shares memory runs with its team: set_team");
  run_nodes(0, plan().team_nodes);
  team_->barrier();  // everybody's packs are there
  run_nodes(plan().team_nodes, plan().first_update);
  if (plan().shared_state_bytes > 0) team_->barrier();  // nobody reads the parameters of this step any more
  run_nodes(plan().first_update, plan().nodes.size());
  team_->barrier();  // everybody's parameters are there, and nobody reads packs any more
}

void Executor::stage_inputs() {
  if (device_) device_->stage_inputs();
}

void Executor::start() {
  if (!device_) return run();
  expect_fresh();
  device_->start();
}

void Executor::inputs_free() {
  if (device_) device_->inputs_free();
}

void Executor::finish() {
  if (device_) device_->finish();
}

void Executor::run_nodes(size_t begin, size_t end) {
  using Clock = NodeTimes::Clock;
  const std::vector<PlannedNode>& nodes = plan().nodes;
  Clock::time_point before = Clock::now();
  for (size_t i = begin; i < end;) {
    const size_t next = bound_.next_turn(i);
    turn_.clear();
    for (; i < next; ++i)
      if (const int owner = nodes[i].owner; owner < 0 || owner == team_->rank()) turn_.push_back(i);
    if (turn_.empty()) continue;
    try {
      if (turn_.size() == 1)
        nodes[turn_[0]].prepared->run(bound_.args(turn_[0], groups_));
      else
        run_together();
    } catch (...) {
      rethrow_of(nodes[turn_[0]]);
    }
    const Clock::time_point after = Clock::now();
    times_.note(plan(), turn_, before, after - before);
    if (after_node_) after_node_(turn_[0]);
    before = after;
    if (!groups_.empty()) {
      groups_[0]->progress();
      before = Clock::now();
    }
  }
}

void Executor::run_together() {
  swept_.clear();
  for (size_t i : turn_)
    swept_.push_back({static_cast<const Sweep*>(plan().nodes[i].prepared.get()), bound_.args(i, groups_)});
  run_sweeps(swept_, plan().threads, swept_elements_);
}

std::string Executor::find_non_finite() {
  bound_.arena()->hold(this);
  const FlushSubnormals flush(plan().threads);  // as in the step that is looked into
  if (device_) device_->stage_inputs(), device_->place_inputs();
  for (size_t i = 0; i < plan().nodes.size(); ++i) {
    const PlannedNode& node = plan().nodes[i];
    if (op_def(node.op.kind).updated_inputs > 0 || node.owner >= 0) continue;  // shared packs are what they were
    const KernelArgs args = bound_.args(i);
    for (size_t k = 0; k < node.in.size(); ++k) {
      const Value& value = plan().value(node.in[k]);
      if (value.kind != ValueKind::temporary && !all_finite(on_host(args.in[k]))) return value.name;
    }
    node.prepared->run(args);
    for (const Tensor& out : args.out)
      if (!all_finite(on_host(out))) return node.name;
  }
  return {};
}

}  // namespace convoy
