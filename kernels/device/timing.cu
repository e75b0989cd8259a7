#include "kernels/device/timing.h"

#include "kernels/device/cuda.h"

namespace convoy::cuda {

DeviceBytes::DeviceBytes(int64_t bytes) {
  if (bytes <= 0) return;
  const cudaError_t status = cudaMalloc(&data_, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the failure is reported here and nowhere else
    throw NoDeviceMemory(ErrorKind::runtime, "no room for " + std::to_string(bytes) + " bytes on the device");
  }
  check(status, "memory to time a kernel");
}
DeviceBytes::~DeviceBytes() {
  cudaFree(data_);
}

namespace {

struct Event {
  cudaEvent_t event = nullptr;
  Event() { check(cudaEventCreate(&event), "creating an event"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
};

}  // namespace

float least_milliseconds(int runs, const std::function<void()>& queue) {
  const Event begin, end;
  float least = 1e30f;
  queue();
  for (int i = 0; i < runs; ++i) {
    check(cudaEventRecord(begin.event, stream()), "recording an event");
    queue();
    check(cudaEventRecord(end.event, stream()), "recording an event");
    check(cudaEventSynchronize(end.event), "timing a kernel");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "timing a kernel");
    least = std::min(least, milliseconds);
  }
  return least;
}

}  // namespace convoy::cuda
