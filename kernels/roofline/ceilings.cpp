#include "kernels/roofline/ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>

#include "core/free_memory.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "kernels/device/probes.h"
#include "kernels/simd/amx.h"
#include "kernels/simd/cpu.h"
#include "kernels/simd/tile_config.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t iterations = 2'000'000;

/// Keeps a result alive without storing it anywhere hot.
thread_local volatile float sink;

/// The best rate of `work` in `seconds`, in 1e9 operations per second; it runs once at least.
template <class F>
double best_rate(double operations, double seconds, F&& work) {
  double best = 0;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    work();
    const double once = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, operations / once * 1e-9);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return best;
}

/// The same of work on all threads.
struct Rate {
  int threads;
  double seconds;
  template <class F>
  double best(double operations, F&& work) const {  // operations per call and thread
    return best_rate(operations * threads, seconds, [&] { parallel_threads(threads, [&](int) { work(); }); });
  }
};

// Twelve independent accumulators hide the latency of every FMA unit known.
#define CONVOY_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

__attribute__((target("avx512f"))) void fma_avx512() {
  __m512 a = _mm512_set1_ps(1.0001f), b = _mm512_set1_ps(1e-9f);
#define X(i) __m512 c##i = _mm512_set1_ps(float(i));
  CONVOY_TWELVE(X)
#undef X
  for (int64_t n = 0; n < iterations; ++n) {
#define X(i) c##i = _mm512_fmadd_ps(c##i, a, b);
    CONVOY_TWELVE(X)
#undef X
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  float total = 0;
#define X(i) total += _mm512_reduce_add_ps(c##i);
  CONVOY_TWELVE(X)
#undef X
  sink = total;
}

__attribute__((target("avx2,fma"))) void fma_avx2() {
  __m256 a = _mm256_set1_ps(1.0001f), b = _mm256_set1_ps(1e-9f);
#define X(i) __m256 c##i = _mm256_set1_ps(float(i));
  CONVOY_TWELVE(X)
#undef X
  for (int64_t n = 0; n < iterations; ++n) {
#define X(i) c##i = _mm256_fmadd_ps(c##i, a, b);
    CONVOY_TWELVE(X)
#undef X
    __asm__ volatile("" : "+x"(a), "+x"(b));
  }
  float total = 0;
#define X(i) total += _mm256_cvtss_f32(c##i);
  CONVOY_TWELVE(X)
#undef X
  sink = total;
}

__attribute__((target("avx512f,avx512bf16"))) void dot_bf16() {
  __m512 seed = _mm512_set1_ps(1.0f);
  __m512bh a = _mm512_cvtne2ps_pbh(seed, seed), b = a;
#define X(i) __m512 c##i = _mm512_set1_ps(float(i));
  CONVOY_TWELVE(X)
#undef X
  for (int64_t n = 0; n < iterations; ++n) {
#define X(i) c##i = _mm512_dpbf16_ps(c##i, a, b);
    CONVOY_TWELVE(X)
#undef X
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  float total = 0;
#define X(i) total += _mm512_reduce_add_ps(c##i);
  CONVOY_TWELVE(X)
#undef X
  sink = total;
}

__attribute__((target("avx512fp16,avx512vl"))) void fma_f16() {
  __m512h a = _mm512_set1_ph(_Float16(1.001f)), b = _mm512_set1_ph(_Float16(0.001f));
#define X(i) __m512h c##i = _mm512_set1_ph(_Float16(float(i)));
  CONVOY_TWELVE(X)
#undef X
  for (int64_t n = 0; n < iterations; ++n) {
#define X(i) c##i = _mm512_fmadd_ph(c##i, a, b);
    CONVOY_TWELVE(X)
#undef X
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  float total = 0;
#define X(i) total += float(_mm512_reduce_add_ph(c##i));
  CONVOY_TWELVE(X)
#undef X
  sink = total;
}

__attribute__((target("amx-tile,amx-bf16"))) void dot_amx() {
  _tile_loadconfig(&tile_config);
  alignas(64) static const uint8_t zeros[1024] = {};
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  for (int64_t n = 0; n < iterations / 8; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

/// In GB/s, of arrays that no last-level cache of these cores holds: 96 MiB a core, where the largest caches have 12. 0
/// where there is no room for them. The best of three mixes of reads and writes, of which none reads what it is to
/// overwrite unseen, as a plain store does: a triad around the caches, an update of two arrays in place, and a sum.
double memory_rate(int threads, double seconds) {
  const int64_t elements = int64_t{8 << 20} * std::max(2, threads);
  if (const auto left = free_memory(); left && *left < 2 * 3 * 4 * elements) return 0;
  const Buffer a(elements * 4, Buffer::Fill::zero), b(elements * 4, Buffer::Fill::zero),
      c(elements * 4, Buffer::Fill::zero);
  auto *x = reinterpret_cast<float*>(a.data()), *y = reinterpret_cast<float*>(b.data());
  const auto* z = reinterpret_cast<const float*>(c.data());
  constexpr int64_t line = 16;
  const auto best = [&](int arrays, auto&& each_line) {
    return best_rate(4.0 * arrays * double(elements), seconds / 3, [&] {
      parallel_ranges(elements, threads, 1024, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; i += line) each_line(i);
      });
    });
  };
  const __m128 half = _mm_set1_ps(0.5f);
  const double triad = best(3, [&](int64_t i) {
    for (int64_t k = i; k < i + line; k += 4)
      _mm_stream_ps(x + k, _mm_add_ps(_mm_load_ps(y + k), _mm_mul_ps(half, _mm_load_ps(z + k))));
  });
  const double update = best(5, [&](int64_t i) {
    for (int64_t k = i; k < i + line; k += 4) {
      const __m128 moment = _mm_add_ps(_mm_mul_ps(half, _mm_load_ps(y + k)), _mm_load_ps(z + k));
      _mm_store_ps(y + k, moment);
      _mm_store_ps(x + k, _mm_add_ps(_mm_load_ps(x + k), moment));
    }
  });
  const double sum = best(3, [&](int64_t i) {
    __m128 lanes = _mm_setzero_ps();
    for (int64_t k = i; k < i + line; k += 4)
      lanes = _mm_add_ps(_mm_add_ps(lanes, _mm_load_ps(x + k)), _mm_add_ps(_mm_load_ps(y + k), _mm_load_ps(z + k)));
    __asm__ volatile("" : : "x"(lanes));
  });
  return std::max({triad, update, sum});
}

}  // namespace

std::vector<Ceiling> measure_ceilings(DeviceKind device, int threads, double seconds) {
  if (device != DeviceKind::cpu) return probe_device();
  const CpuFeatures& f = cpu_features();
  std::vector<Ceiling> list;
  const Rate rate{threads, seconds};
  constexpr double twelve = 12.0 * iterations;
  if (f.avx512)
    list.push_back({"f32_fma", rate.best(twelve * 32, fma_avx512), "GFLOP/s"});
  else if (f.avx2)
    list.push_back({"f32_fma", rate.best(twelve * 16, fma_avx2), "GFLOP/s"});
  if (f.avx512_bf16) list.push_back({"bf16_dot", rate.best(twelve * 64, dot_bf16), "GFLOP/s"});
  if (f.avx512_fp16) list.push_back({"f16_fma", rate.best(twelve * 64, fma_f16), "GFLOP/s"});
  if (amx_granted()) list.push_back({"amx_bf16", rate.best(iterations / 8 * 4.0 * 16384, dot_amx), "GFLOP/s"});
  if (const double bandwidth = memory_rate(threads, seconds); bandwidth > 0)
    list.push_back({"memory", bandwidth, "GB/s"});
  return list;
}

}  // namespace convoy
