// Accelerators by name.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "core/kernel.h"

namespace convoy {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;
  bool numbered = false;  ///< by its name: else ranks of a node take one each
};
/// What "cpu", "cuda" or "cuda:1" asks for. Throws Error(usage) for anything else.
DeviceChoice parse_device(const std::string& text);

/// Opens a CUDA device and makes it the one that all CUDA kernels of this process run on: ahead of planning, since what
/// they support depends on it. Throws Error(usage) where the build has no CUDA or there is no driver, no such device,
/// or one that this build has no code for.
std::shared_ptr<Device> open_cuda_device(int ordinal);
/// How many there are; 0 without CUDA or a driver.
int cuda_device_count();
/// What failed, and on which rank, where Device::peer_sums of a CUDA device gave null last; else empty. The same on all
/// ranks.
const std::string& why_no_peer_sums();

}  // namespace convoy
