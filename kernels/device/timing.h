// What timing on a CUDA device needs.
#pragma once

#include <cstdint>
#include <functional>

#include "core/error.h"

namespace convoy::cuda {

/// An allocation that found no room.
struct NoDeviceMemory : Error {
  using Error::Error;
};

/// Device memory for as long as it lives.
class DeviceBytes {
 public:
  /// Throws NoDeviceMemory.
  explicit DeviceBytes(int64_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};
/// The shortest of several runs behind one that is not timed.
float least_milliseconds(int runs, const std::function<void()>& queue);

}  // namespace convoy::cuda
