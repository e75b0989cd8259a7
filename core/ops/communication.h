#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"

namespace convoy {

/// First element of each part of a bucket, then the length of the whole; parts start on cache lines.
std::vector<int64_t> bucket_offsets(std::span<const TensorDesc> parts);

}  // namespace convoy
