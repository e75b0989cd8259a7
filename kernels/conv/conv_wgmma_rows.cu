// Convolutions of images to at most 32 channels, stride 1, on Hopper's warpgroup products. Such products have 64 rows:
// a warpgroup takes two neighbouring rows of outputs at once, 32 channels of each, for 144 positions across. A row of
// inputs is multiplied with tap t of the upper row and tap t - 1 of the lower one, the first and the last of them with
// zeros in place of the missing one: (taps + 1) / taps of the arithmetic. A value that is not finite so reaches a row
// more than its taps: zero times infinity is not zero.
//
// Both operands come from shared memory: weights of 64 input channels and all taps, each row of taps replaced by the
// next 64 channels' once both warpgroups are done with it; rows of inputs through a ring of stages, each once for the
// taps across (other first rows of the same copy, wgmma.h) and for both warpgroups, of which the second lies two rows
// of outputs lower. The third warpgroup's first thread has the copy engine bring all that.
//
// Per 64 x 144 x 16 products, 72 clocks of the tensor cores, shared memory gives 6.5 KiB, in 52.
#include "kernels/conv/channel_neighbours.h"
#include "kernels/conv/mma_tile.h"
#include "kernels/conv/rows.h"
#include "kernels/device/bulk.h"
#include "kernels/device/early.h"

namespace convoy::cuda {
namespace conv_wgmma_rows {
namespace {

constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
constexpr int consumer_rows = rows_high / 2;
static_assert(rows_shared_bytes + 1024 /* to a multiple of it */ + 1024 <= hopper_shared_bytes);

/// An item: a tile, and the chunks of input channels that belong to its share.
struct Item {
  int64_t image;
  int row, column, split, begin, end;
  __device__ Item(const Rows& r, int64_t item) {
    column = int(item % r.tiles_w) * rows_wide, item /= r.tiles_w;
    row = int(item % r.tiles_h) * rows_high, item /= r.tiles_h;
    split = int(item % r.splits), image = item / r.splits;
    begin = r.chunks * split / r.splits, end = r.chunks * (split + 1) / r.splits;
  }
};

/// Two neighbouring channels' sums in the outputs' type, behind the activation.
template <class T>
__device__ inline uint32_t ended(float2 sum, float slope) {
  const Two<T> v = rounded_two<T>(sum);
  return slope == 1 ? bits_of<T>(v) : leaky_two<T>(v, v, slope);
}

/// Begins one tap's products with so many sixteens of channels, when those of the tap before the last are done. (In one
/// piece, each of them: the compiler lets products run on only between a beginning and an end that it sees together.)
template <class T, int sixteens>
__device__ __forceinline__ void multiply_column(float (&acc)[rows_wide / 2], const TurnedRows& a, const TurnedRows& b) {
  products_begin();
#pragma unroll
  for (int s = 0; s < sixteens; ++s) multiply_inner<T>(acc, a.sixteens(s), b.sixteens(s));
  commit_products();
  wait_products<1>();
}

template <class T>
__global__ void __launch_bounds__(threads, 1)
    forward(const __grid_constant__ Rows r, const __grid_constant__ CUtensorMap x,
            const __grid_constant__ CUtensorMap w, const RowsResult to) {
#if CONVOY_WGMMA
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2 * (most_rows_stages + most_rows_taps)];
  const uint32_t weights = (shared_address(memory) + 1023) & ~1023u, ring = weights + uint32_t(r.weight_bytes());
  const auto barrier = [&](int i) { return shared_address(barriers + i); };
  const auto full = [&](int stage) { return barrier(stage); };
  const auto empty = [&](int stage) { return barrier(most_rows_stages + stage); };
  const auto taps_full = [&](int kh) { return barrier(2 * most_rows_stages + kh); };
  const auto taps_empty = [&](int kh) { return barrier(2 * most_rows_stages + most_rows_taps + kh); };
  const ConvGeometry& g = r.g;
  const int high = g.kernel[1], wide = g.kernel[2], input_rows = high + rows_high - 1;
  // Taps of a column one above the other, the last first: tap t - 1 follows tap t. Zeros are tap -1 and tap `high`.
  const auto tap = [&](int kh, int kw) { return kw * (high + 1) + high - kh; };

