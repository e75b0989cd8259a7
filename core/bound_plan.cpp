#include "core/bound_plan.h"

namespace convoy {
namespace {

/// This rank's elements of what an update reads and writes; the rest of its operands as they are.
Tensor share_of(const Tensor& t, int64_t elements, const Part& part) {
  if (part.count == 0 || t.shape().elements() != elements) return t;
  return Tensor(TensorDesc(Shape::vector(part.count), t.dtype()), t.bytes() + part.begin * size_of(t.dtype()));
}

}  // namespace

BoundPlan::BoundPlan(Plan plan, const StateStore& states, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared)
    : plan_(std::move(plan)), arena_(std::move(arena)), shared_(std::move(shared)) {
  if (arena_->bytes() < plan_.arena_bytes)
    fail_runtime("the arena has " + std::to_string(arena_->bytes()) + " bytes, the plan needs " +
                 std::to_string(plan_.arena_bytes));
  if (plan_.shared_bytes > 0 && (!shared_ || shared_->bytes() < plan_.shared_bytes))
    fail_runtime("the plan needs " + std::to_string(plan_.shared_bytes) + " bytes of memory shared with its team");
  for (ValueId id : ids_of(plan_.values)) {
    const Value& value = plan_.value(id);
    if (value.kind == ValueKind::state)
      tensors_.push_back(states.contains(value.name) ? states.get(value.name) : Tensor());
    else if (plan_.offset[id] >= 0)
      tensors_.emplace_back(value.desc, arena_, plan_.offset[id]);
    else if (!plan_.shared_offset.empty() && plan_.shared_offset[id] >= 0)
      tensors_.emplace_back(value.desc, shared_, plan_.shared_offset[id]);
    else
      tensors_.emplace_back();
  }
  for (const PlannedNode& node : plan_.nodes) {
    Operands o;
    const int64_t elements = node.part.count > 0 ? stored(node.in[0]).shape().elements() : 0;
    for (ValueId id : node.in) o.in.push_back(share_of(stored(id), elements, node.part));
    for (ValueId id : node.out) o.out.push_back(share_of(stored(id), elements, node.part));
    for (ValueId id : node.packed) o.packed.push_back(stored(id).bytes());
    o.workspace = arena_->data() + node.workspace_offset;
    operands_.push_back(std::move(o));
    refresh_nodes_ += node.refresh;
  }
}

const Tensor& BoundPlan::stored(ValueId id) const {
  const Tensor& t = tensor(id);
  if (t.empty()) fail_usage("value " + plan_.value(id).name + " has no storage in this plan");
  return t;
}

SharedWindow BoundPlan::window() const {
  if (plan_.window_bytes == 0) return {};
  return {shared_->data() + plan_.window_begin, plan_.window_bytes, plan_.window_bytes};
}

}  // namespace convoy
