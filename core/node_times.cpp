#include "core/node_times.h"

namespace convoy {

void NodeTimes::note(const Plan& plan, std::span<const size_t> nodes, Clock::time_point start,
                     Clock::duration duration) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const double together = Microseconds(duration).count();
  double at = Microseconds(start.time_since_epoch()).count(), bytes = 0;
  for (size_t i : nodes) bytes += double(plan.nodes[i].bytes);
  for (size_t i : nodes) {
    const double alone = together * (nodes.size() == 1 ? 1 : double(plan.nodes[i].bytes) / bytes);
    times_[i].add(1e-6 * alone);
    if (tracing_) trace_.push_back({static_cast<int>(i), at, alone});
    at += alone;
  }
}

}  // namespace convoy
