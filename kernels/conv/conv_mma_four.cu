// The first layer on tensor cores: four input channels, 3 x 3 x 3, 32 output channels. Four neighbouring positions of
// four channels are 16 values in a row of memory, so one row of taps is one step of 16 with one tap's weights zero: 144
// products where 108 are asked for, and no im2col. ldmatrix and wide copies want multiples of 16 bytes, which are two
// positions. So positions of even width see the four that start two before them, weights (0, k0, k1, k2), those of odd
// width the four that start one before them, weights (k0, k1, k2, 0), and the two kinds never share a fragment. (A
// value that is not finite reaches one position more: zero times infinity is not zero.)
//
// Forward ends in bias, activation and 2x2x2 pool: it reads 16.8 MB and writes 25 MB per 128^3 volume in place of a map
// of 134 MB. The weight gradient reads the pooled gradient, its output and arg-max and spreads them out in shared
// memory. Both keep copies of the next tiles on their way; both are bound by the instructions around their products.
#include "kernels/conv/conv_mma_kernels.h"

namespace convoy::cuda {
namespace conv_mma_four {
namespace {

using B = Tile<16>;
constexpr int channels = 32;
/// Of inputs: rows of twenty positions, from two before the tile, as ten packs of 16 bytes.
constexpr int packs_across = 10, row_bytes = packs_across * 16, halo_depth = B::depth + 2, halo_height = B::height + 2;
constexpr int halo_packs = halo_depth * halo_height * packs_across, halo_bytes = halo_packs * 16;
/// Weights for even and for odd positions: [k][9 rows of taps][4 taps][4 channels] and a gap.
constexpr int weight_row_bytes = 304, weight_set_bytes = channels * weight_row_bytes;
static_assert(2 * weight_set_bytes == mma_four_pack_bytes);

template <class T, int threads>
__device__ void copy_halo(const MmaConv& p, const TileOrigin<16>& o, const T* x, uint32_t to) {
#pragma unroll
  for (int i = threadIdx.x; i < halo_packs; i += threads) {
    const int pack = i % packs_across, row = i / packs_across;
    const int d = o.d + row / halo_height - p.pad[0], h = o.h + row % halo_height - p.pad[1], w = o.w - 2 + 2 * pack;
    const bool valid = d >= 0 && h >= 0 && w >= 0 && d < p.d && h < p.h && w < p.w;
    const T* from = valid ? x + (((int64_t(o.n) * p.d + d) * p.h + h) * p.w + w) * 4 : x;
    copy_16(to + i * 16, from, valid);
  }
}

constexpr int forward_threads = 128, forward_stages = 3;

template <class T>
__global__ void __launch_bounds__(forward_threads, 4)
    forward(const MmaConv p, const T* __restrict__ x, const char* __restrict__ packed, const float* __restrict__ bias,
            MmaResult to) {
#if CONVOY_MMA
  __shared__ __align__(128) char memory[forward_stages * halo_bytes + mma_four_pack_bytes];
  const uint32_t ring = shared_address(memory), weights = ring + forward_stages * halo_bytes;
  const int tiles = p.all_tiles(), warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = int(gridDim.x);
  for (int i = threadIdx.x; i < mma_four_pack_bytes / 16; i += forward_threads)
    copy_16(weights + i * 16, packed + i * 16, true);
  const auto fetch = [&](int tile, int stage) {
    if (tile < tiles) copy_halo<T, forward_threads>(p, TileOrigin<16>(p, tile), x, ring + uint32_t(stage) * halo_bytes);
    commit_copies();
  };
  for (int ahead = 0; ahead < forward_stages - 1; ++ahead) fetch(int(blockIdx.x) + ahead * step, ahead);
  // Fragment i holds positions of depth i/2 and odd width i%2 in eight windows, even height in its upper rows.
  const int window = lane & 7, lower = lane >> 3 & 1, half = lane >> 4;
  const int left =
      (B::warp_depth(warp) * halo_height + B::warp_height(warp) + lower) * row_bytes + (window + half) * 16;
  const int right = ((lane & 7) + 8 * (lane >> 4)) * weight_row_bytes + (lane >> 3 & 1) * 16;
  const int g = lane / 4, column = 2 * (lane % 4);
  float2 biases[4];
  for (int j = 0; j < 4; ++j)
    biases[j] = bias ? make_float2(bias[8 * j + column], bias[8 * j + column + 1]) : make_float2(0, 0);
  for (int tile = int(blockIdx.x), stage = 0; tile < tiles; tile += step) {
    wait_copies<forward_stages - 2>();
    __syncthreads();
    fetch(tile + (forward_stages - 1) * step, (stage + forward_stages - 1) % forward_stages);
    const uint32_t halo = ring + uint32_t(stage) * halo_bytes + left;
    stage = (stage + 1) % forward_stages;
    float acc[4][4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[j][i / 2][i % 2 * 2] = biases[j].x, acc[j][i / 2][i % 2 * 2 + 1] = biases[j].y;
#pragma unroll
    for (int row = 0; row < 9; ++row)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int d = 0; d < 2; ++d)
          load_matrices(a[d], halo + ((row / 3 + d) * halo_height + row % 3) * row_bytes + odd * 16);
#pragma unroll
        for (int j = 0; j < 2; ++j)
          load_matrices(b[j], weights + odd * weight_set_bytes + right + 16 * j * weight_row_bytes + row * 32);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int d = 0; d < 2; ++d) {
            multiply_add<T>(acc[2 * j][2 * d + odd], a[d], b[j][0], b[j][1]);
            multiply_add<T>(acc[2 * j + 1][2 * d + odd], a[d], b[j][2], b[j][3]);
          }
      }
    const TileOrigin<16> o(p, tile);
    const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
    const int d = (o.d + B::warp_depth(warp)) / 2, h = (o.h + B::warp_height(warp)) / 2, w = o.w / 2 + g;
    if (d >= pd || h >= ph || w >= pw) continue;
    const int64_t at = (((int64_t(o.n) * pd + d) * ph + h) * pw + w) * channels + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto sums = [&](int code) {
        const float* pair = acc[j][code / 4 * 2 + code % 2] + (code / 2 % 2) * 2;
        return make_float2(pair[0], pair[1]);
      };
      pool_window<T>(sums, p.slope, reinterpret_cast<Two<T>*>(static_cast<T*>(to.y) + at + 8 * j),
                     reinterpret_cast<uint16_t*>(to.arg + at + 8 * j));
    }
  }
#endif
}

