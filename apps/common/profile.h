// What the executors measured, as tables, JSON and a Chrome trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/executor.h"

namespace convoy::apps {

/// forward, backward, update or pack: by what the node does and where it stands relative to the loss.
std::string phase_of(const Plan& plan, size_t node);

/// Per-node table: name, kernel, milliseconds per run, share, GFLOP/s, GB/s; longest first.
std::string profile_table(const Executor& executor);
/// Seconds per run and phase.
nlohmann::json phase_seconds(const Executor& executor);
/// Kernel, detail and choice of every node.
nlohmann::json kernel_table(const Plan& plan);
/// {"traceEvents": [...]} for chrome://tracing and Perfetto.
std::string chrome_trace(const Executor& executor);
/// Arena, states, naive sum and lower bound in MiB.
std::string memory_text(const Plan& step, const Plan& evaluate, int64_t state_bytes);

}  // namespace convoy::apps