  if (threadIdx.x == 0) {
    for (int i = 0; i < r.stages; ++i) barrier_begin(full(i), 1), barrier_begin(empty(i), consumers / 32);
    for (int i = 0; i < high; ++i) barrier_begin(taps_full(i), 1), barrier_begin(taps_empty(i), consumers / 32);
    barriers_begun();
  }
  for (int i = int(threadIdx.x); i < (wide + 1) * (rows_tap_bytes / 16); i += threads)
    store_16(
        weights + uint32_t(i / (rows_tap_bytes / 16) * (high + 1) * rows_tap_bytes + i % (rows_tap_bytes / 16) * 16),
        make_uint4(0, 0, 0, 0));
  show_to_products();
  __syncthreads();
  await_kernel_ahead();

  if (threadIdx.x < warpgroup) {
    give_registers<40>();
    if (threadIdx.x > 0) return;
    const int bytes = (rows_wide + (wide - 1) * g.dilation[2]) * rows_line_bytes;
    int stage = 0, round = 0, chunk = 0;
    for (int64_t i = blockIdx.x; i < r.items; i += gridDim.x) {
      const Item item(r, i);
      for (int c = item.begin; c < item.end; ++c, ++chunk)
        for (int h = 0; h < input_rows; ++h) {
          if (round > 0) barrier_wait(empty(stage), (round - 1) & 1);
          barrier_expect(full(stage), bytes);
          copy_piece(ring + uint32_t(stage * r.x_bytes), x, full(stage), 64 * c, item.column - g.pad[2],
                     item.row + h - g.pad[1], item.image);
          if (++stage == r.stages) stage = 0, ++round;
          if (h >= high) continue;
          if (chunk > 0) barrier_wait(taps_empty(h), (chunk - 1) & 1);
          barrier_expect(taps_full(h), wide * rows_tap_bytes);
          for (int kw = 0; kw < wide; ++kw)
            copy_piece(weights + uint32_t(tap(h, kw) * rows_tap_bytes), w, taps_full(h), 64 * c, 0, h * wide + kw, 0);
        }
    }
    return;
  }

  take_registers<224>();
  const int consumer = warpgroup_number() - 1, lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % warpgroup / 32;
  const TurnedRows taps(weights, 0), inputs(ring, 0);
  const Neighbours neighbours(lane);
  const int channel = 16 * (warp % 2);
  int stage = 0, parity = 0, taps_parity = 0;
  // What the products under way read: a stage, and the row of taps that they read last, or -1.
  int held = -1, held_tap = -1;
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) {
      if (held >= 0) barrier_arrive(empty(held));
      if (held_tap >= 0) barrier_arrive(taps_empty(held_tap));
    }
    held = held_tap = -1;
  };
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < r.items; i += gridDim.x) {
    const Item item(r, i);
    float acc[rows_wide / 2] = {};
#pragma unroll 1
    for (int c = item.begin; c < item.end; ++c, taps_parity ^= 1) {
      const int sixteens = min(4, (g.c - 64 * c + 15) / 16);
#pragma unroll 1
      for (int h = 0; h < input_rows; ++h) {
        barrier_wait(full(stage), parity);
        const int kh = h - consumer_rows * consumer;
        const bool mine = kh >= 0 && kh <= high;
        if (mine && kh < high) barrier_wait(taps_full(kh), taps_parity);
        if (!mine) wait_products<0>(), release();
        const int columns = mine ? wide : 0;
#pragma unroll 1
        for (int kw = 0; kw < columns; ++kw) {
          const TurnedRows a = taps + tap(kh, kw) * rows_channels,
                           b = inputs + (stage * (r.x_bytes / rows_line_bytes) + kw * g.dilation[2]);
          switch (sixteens) {
            case 1:
              multiply_column<T, 1>(acc, a, b);
              break;
            case 2:
              multiply_column<T, 2>(acc, a, b);
              break;
            case 3:
              multiply_column<T, 3>(acc, a, b);
              break;
            default:
              multiply_column<T, 4>(acc, a, b);
          }
          if (kw == 0) release();
        }
        held = stage, held_tap = mine ? kh - 1 : -1;
        if (++stage == r.stages) stage = 0, parity ^= 1;
      }
    }
    wait_products<0>();
    release();

    const int row = item.row + consumer_rows * consumer + warp / 2;
    float2 bias = make_float2(0, 0);
    if (to.bias && !to.parts) {
      const int k = channel + lane / 4;
      bias = make_float2(k < g.k ? to.bias[k] : 0.0f, k + 8 < g.k ? to.bias[k + 8] : 0.0f);
    }
    const int64_t line = (item.image * g.y[1] + row) * g.y[2];
#pragma unroll
    for (int j = 0; j < rows_wide / 8; ++j)
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int column = item.column + 8 * j + 2 * (lane % 4) + b, k = channel + neighbours.first;
        const bool inside = row < g.y[1] && column < g.y[2];
        const float2 sum = make_float2(acc[4 * j + b] + bias.x, acc[4 * j + 2 + b] + bias.y);
        if (to.parts) {
          const float2 pair = neighbours.exchange(sum);
          if (inside)
            *reinterpret_cast<float2*>(to.parts + (item.split * r.positions() + line + column) * rows_channels + k) =
                pair;
        } else {
          uint32_t pair = ended<T>(sum, r.slope), none = 0;
          neighbours.exchange(pair, none);
          if (inside && k < g.k)
            *reinterpret_cast<uint32_t*>(static_cast<T*>(to.y) + (line + column) * r.pitch + k) = pair;
        }
      }
  }
