// Communicators that need no MPI.
#pragma once

#include <memory>
#include <vector>

#include "dist/collectives.h"

namespace convoy {

/// A single rank: every operation is the identity.
std::unique_ptr<Collectives> make_self_communicator();

/// Ranks inside one process, to be used from one thread each (tests, debugging). `nodes` pretends that ranks run on
/// several nodes: the node of each rank.
std::vector<std::unique_ptr<Collectives>> make_thread_communicators(int size, CommunicationOptions options = {},
                                                                    std::vector<int> nodes = {});

}  // namespace convoy
