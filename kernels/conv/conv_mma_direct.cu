// Convolution on tensor cores without an im2col in memory. A block computes 256 output positions times 64 or 32
// channels. For each 32 input channels it copies the positions that its outputs see into shared memory once (4x4x16
// outputs see 6x6x18 inputs: 2.5 loads per output instead of 27), then runs through the 27 taps: the rows of the left
// operand are that memory at another offset, one ldmatrix address per position; the weights of three taps at a time
// come through a ring of three buffers. Positions of even and odd width lie apart, so that the windows of a pool, two
// positions apart, are neighbours in the banks.
//
// Where positions and output channels give too few blocks for the device, blocks share the input channels out, and a
// second pass adds their sums in order and ends the convolution.
//
// Per 16 channels and tap a warp loads 4 + 4 fragments for 32 products: shared memory gives 128 bytes a clock, so the
// loads take as long as mma.sync needs (about 70 % of the rate of Hopper's wgmma).
#include "kernels/conv/conv_mma_kernels.h"

namespace convoy::cuda {
namespace conv_mma_direct {
namespace {

constexpr int threads = 128, stages = 3, chunk = 32;

template <int columns>
struct Halo {
  using Base = Tile<columns>;
  static constexpr int depth = Base::depth + 2, height = Base::height + 2, width = Base::width + 2;
  static constexpr int rows = depth * height * width;
  /// Even positions first.
  static __device__ int row(int d, int h, int w) { return (d * height + h) * width + (w & 1) * (width / 2) + (w >> 1); }
};

template <int columns, int block_k>
constexpr int shared_bytes() {
  return Halo<columns>::rows * 64 + stages * 3 * block_k * 64;
}

template <class T, int columns>
__device__ void copy_halo(const MmaConv& p, const TileOrigin<columns>& o, int channel, const T* x, uint32_t to) {
  using H = Halo<columns>;
  for (int i = threadIdx.x; i < H::rows * 4; i += threads) {
    const int slot = i & 3, at = i >> 2;
    const int hw = at % H::width, hh = at / H::width % H::height, hd = at / (H::width * H::height);
    const int d = o.d + hd - p.pad[0], h = o.h + hh - p.pad[1], w = o.w + hw - p.pad[2];
    const bool valid = d >= 0 && h >= 0 && w >= 0 && d < p.d && h < p.h && w < p.w;
    const T* from = valid ? x + (((int64_t(o.n) * p.d + d) * p.h + h) * p.w + w) * p.c + channel + slot * 8 : x;
    copy_16(to + slot_64(H::row(hd, hh, hw), slot), from, valid);
  }
}

/// The same where x is a gradient of which only the pooled map is stored.
template <class T, int columns>
__device__ void spread_halo(const MmaConv& p, const TileOrigin<columns>& o, int channel, const MmaSource& from,
                            uint32_t to) {
  using H = Halo<columns>;
  constexpr int windows_d = H::depth / 2 + 1, windows_h = H::height / 2 + 1, windows_w = H::width / 2 + 1;
  const int pd = p.d / 2, ph = p.h / 2, pw = p.w / 2;
  const int d0 = o.d - p.pad[0], h0 = o.h - p.pad[1], w0 = o.w - p.pad[2];
  for (int i = threadIdx.x; i < windows_d * windows_h * windows_w * 4; i += threads) {
    const int slot = i & 3, at = i >> 2;
    const int wd = (d0 >> 1) + at / (windows_w * windows_h), wh = (h0 >> 1) + at / windows_w % windows_h,
              ww = (w0 >> 1) + at % windows_w;
    uint4 gradient{}, output{};
    uint2 arg{};
    if (wd >= 0 && wh >= 0 && ww >= 0 && wd < pd && wh < ph && ww < pw) {
      const int64_t pixel = (((int64_t(o.n) * pd + wd) * ph + wh) * pw + ww) * p.c + channel + slot * 8;
      gradient = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(from.gradient) + pixel));
      output = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(from.output) + pixel));
      arg = __ldg(reinterpret_cast<const uint2*>(from.arg + pixel));
    }
    const Spread<T> spread(gradient, output, arg, p.slope);
    for (int code = 0; code < 8; ++code) {
      const int d = 2 * wd + (code >> 2) - d0, h = 2 * wh + (code >> 1 & 1) - h0, w = 2 * ww + (code & 1) - w0;
      if (d >= 0 && h >= 0 && w >= 0 && d < H::depth && h < H::height && w < H::width)
        store_16(to + slot_64(H::row(d, h, w), slot), spread.take(code));
    }
  }
}