template <class T>
__global__ void pack(const T* w, T* packed) {
  const int k = blockIdx.x, odd = blockIdx.y;
  for (int i = threadIdx.x; i < weight_row_bytes / 2; i += blockDim.x) {
    const int row = i / 16, at = i % 16 - (odd ? 0 : 4);
    packed[(odd * channels + k) * (weight_row_bytes / 2) + i] =
        row < 9 && at >= 0 && at < 12 ? w[(k * 9 + row) * 12 + at] : from_float<T>(0.0f);
  }
}

constexpr int weight_threads = 256, weight_stages = 4, windows = 32;
constexpr int gradient_bytes = windows * channels * 2, arg_bytes = windows * channels;
constexpr int stage_bytes = halo_bytes + 2 * gradient_bytes + arg_bytes;
/// At the end the sums of half of the warps wait here for those of the others.
constexpr int sums = 72, weight_bytes = std::max(weight_stages * stage_bytes + B::positions * 64, sums * 128 * 4);

template <class T>
__device__ void copy_stage(const MmaConv& p, int tile, const T* x, const MmaSource& dy, uint32_t to) {
  const TileOrigin<16> o(p, tile);
  copy_halo<T, weight_threads>(p, o, x, to);
  if (threadIdx.x >= windows * channels / 8) return;
  const int slot = threadIdx.x % 4, window = threadIdx.x / 4;
  const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
  const int d = o.d / 2 + window / 16, h = o.h / 2 + window / 8 % 2, w = o.w / 2 + window % 8;
  const bool valid = d < pd && h < ph && w < pw;
  const int64_t at = valid ? (((int64_t(o.n) * pd + d) * ph + h) * pw + w) * channels + slot * 8 : 0;
  const uint32_t gradient = to + halo_bytes, output = gradient + gradient_bytes, arg = output + gradient_bytes;
  copy_16(gradient + threadIdx.x * 16, static_cast<const T*>(dy.gradient) + at, valid);
  copy_16(output + threadIdx.x * 16, static_cast<const T*>(dy.output) + at, valid);
  copy_8(arg + threadIdx.x * 8, dy.arg + at, valid);
}

/// Positions in rows of 64 bytes: of each row of sixteen the even ones first.
template <class T>
__device__ void spread(const MmaConv& p, uint32_t stage, uint32_t to) {
  if (threadIdx.x >= windows * channels / 8) return;
  const int slot = threadIdx.x % 4, window = threadIdx.x / 4;
  const uint32_t gradient = stage + halo_bytes, output = gradient + gradient_bytes, arg = output + gradient_bytes;
  const Spread<T> value(load_16(gradient + threadIdx.x * 16), load_16(output + threadIdx.x * 16),
                        load_8(arg + threadIdx.x * 8), p.slope);
  const int d = window / 16 * 2, h = window / 8 % 2 * 2;
#pragma unroll
  for (int code = 0; code < 8; ++code) {
    const int row = ((d + (code >> 2)) * B::height + h + (code >> 1 & 1)) * 16 + (code & 1) * 8 + window % 8;
    store_16(to + slot_64(row, slot), value.take(code));
  }
}

