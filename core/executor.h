// Runs a plan: walks the nodes, nothing else. Tapes of one program share the StateStore and the arena.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/bound_plan.h"
#include "core/device_run.h"
#include "core/node_times.h"
#include "core/sweep.h"

namespace convoy {

class Executor {
 public:
  /// `arena` must hold at least plan.arena_bytes; several executors may share one, taking turns. `shared`: the same for
  /// plan.shared_bytes in memory that all members of the team see.
  Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared = nullptr);
  /// On a device: `arena` and `states` are its memory, `store` holds the same states on the host. Inputs and kept
  /// values live on the host between runs (but for large ones, which stay until they are asked for), and so do states
  /// in f64: what the host tells a step and what steps count.
  /// All else stays on the device (Program::to_device, to_host). The first run queues node after node; later ones
  /// replay its recording.
  Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, Device& device, const StateStore& states);

  Executor(const Executor&) = delete;  // its parts know each other's places
  ~Executor();

  /// Runs the nodes that depend on states alone: ahead of the first run, and again after the states changed or another
  /// executor of the arena ran, which overwrites what they made. A plan without such nodes needs no call.
  void refresh();
  /// With a team: what it shares must be there, on every member, before the first run. Throws Error(usage) where a
  /// refresh is due because of another executor; that states changed it does not see.
  void run();
  /// Runs again, on this rank alone, stopping at the first node that reads an input or state, or writes a value, that
  /// is not finite; returns the name of that input or state, or of the node, or an empty string. States are left as
  /// they were. Fill the inputs again first: runs reuse their memory. No lagged gradients may be under way.
  std::string find_non_finite();

  /// run() in pieces, for a device that works while the host fills the inputs of the next run: stage_inputs copies them
  /// beside the queue, start queues a run on what was staged last, inputs_free waits until inputs may be filled again,
  /// finish until kept values are there (large ones come when they are asked for). Control states (step, loss scale)
  /// are read by start; those that the plan updates are written by finish. With other ranks start goes as far as their
  /// first answer is needed, finish the rest of the way. On the CPU start runs, and the others do nothing.
  void stage_inputs();
  void start();
  void inputs_free();
  void finish();

  /// On a device: every run queues node after node and times them.
  void set_eager(bool eager) {
    if (device_) device_->set_eager(eager);
  }

  /// An input to fill, a state, or a kept value to read after a run: ask anew after each, and before another executor
  /// of the same arena runs. Throws Error(usage) for unknown names and for values that are not kept, unless the plan
  /// was made with PlanOptions::reuse_memory, in_place and slice_aliasing off, on the CPU.
  const Tensor& tensor(const std::string& name) const { return tensor(plan().find(name)); }
  const Tensor& tensor(ValueId id) const;
  const Plan& plan() const { return bound_.plan(); }

  const std::vector<NodeTime>& times() const { return times_.times(); }
  void reset_times() { times_.reset(); }
  /// On the CPU: calls f(node) behind every node, of those that run together with the first.
  void after_nodes(std::function<void(size_t node)> f) { after_node_ = std::move(f); }
  /// The ranks that all-reduces of this plan talk to, by AllReduceAttrs::group; the executor drives their messages on
  /// between nodes. None: every mean is the value itself. Values of a device travel through memory of the host, while
  /// the device goes on. Call it ahead of the first run. Throws Error(usage) where a group that the plan
  /// names is missing or has another number of ranks than its means divide by.
  void set_groups(std::vector<Communicator*> groups);
  /// On a device, behind set_groups, all ranks being on one node: gradients go from device to device from here on,
  /// where each can read the others'. `flags` makes memory that all see. Collective; says whether they do.
  bool meet_peers(Communicator& world, const std::function<std::shared_ptr<Buffer>(int64_t bytes)>& flags);
  /// Collective, ahead of the end: no other rank reads this one's device any more. Later runs go through the host.
  void leave_peers();
  /// This rank's part of the team's memory, where its buckets are.
  SharedWindow window() const { return bound_.window(); }
  /// The ranks that the plan's team is made of; they run together. Needed where the plan shares memory.
  void set_team(Communicator* team) { team_ = team; }
  /// Starts collecting one event per node execution.
  void start_trace() { times_.start_trace(); }
  const std::vector<TraceEvent>& trace() const { return times_.trace(); }

 private:
  void run_nodes(size_t begin, size_t end);
  void run_together();
  void expect_fresh();
  Tensor on_host(const Tensor& t) const { return device_ ? device_->copy_of(t) : t; }

  BoundPlan bound_;
  NodeTimes times_;
  std::unique_ptr<DeviceRun> device_;  ///< none on the CPU
  std::vector<Communicator*> groups_;
  Communicator* team_ = nullptr;
  std::function<void(size_t node)> after_node_;  ///< or none
  // For reuse: nodes run without allocating.
  std::vector<size_t> turn_;  ///< nodes that run, or ran, as one
  std::vector<Swept> swept_;  ///< the same, where they run together
  std::vector<int64_t> swept_elements_;
};

}  // namespace convoy
