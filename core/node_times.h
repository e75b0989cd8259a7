// Where the time of a plan's runs went, node by node.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "core/plan.h"

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

/// One node execution, for the Chrome trace. Microseconds of std::chrono::steady_clock.
struct TraceEvent {
  int node = 0;
  double start_us = 0, duration_us = 0;
};

class NodeTimes {
 public:
  using Clock = std::chrono::steady_clock;
  explicit NodeTimes(size_t nodes) : times_(nodes) {}

  /// `nodes` ran together; they share the time by their bytes.
  void note(const Plan& plan, std::span<const size_t> nodes, Clock::time_point start, Clock::duration duration);
  void reset() { times_.assign(times_.size(), {}); }
  /// Starts collecting one event per node execution.
  void start_trace() { tracing_ = true; }

  const std::vector<NodeTime>& times() const { return times_; }
  const std::vector<TraceEvent>& trace() const { return trace_; }

 private:
  std::vector<NodeTime> times_;
  std::vector<TraceEvent> trace_;
  bool tracing_ = false;
};

}  // namespace convoy
