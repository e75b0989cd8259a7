// Runs a plan: walks the nodes, nothing else. Tapes of one program share the StateStore and the arena.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "core/state_store.h"
#include "core/sweep.h"

namespace convoy {

/// One node's share of the runs so far.
struct NodeTime {
  static constexpr int64_t kept = 25;
  double seconds = 0;
  int64_t runs = 0;
  std::array<float, kept> ring{};  ///< seconds of run r at r % kept
  void add(double duration) {
    seconds += duration;
    ring[static_cast<size_t>(runs++ % kept)] = float(duration);
  }
  /// Of the last runs, in seconds, in no order.
  std::vector<double> latest() const { return {ring.begin(), ring.begin() + std::min(runs, kept)}; }
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
  /// On a device: `arena` and `states` are its memory, `store` holds the same states on the host. Inputs and kept
  /// values live on the host between runs (but for large ones, which stay until they are asked for), and so do states
  /// in f64: what the host tells a step and what steps count.
  /// All else stays on the device (Program::to_device, to_host). The first run queues node after node; later ones
  /// replay its recording.
  Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, Device& device, const StateStore& states);

  /// Runs the nodes that depend on states alone; call after the states changed and before the next run. A plan without
  /// such nodes needs no call.
  void refresh();
  /// With a team: what it shares must be there, on every member, before the first run.
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
  void set_eager(bool eager) { eager_ = eager; }

  /// An input to fill, or a kept value to read after a run: ask anew after each, and before another executor of the
  /// same arena runs.
  const Tensor& tensor(const std::string& name) const { return tensor(plan_.find(name)); }
  const Tensor& tensor(ValueId id) const;
  const Plan& plan() const { return plan_; }

  const std::vector<NodeTime>& times() const { return times_; }
  void reset_times();
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
  SharedWindow window() const;
  /// The ranks that the plan's team is made of; they run together. Needed where the plan shares memory.
  void set_team(Communicator* team) { team_ = team; }
  /// Starts collecting one event per node execution.
  void start_trace() { tracing_ = true; }
  const std::vector<TraceEvent>& trace() const { return trace_; }

 private:
  using Clock = std::chrono::steady_clock;
  void bind(const StateStore& store);
  void run_nodes(size_t begin, size_t end);
  void place_inputs();
  void queue_nodes(size_t begin, size_t end, bool marks);
  /// An all-reduce of a device's values.
  struct Exchange {
    AllReduceAttrs attrs;
    Tensor device, host;             ///< the host's is made when values are fetched first
    std::unique_ptr<Fence> arrived;  ///< on the host
    int64_t peer_sum = -1;           ///< its number, where devices read each other
  };
  /// Nodes that a device gets in one go: behind the end of an exchange, or up to the beginning of one.
  struct Stretch {
    size_t begin = 0, end = 0;
    Exchange *awaits = nullptr, *starts = nullptr;
    std::unique_ptr<Recording> recording;
  };
  void cut_stretches();
  void go_on(bool to_the_end);
  void queue_stretch(Stretch& stretch);
  void receive(Exchange& exchange);
  void queue_offered();
  /// Values of the host that belong to values of the device.
  struct Mirror {
    size_t value;
    Tensor host;
    std::shared_ptr<Buffer> staging;  ///< on the device, of inputs
    /// Of control states, whose memory copies would wait for: what travels up and down in its place.
    std::shared_ptr<Buffer> locked;
    bool up, down;
    bool late = false;            ///< comes down when it is asked for
    mutable bool behind = false;  ///< has not come down since the last run
    void* traveller() const { return locked ? locked->data() : host.bytes(); }
  };
  Tensor on_host(const Tensor& t);
  KernelArgs args_of(size_t node) const;
  void run_together();
  void note_times(double start_us, double duration_us);
  Plan plan_;
  std::shared_ptr<Buffer> arena_, shared_;
  Device* device_ = nullptr;
  std::vector<Mirror> mirrors_;
  std::vector<int> mirror_of_;  ///< by value, -1 for none
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<Stretch> stretches_;
  size_t next_stretch_ = 0;
  std::vector<Exchange*> fetched_;  ///< on their way to the host, or there; not yet told to the other ranks
  std::unique_ptr<PeerSums> peers_;
  std::vector<size_t> offered_;  ///< not yet queued
  bool eager_ = false, warm_ = false, staged_ = false, timed_ = false;
  Clock::time_point started_;
  std::vector<Tensor> tensors_;
  struct Bound {
    std::vector<Tensor> in, out;
    std::vector<std::byte*> packed;
    std::byte* workspace;
  };
  std::vector<Bound> bound_;
  std::vector<size_t> turn_;  ///< nodes that run, or ran, as one
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