/// Weights of one row of taps: rows tap * block_k + k.
template <class T, int block_k>
__device__ void copy_weights(const MmaConv& p, int first_k, int tap, int channel, const T* w, uint32_t to) {
  for (int i = threadIdx.x; i < 3 * block_k * 4; i += threads) {
    const int slot = i & 3, row = i >> 2, k = row % block_k, kw = row / block_k;
    copy_16(to + slot_64(row, slot), w + (int64_t(first_k + k) * 27 + tap + kw) * p.c + channel + slot * 8, true);
  }
}

__device__ float2 bias_of(const float* bias, int column) {
  return bias ? make_float2(bias[column], bias[column + 1]) : make_float2(0, 0);
}

template <class T, int columns, int block_k, bool spreads, Ending ending>
__global__ void __launch_bounds__(threads, 2)
    direct(const MmaConv p, MmaSource from, const T* __restrict__ w, const float* __restrict__ bias, MmaResult to,
           float* __restrict__ parts) {
#if CONVOY_MMA
  using H = Halo<columns>;
  using B = Tile<columns>;
  extern __shared__ __align__(128) char memory[];
  const uint32_t halo = shared_address(memory), ring = halo + H::rows * 64;
  constexpr uint32_t stage_bytes = 3 * block_k * 64;
  const TileOrigin<columns> o(p, int(blockIdx.x));
  const int first_k = int(blockIdx.y) * block_k;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = p.c / chunk, split = int(blockIdx.z), splits = int(gridDim.z);
  const int begin = chunks * split / splits, end = chunks * (split + 1) / splits;
  constexpr int rows = 9;  // of taps
  const int steps = end * rows;

  const auto prefetch = [&](int step) {
    if (step < steps)
      copy_weights<T, block_k>(p, first_k, step % rows * 3, step / rows * chunk, w,
                               ring + uint32_t(step % stages) * stage_bytes);
    commit_copies();
  };
  prefetch(begin * rows), prefetch(begin * rows + 1);

  // Of the left operand: this lane's row (window, odd position) and half of 16 channels; of the right one: row and
  // half.
  const int window = lane & 7, odd = lane >> 3 & 1, half = lane >> 4;
  const int base = H::row(B::warp_depth(warp), B::warp_height(warp) + B::window_height(window), 0);
  const int across = B::window_width(window) / 2;
  const int right_row = (lane & 7) + 8 * (lane >> 4), right_half = lane >> 3 & 1;

  float acc[block_k / 8][4][4] = {};
  for (int step = begin * rows, c = begin * chunk; c < end * chunk; c += chunk) {
    __syncthreads();  // nobody reads the positions of the last channels any more
    if constexpr (spreads)
      spread_halo<T>(p, o, c, from, halo);
    else
      copy_halo(p, o, c, static_cast<const T*>(from.x), halo);
    commit_copies();
    wait_copies<0>();
#pragma unroll 1
    for (int kd = 0; kd < 3; ++kd)
#pragma unroll 1
      for (int kh = 0; kh < 3; ++kh, ++step) {
        wait_copies<1>();
        __syncthreads();
        prefetch(step + 2);
        const uint32_t weights = ring + uint32_t(step % stages) * stage_bytes;
#pragma unroll 1
        for (int kw = 0; kw < 3; ++kw) {
          const int tap =
              base + (kd * H::height + kh) * H::width + ((odd + kw) & 1) * (H::width / 2) + across + ((odd + kw) >> 1);
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            uint32_t a[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              load_matrices(a[i], halo + slot_64(tap + ((i >> 1) * H::height + (i & 1)) * H::width, 2 * part + half));
#pragma unroll
            for (int j = 0; j < block_k / 16; ++j) {
              uint32_t b[4];
              load_matrices(b, weights + slot_64(kw * block_k + 16 * j + right_row, 2 * part + right_half));
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                multiply_add<T>(acc[2 * j][i], a[i], b[0], b[1]);
                multiply_add<T>(acc[2 * j + 1][i], a[i], b[2], b[3]);
              }
            }
          }
        }
      }
  }

  const int g = lane / 4, column = first_k + 2 * (lane % 4);
  const int d = o.d + B::warp_depth(warp), h = o.h + B::warp_height(warp) + B::window_height(g),
            v = o.w + B::window_width(g);
  T* y = static_cast<T*>(to.y);
  if constexpr (ending == Ending::pool) {
    const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
    if (d / 2 >= pd || h / 2 >= ph || v / 2 >= pw) return;
    const int64_t pixel = ((int64_t(o.n) * pd + d / 2) * ph + h / 2) * pw + v / 2;
#pragma unroll
    for (int j = 0; j < block_k / 8; ++j) {
      const int64_t at = pixel * p.k + column + 8 * j;
      const float2 b = bias_of(bias, column + 8 * j);
      const auto sums = [&](int code) {
        const float* pair = acc[j][code / 2] + code % 2 * 2;
        return make_float2(pair[0] + b.x, pair[1] + b.y);
      };
      pool_window<T>(sums, p.slope, reinterpret_cast<Two<T>*>(y + at), reinterpret_cast<uint16_t*>(to.arg + at));
    }
  } else {
#pragma unroll
    for (int code = 0; code < 8; ++code) {
      const int dd = d + (code >> 2), hh = h + (code >> 1 & 1), vv = v + (code & 1);
      if (dd >= p.od || hh >= p.oh || vv >= p.ow) continue;
      const int64_t at = (((int64_t(o.n) * p.od + dd) * p.oh + hh) * p.ow + vv) * p.k + column;
#pragma unroll
      for (int j = 0; j < block_k / 8; ++j) {
        const float* pair = acc[j][code >> 1] + 2 * (code & 1);
        if constexpr (ending == Ending::part) {
          const int64_t part = int64_t(split) * p.n * p.od * p.oh * p.ow * p.k;
          *reinterpret_cast<float2*>(parts + part + at + 8 * j) = make_float2(pair[0], pair[1]);
        } else {
          const float2 b = bias_of(bias, column + 8 * j);
          *reinterpret_cast<Two<T>*>(y + at + 8 * j) = rounded_two<T>(make_float2(pair[0] + b.x, pair[1] + b.y));
        }
      }
    }
  }
