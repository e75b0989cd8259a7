// What the tensor-core convolutions share: how 256 output positions are laid over a block's warps, how gradients of a
// pooled map are spread out again, and what the kernels are told.
#pragma once

#include "kernels/device/mma.h"

namespace convoy::cuda {

/// A 3 x 3 x 3 convolution of stride 1 from x (n, d, h, w, c) to y (n, od, oh, ow, k), both dense.
struct MmaConv {
  int n, d, h, w, c;
  int od, oh, ow, k;
  int pad[3];
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
  return make_float2(__low2float(v), __high2float(v));  // __bfloat1622float2 wants 8.0 ahead of CUDA 12.2
}
__device__ inline float2 widened(__half2 v) {
  return __half22float2(v);
}
template <class T>
__device__ inline uint32_t bits_of(Two<T> v) {
  return *reinterpret_cast<const uint32_t*>(&v);
}
/// v where `sign` is positive, elsewhere slope * v, rounded again.
template <class T>
__device__ inline uint32_t leaky_two(Two<T> sign, Two<T> v, float slope) {
  const uint32_t positive = __hgt2_mask(sign, rounded_two<T>(make_float2(0, 0)));
  const float2 wide = widened(v);
  const uint32_t scaled = bits_of<T>(rounded_two<T>(make_float2(slope * wide.x, slope * wide.y)));
  return (bits_of<T>(v) & positive) | (scaled & ~positive);
}

/// Eight channels of a pooled gradient behind the slope that the sign of the pooled output tells.
template <class T>
__device__ inline void scale_gradient(const uint4& gradient, const uint4& output, float slope, uint32_t (&pairs)[4]) {
  const auto* dy = reinterpret_cast<const Two<T>*>(&gradient);
  const auto* y = reinterpret_cast<const Two<T>*>(&output);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = leaky_two<T>(y[i], dy[i], slope);
}

/// Eight channels of a pooled gradient, each already multiplied by the slope that the sign of the pooled output tells,
/// and the places in the window that they belong to; both two to a register.
template <class T>
struct Spread {
  uint32_t g[4];
  __half2 at[4];

  __device__ Spread(const uint4& gradient, const uint4& output, const uint2& arg, float slope) {
    scale_gradient<T>(gradient, output, slope, g);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t places = __byte_perm(i < 2 ? arg.x : arg.y, 0, i & 1 ? 0x4342 : 0x4140);
      at[i] = *reinterpret_cast<const __half2*>(&places);
    }
  }
  /// What position `code` of the window receives. Small integers compare as the subnormal numbers of the same bits.
  __device__ uint4 take(int code) const {
    const uint32_t both = uint32_t(code) * 0x00010001u;
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = g[i] & __heq2_mask(at[i], *reinterpret_cast<const __half2*>(&both));
    return make_uint4(v[0], v[1], v[2], v[3]);
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

/// What a window of 2x2x2 pools to in two neighbouring channels: rounding, leaky_relu, rounding, and the first largest,
/// as convolution, activation and pool would do one after the other. sums(code) gives both channels of position `code`,
/// bias included.
template <class T, class Sums>
__device__ inline void pool_window(const Sums& sums, float slope, Two<T>* value, uint16_t* arg) {
#if CONVOY_MMA
  Two<T> active[8], best;
#pragma unroll
  for (int code = 0; code < 8; ++code) {
    const float2 v = widened(rounded_two<T>(sums(code)));
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
