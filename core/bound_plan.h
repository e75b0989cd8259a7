// A plan whose values have their memory: what every node's kernel gets.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/plan.h"
#include "core/state_store.h"

namespace convoy {

class BoundPlan {
 public:
  /// States come from `states`, the other values lie in `arena`, packs and buckets of a team in `shared`. Throws
  /// Error(runtime) where one of them is smaller than the plan says.
  BoundPlan(Plan plan, const StateStore& states, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared);

  const Plan& plan() const { return plan_; }
  const std::shared_ptr<Buffer>& arena() const { return arena_; }
  /// Nodes that depend on states alone; they stand first.
  size_t refresh_nodes() const { return refresh_nodes_; }
  /// Empty for values without memory of their own.
  const Tensor& tensor(ValueId id) const { return tensors_.at(static_cast<size_t>(id)); }
  /// The same; throws Error(usage) for those.
  const Tensor& stored(ValueId id) const;
  KernelArgs args(size_t node, std::span<Communicator* const> groups = {}) const {
    const Operands& o = operands_[node];
    return {o.in, o.out, o.packed, o.workspace, groups};
  }
  /// The node behind this one and those that run together with it.
  size_t next_turn(size_t node) const { return node + static_cast<size_t>(plan_.nodes[node].sweep_size); }
  /// This rank's part of the team's memory, where its buckets are.
  SharedWindow window() const;

 private:
  struct Operands {
    std::vector<Tensor> in, out;
    std::vector<std::byte*> packed;
    std::byte* workspace;
  };
  Plan plan_;
  std::shared_ptr<Buffer> arena_, shared_;
  std::vector<Tensor> tensors_;  ///< by value
  std::vector<Operands> operands_;
  size_t refresh_nodes_ = 0;
};

}  // namespace convoy
