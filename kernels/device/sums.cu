#include "kernels/device/sums.h"

namespace convoy::cuda {
namespace sums {
namespace {

/// The sums of few parts.
template <class Target>
__global__ void add_few_parts(int parts, int64_t columns, const float* from, Target to) {
  await_kernel_ahead();
  for (int64_t c = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; c < columns; c += int64_t(gridDim.x) * blockDim.x) {
    float sum = 0;
    for (int i = 0; i < parts; ++i) sum += from[i * columns + c];
    to(c, sum);
  }
}
/// The same of many: 32 threads to a column; block (32, 32).
template <class Target>
__global__ void add_many_parts(int parts, int64_t columns, const float* from, Target to) {
  await_kernel_ahead();
  __shared__ float lanes[32][33];
  const int64_t c = int64_t(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (c < columns)
#pragma unroll 4
    for (int i = threadIdx.y; i < parts; i += 32) sum += from[i * columns + c];
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= columns) return;
  for (int i = 1; i < 32; ++i) sum += lanes[i][threadIdx.x];
  to(c, sum);
}

template <class Target>
void add_up(int parts, int64_t columns, const float* from, const Target& to) {
  if (parts < 16)
    launch_early(add_few_parts<Target>, dim3(static_cast<unsigned>(grid_for(columns, 128))), dim3(128), 0, parts,
                 columns, from, to);
  else
    launch_early(add_many_parts<Target>, dim3(static_cast<unsigned>((columns + 31) / 32)), dim3(32, 32), 0, parts,
                 columns, from, to);
}

}  // namespace
}  // namespace sums

void add_parts(int parts, int64_t columns, const float* from, const ToVector& to) {
  using namespace sums;
  add_up(parts, columns, from, to);
}
void add_parts(int parts, int64_t columns, const float* from, const ToTwoVectors& to) {
  using namespace sums;
  add_up(parts, columns, from, to);
}

}  // namespace convoy::cuda
