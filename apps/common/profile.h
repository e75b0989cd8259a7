// What the executors measured, as tables, JSON and a Chrome trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/executor.h"
#include "dist/collectives.h"

namespace convoy::apps {

/// forward, backward, update, pack or communication: by what the node does and where it stands relative to the loss.
std::string phase_of(const Plan& plan, size_t node);

/// Per-node table: name, kernel, milliseconds per run, share, GFLOP/s, GB/s; longest first.
std::string profile_table(const Executor& executor);
/// Seconds per run and phase.
nlohmann::json phase_seconds(const Executor& executor);
/// Kernel, detail and choice of every node.
nlohmann::json kernel_table(const Plan& plan);
/// Events of one rank for chrome://tracing and Perfetto: a process per rank, its nodes in row 0, its messages in a row
/// per all-reduce. `clock_offset` seconds are taken off to match rank 0's clock.
nlohmann::json trace_events(const Executor& executor, const std::vector<MessageEvent>& messages, int rank,
                            double clock_offset);
/// {"traceEvents": [...]} of all ranks' events, each a JSON array as text; time starts at the earliest.
std::string chrome_trace(const std::vector<std::string>& ranks);
/// Arena, states, naive sum and lower bound in MiB.
std::string memory_text(const Plan& step, const Plan& evaluate, int64_t state_bytes);

}  // namespace convoy::apps