#endif
}

__device__ float2 sum_of_parts(const float* parts, int splits, int64_t elements, int64_t at) {
  float2 sum = make_float2(0, 0);
#pragma unroll 8
  for (int i = 0; i < splits; ++i) {
    const float2 part = *reinterpret_cast<const float2*>(parts + i * elements + at);
    sum.x += part.x, sum.y += part.y;
  }
  return sum;
}

constexpr int finish_threads = 128, pairs_of_block = finish_threads / 8;

/// A thread for two channels of a position; where a pool follows, a block for a window of sixteen such pairs.
template <class T, bool pools>
__global__ void __launch_bounds__(finish_threads)
    finish(const MmaConv p, int splits, const float* parts, const float* bias, MmaResult to) {
#if CONVOY_MMA
  const int64_t elements = int64_t(p.n) * p.od * p.oh * p.ow * p.k;
  const unsigned pairs = static_cast<unsigned>(p.k / 2);
  if constexpr (pools) {
    __shared__ float2 sums[8][pairs_of_block];
    const unsigned groups = pairs / pairs_of_block, code = threadIdx.x / pairs_of_block,
                   lane = threadIdx.x % pairs_of_block;
    const unsigned pair = blockIdx.x % groups * pairs_of_block + lane, window = blockIdx.x / groups;
    const unsigned w = window % (p.ow / 2), h = window / (p.ow / 2) % (p.oh / 2),
                   slice = window / (p.ow / 2) / (p.oh / 2);
    // The slices of all samples follow each other, and depths are even.
    const int64_t at = (int64_t(2 * slice + (code >> 2)) * p.oh + 2 * h + (code >> 1 & 1)) * p.ow + 2 * w + (code & 1);
    const float2 sum = sum_of_parts(parts, splits, elements, at * p.k + 2 * pair), b = bias_of(bias, int(2 * pair));
    sums[code][lane] = make_float2(sum.x + b.x, sum.y + b.y);
    __syncthreads();
    if (code > 0) return;
    const int64_t i = int64_t(window) * pairs + pair;
    pool_window<T>([&](int c) { return sums[c][lane]; }, p.slope, reinterpret_cast<Two<T>*>(to.y) + i,
                   reinterpret_cast<uint16_t*>(to.arg) + i);
  } else {
    const int64_t i = int64_t(blockIdx.x) * finish_threads + threadIdx.x;
    if (2 * i >= elements) return;
    const float2 sum = sum_of_parts(parts, splits, elements, 2 * i), b = bias_of(bias, int(i % pairs * 2));
    reinterpret_cast<Two<T>*>(to.y)[i] = rounded_two<T>(make_float2(sum.x + b.x, sum.y + b.y));
  }
#endif
}