/// Blocks share the tiles out. A warp takes even or odd positions, 16 of the 32 output channels and half of the steps
/// of a tile, sixteen positions each; two blocks to a multiprocessor hide each other's waits.
template <class T>
__global__ void __launch_bounds__(weight_threads, 2)
    weights(const MmaConv p, const T* __restrict__ x, MmaSource dy, float* __restrict__ parts) {
#if CONVOY_MMA
  extern __shared__ __align__(128) char memory[];
  const uint32_t ring = shared_address(memory), spread_out = ring + weight_stages * stage_bytes;
  const int tiles = p.all_tiles(), warp = threadIdx.x / 32, lane = threadIdx.x % 32, stride = int(gridDim.x);
  const int odd = warp & 1, half_k = warp >> 1 & 1, second = warp >> 2;
  float acc[9][2][4] = {};
  const auto fetch = [&](int tile, int stage) {
    if (tile < tiles) copy_stage(p, tile, x, dy, ring + uint32_t(stage) * stage_bytes);
    commit_copies();
  };
  for (int ahead = 0; ahead < weight_stages - 1; ++ahead) fetch(int(blockIdx.x) + ahead * stride, ahead);
  for (int tile = int(blockIdx.x), at = 0; tile < tiles; tile += stride, at = (at + 1) % weight_stages) {
    wait_copies<weight_stages - 2>();
    __syncthreads();
    const uint32_t stage = ring + uint32_t(at) * stage_bytes;
    spread<T>(p, stage, spread_out);
    fetch(tile + (weight_stages - 1) * stride, (at + weight_stages - 1) % weight_stages);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // A step is the positions of one kind in two rows, one above the other.
      const int step = 4 * second + i, row_of_left = 2 * step + (lane >> 4), row_of_right = 2 * step + (lane >> 3 & 1);
      uint32_t a[4];
      load_transposed(a, spread_out + slot_64(row_of_left * 16 + odd * 8 + (lane & 7), 2 * half_k + (lane >> 3 & 1)));
      const uint32_t from =
          stage + uint32_t((row_of_right / B::height * halo_height + row_of_right % B::height) * row_bytes +
                           ((lane & 7) + odd + (lane >> 4)) * 16);
#pragma unroll
      for (int row = 0; row < 9; ++row) {
        uint32_t b[4];
        load_transposed(b, from + uint32_t((row / 3 * halo_height + row % 3) * row_bytes));
        multiply_add<T>(acc[row][0], a, b[0], b[1]);
        multiply_add<T>(acc[row][1], a, b[2], b[3]);
      }
    }
  }
  wait_copies<0>();
  // The second half's sums go to the first; then the even positions' to the odd ones', a tap apart.
  auto* waiting = reinterpret_cast<float*>(memory);
  __syncthreads();
  if (second)
#pragma unroll
    for (int i = 0; i < sums; ++i) waiting[i * 128 + threadIdx.x % 128] = acc[i / 8][i / 4 % 2][i % 4];
  __syncthreads();
  if (!second)
#pragma unroll
    for (int i = 0; i < sums; ++i) acc[i / 8][i / 4 % 2][i % 4] += waiting[i * 128 + threadIdx.x];
  float* out = parts + int64_t(blockIdx.x) * channels * 108;
  for (int turn = 0; turn < 2; ++turn) {
    __syncthreads();
    if (second || odd != turn) continue;
#pragma unroll
    for (int i = 0; i < sums; ++i) {
      const int row = i / 8, e = i % 4;
      const int k = 16 * half_k + 8 * (e >> 1) + lane / 4;
      const int at = 8 * (i / 4 % 2) + 2 * (lane % 4) + (e & 1) - (odd ? 0 : 4);
      if (at < 0 || at >= 12) continue;
      const int to = (k * 9 + row) * 12 + at;
      const float sum = acc[row][i / 4 % 2][e];
      odd ? out[to] = waiting[to] + sum : waiting[to] = sum;
    }
  }
#endif
}

}  // namespace
}  // namespace conv_mma_four

int mma_four_shared_bytes() {
  using namespace conv_mma_four;
  return weight_bytes;
}

void queue_mma_four(DType type, const MmaConv& p, const void* x, const void* packed, const float* bias,
                    const MmaResult& to) {
  using namespace conv_mma_four;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    const int blocks = std::min(p.all_tiles(), 4 * multiprocessors());
    forward<T><<<blocks, forward_threads, 0, stream()>>>(p, static_cast<const T*>(x), static_cast<const char*>(packed),
                                                         bias, to);
  });
  check_launch("conv_mma_four");
}

void queue_mma_four_pack(DType type, const void* w, void* packed) {
  using namespace conv_mma_four;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    pack<<<dim3(channels, 2), 160, 0, stream()>>>(static_cast<const T*>(w), static_cast<T*>(packed));
  });
  check_launch("conv_mma_four_pack");
}

void queue_mma_four_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy,
                            float* parts) {
  using namespace conv_mma_four;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    allow_shared_bytes(reinterpret_cast<const void*>(weights<T>), weight_bytes);
    weights<T><<<splits, weight_threads, weight_bytes, stream()>>>(p, static_cast<const T*>(x), dy, parts);
  });
  check_launch("conv_mma_four_weights");
}

}  // namespace convoy::cuda
