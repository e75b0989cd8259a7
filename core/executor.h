// Runs a plan: walks the nodes, nothing else. Tapes of one program share the StateStore and the arena.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/plan.h"
#include "core/state_store.h"
#include "core/sweep.h"

namespace convoy {

/// One node's share of the runs so far.
struct NodeTime {
  double seconds = 0;
  int64_t runs = 0;
};

/// One node execution, for the Chrome trace. Microseconds since the trace started.
struct TraceEvent {
  int node = 0;
  double start_us = 0, duration_us = 0;
};

class Executor {
 public:
  /// `arena` must hold at least plan.arena_bytes; several executors may share one, taking turns. `shared`: the same for
  /// plan.shared_bytes in memory that all members of the team see.
  Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared = nullptr);

  /// Runs the nodes that depend on states alone; call after the states changed and before the next run. A plan without
  /// such nodes needs no call.
  void refresh();
  /// With a team: what it shares must be there, on every member, before the first run.
  void run();
  /// Runs again, on this rank alone, stopping at the first node that writes a value that is not finite; returns its
  /// name, or an empty string. States are left as they were.
  std::string find_non_finite();

  /// An input to fill, or a kept value to read after a run.
  const Tensor& tensor(const std::string& name) const { return tensor(plan_.find(name)); }
  const Tensor& tensor(ValueId id) const;
  const Plan& plan() const { return plan_; }

  const std::vector<NodeTime>& times() const { return times_; }
  void reset_times();
  /// The ranks that all-reduces of this plan talk to, by AllReduceAttrs::group; the executor drives their messages on
  /// between nodes. None: every mean is the value itself.
  void set_groups(std::vector<Communicator*> groups) { groups_ = std::move(groups); }
  /// This rank's part of the team's memory, where its buckets are.
  SharedWindow window() const;
  /// The ranks that the plan's team is made of; they run together. Needed where the plan shares memory.
  void set_team(Communicator* team) { team_ = team; }
  /// Starts collecting one event per node execution.
  void start_trace() { tracing_ = true; }
  const std::vector<TraceEvent>& trace() const { return trace_; }

 private:
  using Clock = std::chrono::steady_clock;
  void run_nodes(size_t begin, size_t end);
  KernelArgs args_of(size_t node) const;
  void run_together();
  void note_times(Clock::time_point before, Clock::time_point after);
  Plan plan_;
  std::shared_ptr<Buffer> arena_, shared_;
  std::vector<Tensor> tensors_;
  struct Bound {
    std::vector<Tensor> in, out;
    std::vector<std::byte*> packed;
    std::byte* workspace;
  };
  std::vector<Bound> bound_;
  std::vector<size_t> turn_;  ///< the nodes of one turn of run_nodes
  std::vector<Swept> swept_;  ///< the same, where they run together
  std::vector<int64_t> swept_elements_;
  std::vector<NodeTime> times_;
  std::vector<TraceEvent> trace_;
  std::vector<Communicator*> groups_;
  Communicator* team_ = nullptr;
  size_t refresh_nodes_ = 0;
  bool tracing_ = false;
};

}  // namespace convoy
