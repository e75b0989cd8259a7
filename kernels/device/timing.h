// What timing on a CUDA device needs.
#pragma once

#include <cstdint>
#include <functional>

namespace convoy::cuda {

/// Device memory for as long as it lives.
class DeviceBytes {
 public:
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
