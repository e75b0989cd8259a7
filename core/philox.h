// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC11). A number is a pure function of key and counter, so streams do not depend on threads, ranks or the
// order of evaluation, and nothing but the seed and the step has to be saved.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace convoy {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Factors and steps of the key (section 4.3 there).
inline constexpr uint32_t philox_factor[] = {0xD2511F53u, 0xCD9E8D57u}, philox_step[] = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int philox_rounds = 10;

/// Four independent 32-bit words from a 128-bit counter and a 64-bit key.
constexpr PhiloxBlock philox(const PhiloxBlock& counter, uint64_t key) {
  auto [c0, c1, c2, c3] = counter;  // builds without optimisation would call operator[] eight times a round
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < philox_rounds; ++round) {
    const uint64_t p0 = uint64_t(philox_factor[0]) * c0, p1 = uint64_t(philox_factor[1]) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1, c3 = uint32_t(p0);
    k0 += philox_step[0];
    k1 += philox_step[1];
  }
  return {c0, c1, c2, c3};
}

/// FNV-1a, so that a stream can be named ("dropout1", "shuffle").
constexpr uint64_t hash_name(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char ch : text) hash = (hash ^ static_cast<unsigned char>(ch)) * 0x100000001b3ull;
  return hash;
}

/// 24-bit uniform in [0, 1).
constexpr float uniform01(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// A numbered sequence drawn from one (seed, stream) pair: element i of it is the same whenever and wherever computed.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint64_t stream) : key_(seed), stream_(stream) {}
  uint64_t key() const { return key_; }
  uint64_t stream() const { return stream_; }
  PhiloxBlock block(uint64_t index) const {
    return philox({uint32_t(index), uint32_t(index >> 32), uint32_t(stream_), uint32_t(stream_ >> 32)}, key_);
  }
  uint32_t word(uint64_t index) const { return block(index >> 2)[index & 3]; }
  float uniform(uint64_t index) const { return uniform01(word(index)); }
  /// Uniform integer in [0, bound) by multiply-shift; the bias is below bound / 2^64.
  uint64_t below(uint64_t index, uint64_t bound) const {
    const PhiloxBlock b = block(index);
    const uint64_t word64 = uint64_t(b[0]) << 32 | b[1];
    return static_cast<uint64_t>((static_cast<unsigned __int128>(word64) * bound) >> 64);
  }
  /// Standard normal by Box-Muller, in double; many of them: normal.h.
  double normal(uint64_t index) const {
    const PhiloxBlock b = block(index);
    const double u = (double(b[0]) + 1.0) * 0x1p-32, v = double(b[1]) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

 private:
  uint64_t key_, stream_;
};

}  // namespace convoy
