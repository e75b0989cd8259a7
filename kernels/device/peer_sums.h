// Sums over CUDA devices of one node.
#pragma once

#include "core/device.h"

namespace convoy::cuda {

/// Device::peer_sums.
std::unique_ptr<PeerSums> make_peer_sums(Communicator& node, std::shared_ptr<Buffer> arena, std::vector<PeerSum> sums,
                                         std::shared_ptr<Buffer> flags);

}  // namespace convoy::cuda
