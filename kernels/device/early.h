// Launches whose blocks may take their places while the kernel ahead of them in the queue ends (programmatic dependent
// launch, compute capability 9.0 and CUDA 12.3): between the many small kernels of a step, most of a launch's latency
// is hidden so. In recorded steps as well.
#pragma once

#include "kernels/device/cuda.h"

namespace convoy::cuda {

#ifdef __CUDACC__
/// The beginning of every kernel that is launched early, ahead of its first access to memory that others write: waits
/// until the kernel ahead has ended and all that it wrote is seen. The kernel behind may take its places from here on.
__device__ inline void await_kernel_ahead() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Queues kernel<<<blocks, threads, shared>>>(args...), early where the device can; `cluster` blocks that follow each
/// other in y share their memory (1, or compute capability 9.0).
template <class... Parameters, class... Args>
void launch_cluster(void (*kernel)(Parameters...), int cluster, dim3 blocks, dim3 threads, int shared, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.stream = stream();
  config.dynamicSmemBytes = static_cast<size_t>(shared), config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = a.val.clusterDim.z = 1, a.val.clusterDim.y = static_cast<unsigned>(cluster);
  }
#if CUDART_VERSION >= 12030
  if (early_launches()) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
#endif
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), "launching a kernel");
}
template <class... Parameters, class... Args>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, int shared, Args&&... args) {
  launch_cluster(kernel, 1, blocks, threads, shared, std::forward<Args>(args)...);
}
#endif

}  // namespace convoy::cuda