/// 32 x 32 elements of one tap through shared memory.
template <class T>
__global__ void turn(int k, int taps, int c, const T* w, T* turned) {
  __shared__ T block[32][33];
  const int tap = blockIdx.z, k0 = blockIdx.x * 32, c0 = blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += 8)
    block[i][threadIdx.x] = w[(int64_t(k0 + i) * taps + tap) * c + c0 + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8)
    turned[(int64_t(c0 + i) * taps + taps - 1 - tap) * k + k0 + threadIdx.x] = block[threadIdx.x][i];
}

template <class T, int columns, int block_k, bool spreads, Ending ending>
void launch(const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w, const float* bias,
            const MmaResult& to) {
  constexpr int bytes = shared_bytes<columns, block_k>();
  const auto function = direct<T, columns, block_k, spreads, ending>;
  allow_shared_bytes(reinterpret_cast<const void*>(function), bytes);
  const dim3 grid(static_cast<unsigned>(p.all_tiles()), static_cast<unsigned>(p.k / block_k),
                  static_cast<unsigned>(cut.splits));
  function<<<grid, threads, bytes, stream()>>>(p, from, static_cast<const T*>(w), bias, to, cut.parts);
  check_launch("conv_mma_direct");
}

template <class T, bool pools>
void launch_finish(const MmaConv& p, const MmaCut& cut, const float* bias, const MmaResult& to) {
  // With a pool eight threads share what is one value in the end, without one a thread has its own.
  const int64_t work = int64_t(p.n) * p.od * p.oh * p.ow * (p.k / 2);
  const auto blocks = static_cast<unsigned>((work + finish_threads - 1) / finish_threads);
  finish<T, pools><<<blocks, finish_threads, 0, stream()>>>(p, cut.splits, cut.parts, bias, to);
  check_launch("conv_mma_finish");
}

template <class T, int columns, int block_k>
void launch_kind(const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w, const float* bias,
                 const MmaResult& to) {
  if (cut.splits > 1) {
    from.arg ? launch<T, columns, block_k, true, Ending::part>(p, cut, from, w, bias, to)
             : launch<T, columns, block_k, false, Ending::part>(p, cut, from, w, bias, to);
  } else if (to.arg) {
    launch<T, columns, block_k, false, Ending::pool>(p, cut, from, w, bias, to);
  } else if (from.arg) {
    launch<T, columns, block_k, true, Ending::store>(p, cut, from, w, bias, to);
  } else {
    launch<T, columns, block_k, false, Ending::store>(p, cut, from, w, bias, to);
  }
}

}  // namespace
}  // namespace conv_mma_direct

int mma_direct_shared_bytes() {
  using namespace conv_mma_direct;
  return shared_bytes<16, 64>();
}

void queue_mma_direct(DType type, const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w,
                      const float* bias, const MmaResult& to) {
  using namespace conv_mma_direct;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    if (cut.columns == 16)
      cut.block_k == 64 ? launch_kind<T, 16, 64>(p, cut, from, w, bias, to)
                        : launch_kind<T, 16, 32>(p, cut, from, w, bias, to);
    else
      cut.block_k == 64 ? launch_kind<T, 8, 64>(p, cut, from, w, bias, to)
                        : launch_kind<T, 8, 32>(p, cut, from, w, bias, to);
  });
  if (cut.splits > 1) queue_mma_finish(type, p, cut, bias, to);
}

void queue_mma_finish(DType type, const MmaConv& p, const MmaCut& cut, const float* bias, const MmaResult& to) {
  using namespace conv_mma_direct;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    to.arg ? launch_finish<T, true>(p, cut, bias, to) : launch_finish<T, false>(p, cut, bias, to);
  });
}

void queue_mma_turn(DType type, int k, int taps, int c, const void* w, void* turned) {
  using namespace conv_mma_direct;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    turn<<<dim3(static_cast<unsigned>(k / 32), static_cast<unsigned>(c / 32), static_cast<unsigned>(taps)), dim3(32, 8),
           0, stream()>>>(k, taps, c, static_cast<const T*>(w), static_cast<T*>(turned));
  });
  check_launch("conv_mma_turn");
}

}  // namespace convoy::cuda
