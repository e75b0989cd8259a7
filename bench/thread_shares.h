// How evenly the threads of a team would share the work of a step, on a machine with any number of cores: their shares
// run one after the other on one core, each with all caches and all of the memory's bandwidth to itself. What a team
// waits for beside its slowest thread (barriers, bandwidth, caches in common) is left out.
#pragma once

#include <chrono>
#include <vector>

#include "core/executor.h"
#include "core/team_stand_in.h"

namespace convoy::bench {

/// Seconds of a node, or of several.
struct ThreadShare {
  double even = 0;     ///< a thread's share of all of its regions' work, and what one thread does alone
  double slowest = 0;  ///< that of each region's slowest thread, and what one thread does alone
  int64_t regions = 0;
};

/// Stands in for the team of an executor's kernels while it lives, and times every thread's share of every region: the
/// shortest of all runs.
class ThreadShares final : public TeamStandIn {
 public:
  explicit ThreadShares(Executor& executor);
  ~ThreadShares() override;
  ThreadShares(const ThreadShares&) = delete;

  /// Runs the executor once; every run must take the same regions. The first node's have one more, in which the threads
  /// are told what subnormal numbers are worth.
  void run_step();
  /// Of every node of the plan; nodes that run together count for the first.
  std::vector<ThreadShare> of_nodes() const;

  void run(int threads, ThreadBody body) override;
  void next_unit() override;
  void no_unit() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Region {
    std::vector<double> threads;  ///< what each does beside units
    std::vector<double> units;    ///< in the order in which they are handed out
  };
  struct Node {
    bool ran = false;
    double alone = 0;  ///< outside of regions
    std::vector<Region> regions;
  };
  void end_node(size_t node);

  Executor& executor_;
  std::vector<Node> best_;  ///< of all runs
  Node node_;               ///< that runs
  Clock::time_point node_start_, unit_start_;
  double in_regions_ = 0, in_units_ = 0;
  bool in_region_ = false, in_unit_ = false;
};

}  // namespace convoy::bench