#endif
}

/// Adds the shares in their order; a thread to two channels.
template <class T>
__global__ void finish(const __grid_constant__ Rows r, const RowsResult to) {
#if CONVOY_WGMMA
  await_kernel_ahead();
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, position = i / (rows_channels / 2);
  const int k = int(i % (rows_channels / 2)) * 2;
  if (position >= r.positions() || k >= r.g.k) return;
  float2 sum = make_float2(0, 0);
  for (int split = 0; split < r.splits; ++split) {
    const float2 part =
        *reinterpret_cast<const float2*>(to.parts + (split * r.positions() + position) * rows_channels + k);
    sum.x += part.x, sum.y += part.y;
  }
  if (to.bias) sum.x += to.bias[k], sum.y += to.bias[k + 1];
  *reinterpret_cast<uint32_t*>(static_cast<T*>(to.y) + position * r.pitch + k) = ended<T>(sum, r.slope);
#endif
}

__global__ void pack(int k, int taps, int c8, const uint4* w, uint4* packed) {
  await_kernel_ahead();
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= int64_t(k) * taps * c8) return;
  const int64_t row = i / c8;
  packed[i] = w[(row % k * taps + row / k) * c8 + i % c8];
}

}  // namespace
}  // namespace conv_wgmma_rows

void queue_wgmma_rows(DType type, const Rows& r, const CUtensorMap& x, const CUtensorMap& w, const RowsResult& to) {
  using namespace conv_wgmma_rows;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = forward<T>;
    allow_shared_bytes(reinterpret_cast<const void*>(kernel), rows_shared_bytes + 1024);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(r.items, multiprocessors()));
    launch_early(kernel, dim3(blocks), dim3(threads), r.weight_bytes() + r.stages * r.x_bytes + 1024, r, x, w, to);
    if (r.splits > 1)
      launch_early(finish<T>, dim3(static_cast<unsigned>(pieces(r.positions() * rows_channels / 2, 256))), dim3(256), 0,
                   r, to);
  });
}

void queue_rows_pack(int k, int taps, int c, const void* w, void* packed) {
  using namespace conv_wgmma_rows;
  const int64_t work = int64_t(k) * taps * (c / 8);
  launch_early(pack, dim3(static_cast<unsigned>(pieces(work, 128))), dim3(128), 0, k, taps, c / 8,
               static_cast<const uint4*>(w), static_cast<uint4*>(packed));
}

}  // namespace convoy::cuda
