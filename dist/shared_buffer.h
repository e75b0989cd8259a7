// Memory that several processes of a node see, where possible without the limit that /dev/shm has in containers.
#pragma once

#include <memory>

#include "core/communicator.h"
#include "core/tensor.h"

namespace convoy {

/// What the others open: a file without a name that the first member's process holds, of any size, or one in /dev/shm,
/// which is small in some containers, but which containers may have in common whose processes do not see each other.
enum class SharedPlace : uint8_t { process, folder };

constexpr int64_t page_bytes = 4096;

/// The same zeroed bytes for all members; every member calls it. Null, for all of them, where one cannot see the memory
/// of the first (another container) or the system does not provide so much. Pages are of the NUMA domain of the member
/// whose part they lie in: parts are equal, up to whole pages, and in rank order.
std::shared_ptr<Buffer> share_buffer(Communicator& members, int64_t bytes, SharedPlace place = SharedPlace::process);

}  // namespace convoy
