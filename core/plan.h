// From a tape to something that can run: kernels chosen, weights packed, workspaces booked, every value placed.
#pragma once

#include <memory>

#include "core/by_value.h"
#include "core/select.h"
#include "core/tape.h"

namespace convoy {

/// Every pass can be switched off; results do not change by a bit (fusing and precision happen before planning), but
/// where slice aliasing moves a convolution to a kernel that sums in another order, and where a data gradient on top of
/// another value runs as convolution and addition: without fused kernels, or on a kernel (of an override or a table)
/// that adds to nothing. Without fused kernels weight gradients behind a pool are dense sums, too, and convolutions may
/// find another kernel.
struct PlanOptions {
  bool drop_dead = true;
  bool fused_kernels = true;  ///< off: every fused op runs as its plain definition
  bool merge_equal = true;
  bool slice_aliasing = true;
  bool in_place = true;
  bool recompute = false;    ///< make outputs of cheap ops again in the backward pass: less memory, more time
  bool sweep = true;         ///< neighbouring updates go over memory together; on devices, small nodes are one launch
  bool reuse_memory = true;  ///< off, as are in_place and slice_aliasing: every value can be inspected after the run
  int threads = 1;
  /// Ranks that share memory: of a training tape they hold packed weights, parameters and moments once, and divide
  /// packing and updating among themselves.
  int team = 1;
  int place = 0;  ///< this rank's among them
  DeviceKind device = DeviceKind::cpu;
  Selection selection;
};

/// All passes off.
PlanOptions plain_options(const PlanOptions& base);

/// The elements of an update that this rank makes; count 0: all.
struct Part {
  int64_t begin = 0, count = 0;
};

struct PlannedNode {
  std::string name;
  Op op;
  std::string kernel;  ///< name in the kernel list
  std::string detail;  ///< what the kernel says it runs
  std::string why;     ///< override, tuned, preferred, first; of weights' packs: needed by NODE
  std::shared_ptr<const Prepared> prepared;
  std::vector<ValueId> in;
  std::vector<ValueId> out;     ///< outputs, then updated states
  std::vector<ValueId> packed;  ///< one per PackRequest of the kernel
  int64_t workspace_offset = 0;
  int64_t workspace_bytes = 0;
  int64_t flops = 0;
  int64_t bytes = 0;     ///< operands once; of buckets and messages, what is read and written
  bool refresh = false;  ///< depends on states alone: runs once after they change, not once per run
  int owner = -1;        ///< place in the team of the one rank that runs it; -1: every rank
  Part part;             ///< of an update that the team divides by element
  /// Nodes that run together, on the first of them, and 0 on the others (core/sweep.h, Joinable).
  int sweep_size = 1;
};

struct Plan {
  std::vector<Value> values;       ///< the tape's, then the packed weights
  std::vector<PlannedNode> nodes;  ///< refresh nodes, or what the team divides, first
  size_t team_nodes = 0;           ///< packs of weights, and casts that they need, ahead of everything else
  size_t first_update = 0;         ///< behind it: what changes states that the team holds once; nobody reads them there
  ByValue<int64_t> offset;         ///< byte offset of each value in the arena, -1 for all others
  /// The memory of the team: packed weights, then a window per member for the buckets that it averages.
  ByValue<int64_t> shared_offset;  ///< -1 for values that are elsewhere
  int64_t shared_bytes = 0;
  int64_t window_begin = 0, window_bytes = 0;  ///< this rank's; windows of others lie as many bytes apart
  /// States that the team holds once, with byte offsets in memory that outlives the plan.
  std::vector<std::pair<ValueId, int64_t>> shared_states;
  int64_t shared_state_bytes = 0;
  DeviceKind device = DeviceKind::cpu;
  int threads = 1;  ///< for nodes that run together
  /// Values that are not kept may be gone behind a run: others took their memory.
  bool reuses_memory = false;
  int64_t arena_bytes = 0;
  int64_t naive_bytes = 0;      ///< one buffer per value and workspace
  int64_t lower_bound = 0;      ///< most bytes alive at once
  int64_t workspace_bytes = 0;  ///< largest workspace

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  ValueId find(const std::string& name) const;  ///< throws Error(usage) for unknown names
  /// What the node's kernel was asked for.
  Problem problem_of(const PlannedNode& node) const;
  /// Names of the nodes that run the plain reference kernel.
  std::vector<std::string> reference_nodes() const;
};

/// Chooses a kernel for every node and lays all values, packed weights and workspaces into one arena; fused nodes that
/// no kernel runs are lowered first. The kernels must outlive the plan. Throws Error(usage) where an override names no
/// kernel or, by the full name of a node, one that refuses it, and where no kernel runs a node.
Plan make_plan(const Tape& tape, const KernelList& kernels, const PlanOptions& options);

}  // namespace convoy
