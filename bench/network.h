// The network that a bench's flags ask for.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "bench/arguments.h"
#include "models/program.h"

namespace convoy::bench {

/// --model, --size, --batch, --batch-norm, and a bench's own behind them.
std::vector<Arguments::Flag> with_network_flags(const std::vector<Arguments::Flag>& own);
/// Samples, 1 to 2^20.
int64_t wanted_batch(const Arguments& flags);
/// Throws Error(usage) for unknown networks and sizes that no bench can count.
using Network = std::variant<CosmoflowOptions, ClimateOptions>;
Network wanted_network(const Arguments& flags);

}  // namespace convoy::bench
