#include "kernels/device/timing.h"

#include "kernels/device/cuda.h"

namespace convoy::cuda {

DeviceBytes::DeviceBytes(int64_t bytes) {
  if (bytes > 0) check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "memory to time a convolution");
}
DeviceBytes::~DeviceBytes() {
  cudaFree(data_);
}

float least_milliseconds(int runs, const std::function<void()>& queue) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "creating an event"), check(cudaEventCreate(&end), "creating an event");
  float least = 1e30f;
  queue();
  for (int i = 0; i < runs; ++i) {
    cudaEventRecord(begin, stream());
    queue();
    cudaEventRecord(end, stream());
    check(cudaEventSynchronize(end), "timing a convolution");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    least = std::min(least, milliseconds);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return least;
}

}  // namespace convoy::cuda
