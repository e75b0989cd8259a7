#pragma once

#include <span>
#include <vector>

#include "core/attrs.h"
#include "core/communicator.h"
#include "core/tensor.h"

namespace convoy {

/// First element of each part of a bucket, then the length of the whole; parts start on cache lines.
std::vector<int64_t> bucket_offsets(std::span<const TensorDesc> parts);

/// What an all-reduce of these attributes asks a communicator for, over values in the memory of the host.
AllReduce all_reduce(const Tensor& values, const AllReduceAttrs& attrs);

}  // namespace convoy
