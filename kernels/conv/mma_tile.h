// What the tensor-core convolutions share: how 256 output positions are laid over a block's warps, how gradients of a
// pooled map are spread out again, and what the kernels are told.
#pragma once

#include "kernels/device/mma.h"

namespace convoy::cuda {

/// A convolution of stride 1 from x (n, d, h, w, c) to y (n, od, oh, ow, k), both dense.
struct MmaConv {
  int n, d, h, w, c;
  int od, oh, ow, k;
  int kernel[3], pad[3];
  float slope;   ///< of the activation in front of the pool
  int tiles[3];  ///< of depth, height, width
  __host__ __device__ int all_tiles() const { return n * tiles[0] * tiles[1] * tiles[2]; }
};

/// 256 positions of 4 x (64 / columns) x columns, columns 16 or 8. A warp takes 64 of them as eight windows of 2x2x2:
/// row r of the i-th 16-row fragment is position i/2, i%2, r/8 inside window r%8. So a thread holds all eight values of
/// a window in registers, and a pool of that size is arithmetic of its own.
template <int columns>
struct Tile {
  static constexpr int depth = 4, width = columns, height = 64 / columns, positions = 256;
  static constexpr int windows_across = columns == 16 ? 8 : 4;  ///< of a warp's eight, along the width
  /// Where a warp's windows start, and where window g lies from there, in positions.
  static __device__ int warp_depth(int warp) { return 2 * (warp & 1); }
  static __device__ int warp_height(int warp) { return (columns == 16 ? 2 : 4) * (warp >> 1); }
  static __device__ int window_height(int g) { return 2 * (g / windows_across); }
  static __device__ int window_width(int g) { return 2 * (g % windows_across); }
};

/// First position of a tile.
template <int columns>
struct TileOrigin {
  int n, d, h, w;
  __device__ TileOrigin(const MmaConv& p, int tile) {
    w = tile % p.tiles[2] * Tile<columns>::width, tile /= p.tiles[2];
    h = tile % p.tiles[1] * Tile<columns>::height, tile /= p.tiles[1];
    d = tile % p.tiles[0] * Tile<columns>::depth, n = tile / p.tiles[0];
  }
};

/// Eight channels of a pooled gradient, each already multiplied by the slope that the sign of the pooled output tells,
/// and the places in the window that they belong to.
template <class T>
struct Spread {
  T g[8];
  uint8_t at[8];

  __device__ Spread(const uint4& gradient, const uint4& output, const uint2& arg, float slope) {
    const T* dy = reinterpret_cast<const T*>(&gradient);
    const T* y = reinterpret_cast<const T*>(&output);
    for (int k = 0; k < 8; ++k) {
      const float value = to_float(dy[k]);
      g[k] = to_float(y[k]) > 0 ? dy[k] : from_float<T>(slope * value);
      at[k] = reinterpret_cast<const uint8_t*>(&arg)[k];
    }
  }
  /// What position `code` of the window receives.
  __device__ uint4 take(int code) const {
    uint4 v;
    T* out = reinterpret_cast<T*>(&v);
    for (int k = 0; k < 8; ++k) out[k] = at[k] == code ? g[k] : from_float<T>(0.0f);
    return v;
  }
};

/// Rows of 64 bytes in shared memory, a row to a position and 16-byte slots turned so that eight consecutive rows lie
/// in different banks.
__device__ inline uint32_t slot_64(int row, int slot) {
  return static_cast<uint32_t>(row * 64 + ((slot ^ ((row >> 1) & 3)) << 4));
}
/// Rows of 128 bytes, the same.
__device__ inline uint32_t slot_128(int row, int slot) {
  return static_cast<uint32_t>(row * 128 + ((slot ^ (row & 7)) << 4));
}

/// Two neighbouring 16-bit values.
template <class T>
using Two = std::conditional_t<std::is_same_v<T, bfloat>, __nv_bfloat162, __half2>;
template <class T>
__device__ inline Two<T> rounded_two(float2 v) {
  if constexpr (std::is_same_v<T, bfloat>)
    return __floats2bfloat162_rn(v.x, v.y);
  else
    return __floats2half2_rn(v.x, v.y);
}
__device__ inline float2 widened(__nv_bfloat162 v) {
  return __bfloat1622float2(v);
}
__device__ inline float2 widened(__half2 v) {
  return __half22float2(v);
}

/// What a window of 2x2x2 pools to in two neighbouring channels: bias, rounding, leaky_relu, rounding, and the first
/// largest, as convolution, activation and pool would do one after the other. sums(code) gives both channels of
/// position `code`.
template <class T, class Sums>
__device__ inline void pool_window(const Sums& sums, float2 bias, float slope, Two<T>* value, uint16_t* arg) {
#if CONVOY_MMA
  Two<T> active[8], best;
#pragma unroll
  for (int code = 0; code < 8; ++code) {
    const float2 sum = sums(code), v = widened(rounded_two<T>(make_float2(sum.x + bias.x, sum.y + bias.y)));
    active[code] = rounded_two<T>(make_float2(v.x > 0 ? v.x : slope * v.x, v.y > 0 ? v.y : slope * v.y));
    best = code == 0 ? active[0] : __hmax2_nan(best, active[code]);
  }
  uint32_t winner = 0x00070007;
#pragma unroll
  for (int code = 6; code >= 0; --code) {
    const uint32_t equal = __heq2_mask(active[code], best);
    winner = (winner & ~equal) | (uint32_t(code) * 0x00010001u & equal);
  }
  if (const uint32_t broken = ~__heq2_mask(best, best))  // a NaN wins and stays: the first of them
    for (int code = 7; code >= 0; --code) {
      const uint32_t here = ~__heq2_mask(active[code], active[code]) & broken;
      winner = (winner & ~here) | (uint32_t(code) * 0x00010001u & here);
    }
  *value = best;
  *arg = static_cast<uint16_t>((winner & 0xff) | (winner >> 8 & 0xff00));
#endif
}

}  // namespace convoy::cuda
