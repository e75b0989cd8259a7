// Problems drawn at random: what no list of nasty ones has thought of.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernel.h"

namespace convoy::testing {

/// So many problems of convolutions (all passes, fused or not), pools, dense layers and operations per element, small
/// enough for the reference: any type, rank, batch, group, stride, dilation, padding, tails of channels and slices.
/// Equal for equal seeds on every machine.
std::vector<Problem> random_problems(uint64_t seed, int64_t count);

}  // namespace convoy::testing
