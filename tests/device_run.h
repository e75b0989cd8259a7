// Kernels of a device on the tensors of a Run.
#pragma once

#include "core/device.h"
#include "tests/kernel_check.h"

namespace convoy::testing {

/// The kernel of a list that runs a problem on CUDA devices under this name; null: none does.
const Kernel* find_kernel(std::string_view name, const Problem& on_device);
Problem on_cuda(const Problem& p);

/// Copies a run's tensors to the device, each in front of bytes that no kernel may touch, runs the kernel in poisoned
/// workspace and copies outputs back. Fails the test where a kernel wrote behind a tensor, its workspace or a pack.
void execute_on_device(Device& device, const Kernel& kernel, const Problem& p, Run& run);

/// Runs an op's definition in the plainest kernels of the device.
void execute_definition_on_device(Device& device, const Problem& p, Run& run);

}  // namespace convoy::testing
