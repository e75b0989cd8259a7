#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/attrs.h"
#include "core/communicator.h"
#include "core/tensor.h"

namespace convoy {

/// First element of each part of a bucket, then the length of the whole; parts start on cache lines.
std::vector<int64_t> bucket_offsets(std::span<const TensorDesc> parts);

/// What all-reduces are of. Each kind has numbers of its own, so that an id tells what travels.
enum class Averaged : uint8_t { bucket, loss, stop, statistics };
/// AllReduceAttrs::id of the `number`-th of its kind.
int64_t all_reduce_id(Averaged what, int64_t number = 0);
/// "bucket0", "loss", "stop", "batch-norm statistics 3": for messages and traces.
std::string all_reduce_name(int64_t id);

/// What an all-reduce of these attributes asks a communicator for, over values in the memory of the host.
AllReduce all_reduce(const Tensor& values, const AllReduceAttrs& attrs);

}  // namespace convoy
