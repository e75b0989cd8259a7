#include "kernels/device/probes.h"

#include "kernels/device/mma.h"
#include "kernels/device/timing.h"

namespace convoy {
namespace probes {
namespace {

using namespace cuda;

constexpr int threads = 256, chains = 8, iterations = 4096;

/// Independent chains hide the latency of each.
__global__ void fma(float a, float b, float* out) {
  float c[chains];
  for (int i = 0; i < chains; ++i) c[i] = float(threadIdx.x + i);
  for (int n = 0; n < iterations; ++n)
    for (int i = 0; i < chains; ++i) c[i] = c[i] * a + b;
  float sum = 0;
  for (int i = 0; i < chains; ++i) sum += c[i];
  if (sum == -1.0f) *out = sum;  // never: keeps the loop alive
}

template <class T>
__global__ void mma(uint32_t bits, float* out) {
  float c[chains][4] = {};
  const uint32_t a[4] = {bits, bits ^ threadIdx.x, bits + 1, bits + threadIdx.x};
  for (int n = 0; n < iterations / 4; ++n)
#pragma unroll
    for (int i = 0; i < chains; ++i) multiply_add<T>(c[i], a, bits + i, bits ^ i);
  float sum = 0;
  for (int i = 0; i < chains; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (sum == -1.0f) *out = sum;
}

__global__ void copy(int64_t n, const uint4* from, uint4* to) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    to[i] = from[i];
}

constexpr int rounds = 20;

}  // namespace
}  // namespace probes

std::vector<Ceiling> probe_device() {
  using namespace probes;
  std::vector<Ceiling> list;
  if (!capability()) return list;
  const DeviceBytes out(4);
  auto* sum = static_cast<float*>(out.data());
  const int blocks = 8 * multiprocessors();
  const auto rate = [&](double work, const std::function<void()>& queue) {
    const double milliseconds = double(least_milliseconds(rounds, queue));
    check_launch("a probe");
    return work / milliseconds * 1e-6;
  };
  list.push_back({"f32_fma",
                  rate(2.0 * chains * iterations * blocks * threads,
                       [&] { fma<<<blocks, threads, 0, stream()>>>(1.0001f, 1e-9f, sum); }),
                  "GFLOP/s"});
  if (runs_mma().ok) {
    const double work = 2.0 * 16 * 8 * 16 * chains * (iterations / 4) * blocks * (threads / 32);
    list.push_back(
        {"bf16_mma", rate(work, [&] { mma<bfloat><<<blocks, threads, 0, stream()>>>(0x3f803f80u, sum); }), "GFLOP/s"});
    list.push_back(
        {"f16_mma", rate(work, [&] { mma<__half><<<blocks, threads, 0, stream()>>>(0x3c003c00u, sum); }), "GFLOP/s"});
  }
  if (runs_wgmma().ok) {
    list.push_back({"bf16_wgmma", wgmma_rate(DType::bf16, rounds), "GFLOP/s"});
    list.push_back({"f16_wgmma", wgmma_rate(DType::f16, rounds), "GFLOP/s"});
  }
  constexpr int64_t bytes = int64_t{512} << 20;
  const DeviceBytes from(bytes), to(bytes);
  list.push_back({"copy",
                  rate(2.0 * double(bytes),
                       [&] {
                         copy<<<blocks, threads, 0, stream()>>>(bytes / 16, static_cast<const uint4*>(from.data()),
                                                                static_cast<uint4*>(to.data()));
                       }),
                  "GB/s"});
  return list;
}

}  // namespace convoy
