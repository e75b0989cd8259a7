// How fast a multiprocessor's warpgroup products can be: two warpgroups a block, 64 rows of pseudo-random numbers in
// registers times 64 positions of pseudo-random numbers in shared memory.
#include "kernels/device/probes.h"
#include "kernels/device/timing.h"
#include "kernels/device/wgmma.h"

namespace convoy::cuda {
namespace wgmma_probe {
namespace {

constexpr int threads = 2 * warpgroup, chains = 4, products = 3, iterations = 1024;
constexpr int shared_bytes = 48 * 1024;

/// 16-bit numbers between 1 and 2 in size, of both signs, in the type's bits.
template <class T>
__device__ uint32_t two_numbers(uint32_t seed) {
  const uint32_t random = seed * 2654435761u ^ seed >> 7,
                 fraction = std::is_same_v<T, bfloat> ? 0x007f007f : 0x03ff03ff;
  return (std::is_same_v<T, bfloat> ? 0x3f803f80u : 0x3c003c00u) | (random & (fraction | 0x80008000u));
}

template <class T>
__global__ void __launch_bounds__(threads, 1) multiply(float* out) {
#if CONVOY_WGMMA
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = shared_address(memory);
  for (int i = threadIdx.x; i < shared_bytes / 4; i += threads) store_4(shared + i * 4, two_numbers<T>(i));
  show_to_products();
  __syncthreads();
  const Columns columns(shared, 8 * 1024, 128);
  float c[chains][32] = {};
  const auto step = [&](int n, uint32_t(&a)[products][4]) {
    for (int i = 0; i < products * 4; ++i) a[i / 4][i % 4] = two_numbers<T>(threadIdx.x + n * 12 + i);
    products_begin();
#pragma unroll
    for (int k = 0; k < products; ++k)
#pragma unroll
      for (int i = 0; i < chains; ++i) multiply_positions<T>(c[i], a[k], columns + (64 * i + 256 * k));
    commit_products();
    wait_products<1>();
  };
  uint32_t a[2][products][4];
#pragma unroll 1
  for (int n = 0; n < iterations; n += 2) step(n, a[0]), step(n + 1, a[1]);
  wait_products<0>();
  float sum = 0;
  for (int i = 0; i < chains * 32; ++i) sum += c[i / 32][i % 32];
  if (sum == -1.0f) *out = sum;  // never: keeps the loop alive
#endif
}

}  // namespace
}  // namespace wgmma_probe

double wgmma_rate(DType type, int rounds) {
  using namespace wgmma_probe;
  const DeviceBytes out(4);
  const double work = 2.0 * 64 * 64 * 16 * chains * products * iterations * (threads / warpgroup) * multiprocessors();
  double rate = 0;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    allow_shared_bytes(reinterpret_cast<const void*>(multiply<T>), shared_bytes);
    const float milliseconds = least_milliseconds(rounds, [&] {
      multiply<T><<<multiprocessors(), threads, shared_bytes, stream()>>>(static_cast<float*>(out.data()));
    });
    check_launch("a probe");
    rate = work / double(milliseconds) * 1e-6;
  });
  return rate;
}

}  // namespace convoy::cuda
