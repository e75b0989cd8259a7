// Communicators that need no MPI.
#pragma once

#include <memory>
#include <vector>

#include "core/communicator.h"

namespace convoy {

/// A single rank: every operation is the identity.
std::unique_ptr<Communicator> make_self_communicator();

/// `size` ranks inside one process, to be used from one thread each (tests, debugging). Collective calls must be made
/// by every rank in the same order; sizes must agree, else Error(runtime) on every rank.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size);

}  // namespace convoy
