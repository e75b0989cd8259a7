// What all CUDA kernels share: the device in use, its stream, errors, and how types and loops are written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/function_kernel.h"

namespace convoy::cuda {

/// The stream of the open device; kernels queue everything there.
cudaStream_t stream();
/// 10 * major + minor of the open device, 0 where none is open.
int capability();
/// What the kernels that run there were compiled for (__CUDA_ARCH__ / 10): less than the device's where the build has
/// only code for earlier ones. Those of 9.0a (kernels/device/wgmma.h) are apart.
int code_capability();
/// Yes, or why kernels of mma.sync (kernels/device/mma.h) do not run there: their bodies are empty in code for less
/// than 8.0, which runs on later devices, too, where a build has no other.
Support runs_mma();
/// The same of kernels of warpgroup products (kernels/device/wgmma.h): compute capability 9.0 alone, by code of 9.0a.
Support runs_wgmma();
/// Whether code of 9.0 runs there and the driver is of CUDA 12.3 or later (kernels/device/early.h).
bool early_launches();
int multiprocessors();
/// Most shared memory of a block, in bytes.
int shared_memory();
/// Lets a kernel ask for so many bytes in a launch, more than 48 KiB among them; once per kernel and size is enough.
void allow_shared_bytes(const void* kernel, int bytes);
/// Throws Error(runtime) saying what failed.
void check(cudaError_t status, const char* what);
/// After a launch.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

using bfloat = __nv_bfloat16;

__host__ __device__ inline float to_float(float v) {
  return v;
}
__host__ __device__ inline float to_float(bfloat v) {
  return __bfloat162float(v);
}
__host__ __device__ inline float to_float(__half v) {
  return __half2float(v);
}
__host__ __device__ inline float to_float(int16_t v) {
  return v;
}
template <class T>
__host__ __device__ inline T from_float(float v) {
  if constexpr (std::is_same_v<T, bfloat>)
    return __float2bfloat16(v);
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half(v);
  else
    return v;
}
/// What a value is once it was stored.
template <class T>
__host__ __device__ inline float rounded(float v) {
  return to_float(from_float<T>(v));
}

/// Calls f with a zero of the device's type for f32, bf16 or f16.
template <class F>
void dispatch(DType type, F&& f) {
  switch (type) {
    case DType::bf16:
      return f(bfloat());
    case DType::f16:
      return f(__half());
    default:
      return f(0.0f);
  }
}

/// For the 16-bit types alone.
template <class F>
void dispatch_16(DType type, F&& f) {
  type == DType::bf16 ? f(bfloat()) : f(__half());
}

template <class T>
T* data(const Tensor& t) {
  return reinterpret_cast<T*>(t.bytes());
}

/// Several elements that are read or written by one instruction.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T v[n];
};

/// Blocks for `work` threads of a loop that strides over the grid: enough to fill the device, no more.
int grid_for(int64_t work, int threads);

/// One of three float types that kernels of this folder compute with, pixels evenly spaced.
Support even_floats(const Problem& p);
/// Channels that are summed over pixels (channel_sums.h) at most, and whether a tensor has no more.
constexpr int64_t most_summed_channels = 1 << 17;
Support few_channels_to_sum(const TensorDesc& x);
/// even_floats of an op that sums its first input's channels.
Support even_sums(const Problem& p);
/// The same of a convolution without a pool, whose weights (or their gradient) are dense: kernels take them as they
/// lie.
Support even_convolution(const Problem& p);
/// The same, dense everywhere.
Support dense_floats(const Problem& p);

inline KernelPtr kernel(std::string_view name, OpKind kind, FunctionKernel::Supports supports,
                        FunctionKernel::Prepare prepare) {
  return std::make_unique<FunctionKernel>(name, kind, supports, prepare, DeviceKind::cuda);
}
inline std::unique_ptr<Prepared> prepared(PreparedFunction::Run run, int64_t workspace = 0, std::string detail = {}) {
  return std::make_unique<PreparedFunction>(std::move(run), workspace, std::move(detail));
}

#ifdef __CUDACC__
/// The k-th of them. From 16-bit brain floats by way of the words that they lie in: element by element, compilers widen
/// all of them as soon as they are loaded, into twice the registers.
template <class T, int n>
__device__ inline float value_of(const Pack<T, n>& pack, int k) {
  if constexpr (std::is_same_v<T, bfloat> && n % 2 == 0) {
    uint32_t words[n / 2];
    memcpy(words, pack.v, sizeof pack.v);
    return __uint_as_float(k % 2 ? words[k / 2] & 0xffff0000u : words[k / 2] << 16);
  } else {
    return to_float(pack.v[k]);
  }
}

/// Adds up v over the threads of a block of up to 1024; thread 0 has the sum.
__device__ inline float block_sum(float v) {
  __shared__ float part[32];
  for (int step = 16; step; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  const int warps = (blockDim.x + 31) / 32;
  v = threadIdx.x < warps ? part[threadIdx.x] : 0;
  if (threadIdx.x < 32)
    for (int step = 16; step; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
  __syncthreads();
  return v;
}
#endif

}  // namespace convoy::cuda
