// Memory that several processes of a node see, without the limit that /dev/shm has in containers.
#pragma once

#include <memory>

#include "core/communicator.h"
#include "core/tensor.h"

namespace convoy {

/// The same zeroed bytes for all members; every member calls it. Null, for all of them, where one cannot see the memory
/// of the first (another container) or the system does not provide so much.
std::shared_ptr<Buffer> share_buffer(Communicator& members, int64_t bytes);

}  // namespace convoy
