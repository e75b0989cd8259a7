#include "core/normal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace convoy {
namespace {

// Loops over so many elements become vectors, given the flags in core/CMakeLists.txt: of the widths that the functions
// at the end of this file allow, into which all of it goes. The same bits whatever the width, there being no fused
// multiplications.
constexpr int batch = 64;
#define CONVOY_INLINE [[gnu::always_inline]] inline

/// Of u in (0, 1]: u = 2^exponent m, with m between the roots of 1/2 and 2, and log m = 2 artanh s.
CONVOY_INLINE double log_unit(double u) {
  const auto bits = std::bit_cast<uint64_t>(u), above = bits - std::bit_cast<uint64_t>(std::numbers::sqrt2 / 2);
  const auto m = std::bit_cast<double>(bits - (above & 0xFFF0000000000000ull));
  // Vectors convert no 64-bit integers: as the low bits of 2^52 the exponent, from -2048 on, is a double.
  const uint64_t biased = ((above >> 52) + 2048) & 4095;
  const double exponent = std::bit_cast<double>(biased | std::bit_cast<uint64_t>(0x1p52)) - (0x1p52 + 2048);
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 1.0 / 23;
#pragma GCC unroll 16
  for (int k = 21; k >= 3; k -= 2) sum = sum * z + 1.0 / k;
  return exponent * std::numbers::ln2 + (2 * s + 2 * s * z * sum);
}

/// cos(2 pi v) of v in [0, 1): a series around the nearest quarter of a turn.
CONVOY_INLINE double cos_turns(double v) {
  const double quarter = (v * 4 + 0x1.8p52) - 0x1.8p52, x = (v - quarter * 0.25) * (2 * std::numbers::pi), z = x * x;
  double cosine = 1, sine = 1;
#pragma GCC unroll 16
  for (int k = 18; k >= 2; k -= 2) cosine = 1 - cosine * z * (1.0 / (k * (k - 1)));
#pragma GCC unroll 16
  for (int k = 17; k >= 3; k -= 2) sine = 1 - sine * z * (1.0 / (k * (k - 1)));
  sine *= x;
  const double size = (quarter == 1) | (quarter == 3) ? sine : cosine;
  return (quarter == 1) | (quarter == 2) ? -size : size;
}

/// PhiloxStream::block's first two words, of `batch` counters.
CONVOY_INLINE void first_words(const PhiloxStream& random, uint64_t first, uint32_t (&c0)[batch],
                               uint32_t (&c1)[batch]) {
  uint32_t c2[batch], c3[batch];
  for (int i = 0; i < batch; ++i) {
    const uint64_t index = first + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(index), c1[i] = static_cast<uint32_t>(index >> 32);
    c2[i] = static_cast<uint32_t>(random.stream()), c3[i] = static_cast<uint32_t>(random.stream() >> 32);
  }
  auto k0 = static_cast<uint32_t>(random.key()), k1 = static_cast<uint32_t>(random.key() >> 32);
  for (int round = 0; round < philox_rounds; ++round, k0 += philox_step[0], k1 += philox_step[1])
    for (int i = 0; i < batch; ++i) {
      const uint64_t p0 = uint64_t(philox_factor[0]) * c0[i], p1 = uint64_t(philox_factor[1]) * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0, c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1, c3[i] = static_cast<uint32_t>(p0);
    }
}

CONVOY_INLINE void fill(const PhiloxStream& random, uint64_t first, std::span<double> to) {
  uint32_t a[batch], b[batch];
  double normal[batch];
  for (size_t at = 0; at < to.size(); at += batch) {
    first_words(random, first + at, a, b);
    for (int i = 0; i < batch; ++i)
      normal[i] = std::sqrt(-2 * log_unit((double(a[i]) + 1) * 0x1p-32)) * cos_turns(double(b[i]) * 0x1p-32);
    std::copy_n(normal, std::min<size_t>(batch, to.size() - at), to.data() + at);
  }
}

#ifdef __x86_64__
[[gnu::target("avx512f")]] void fill_avx512(const PhiloxStream& random, uint64_t first, std::span<double> to) {
  fill(random, first, to);
}
[[gnu::target("avx2")]] void fill_avx2(const PhiloxStream& random, uint64_t first, std::span<double> to) {
  fill(random, first, to);
}
#endif

}  // namespace

void fill_normal(const PhiloxStream& random, uint64_t first, std::span<double> to) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return fill_avx512(random, first, to);
  if (__builtin_cpu_supports("avx2")) return fill_avx2(random, first, to);
#endif
  fill(random, first, to);
}

}  // namespace convoy
