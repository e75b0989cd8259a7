// What the executors measured, as tables, JSON and a Chrome trace.
#pragma once

#include <nlohmann/json.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/executor.h"
#include "dist/collectives.h"
#include "kernels/roofline/roofs.h"
#include "models/program.h"

namespace convoy::apps {

/// Parts of a step, in the order of its table: of its nodes, and what goes on between these.
enum class Phase : uint8_t { forward, backward, communication, pack, update, other };
std::string_view name_of(Phase phase);
/// By what the node does and where it stands relative to the loss.
Phase phase_of(const Plan& plan, size_t node);

/// "62.3%": the time under a roof over the time taken, both in seconds; "-" for what lies under none.
std::string share_of_roof(double bound, double seconds);
/// Per-node table: name, kernel, milliseconds per run, share of the run, share of the roof that bounds it, GFLOP/s,
/// GB/s; longest first.
std::string profile_table(const Executor& executor, const Roofs& roofs);
/// A line for the ceilings as they were measured.
std::string ceilings_text(std::span<const Ceiling> ceilings);
/// The same nodes as JSON lines that bench_report reads: the machine, its ceilings, a row per node with the times of
/// its last runs.
std::string profile_rows(const Executor& executor, std::span<const Ceiling> ceilings);
/// Seconds per run and phase, by its name.
nlohmann::json phase_seconds(const Executor& executor);
/// Kernel, detail and choice of every node.
nlohmann::json kernel_table(const Plan& plan);
/// What a trainer does between nodes: reading input, validation, checkpoints. Microseconds of the steady clock.
struct HostEvent {
  std::string name;
  double start_us = 0, duration_us = 0;
};

/// What one rank did while it was traced.
struct RankTrace {
  int rank = 0;
  double clock_offset = 0;                 ///< seconds ahead of rank 0's clock
  std::vector<const Executor*> executors;  ///< of all passes of a step
  const std::vector<MessageEvent>* messages = nullptr;
  const std::vector<HostEvent>* host = nullptr;
};

/// Events of one rank for chrome://tracing and Perfetto: a process per rank, the nodes of all passes and what the
/// trainer does between them in row 0, its messages in a row per all-reduce; on rank 0's clock. A JSON
/// object per line.
std::string trace_events(const RankTrace& trace);
/// {"traceEvents": [...]} of all ranks' events, a text of trace_events each; time starts at the earliest.
std::string chrome_trace(const std::vector<std::string>& ranks);
/// Arena, states, naive sum and lower bound in MiB, and a rank's share of its team's memory.
std::string memory_text(const ProgramPlans& plans, int team);

}  // namespace convoy::apps
