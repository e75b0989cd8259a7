// The network that a bench's flags ask for.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "bench/arguments.h"
#include "models/program.h"

namespace convoy::bench {

/// --model, --size, --batch, --batch-norm.
std::vector<Arguments::Flag> network_flags();
/// Samples, 1 to 2^20.
int64_t wanted_batch(const Arguments& flags);
/// Throws Error(usage) for unknown networks and sizes that no bench can count.
using Network = std::variant<CosmoflowOptions, ClimateOptions>;
Network wanted_network(const Arguments& flags);

}  // namespace convoy::bench
