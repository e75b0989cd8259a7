// Convolutions of images in 16 bits on Hopper whose inputs have few channels and their outputs many, like DeepCAM's
// last transposed one, from 256 channels to the logits of three classes (of which this is backward_data). What a
// position of the outputs sees of the inputs, its window, is at most 31 numbers: a row of 32, so that all passes are
// small matrix products over the positions:
//
//   forward           outputs (positions x K)   = windows (positions x 32) * weights (32 x K)
//   backward_data     windows' gradients        = outputs' gradients (positions x K) * weights (K x 32), then added up
//   backward_weights  weights' gradients (K x 32) = outputs' gradients (K x positions) * windows (positions x 32),
//                     the last column of the windows being ones: the bias's gradient
//
// Positions of a tile beyond the image have a gradient of zero: an input that is not finite may reach a weight more.
//
// Bound by reading, or writing, the many channels once: the copy engine brings tiles of 8 x 16 positions, the next one
// while the block works on this one.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/conv/hopper_images.h"
#include "kernels/conv/mma_tile.h"
#include "kernels/device/bulk.h"
#include "kernels/device/early.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_few_tma {
namespace {

using namespace cuda;

constexpr const char* name = "cuda_few";
constexpr int warps = 8, threads = 32 * warps;
constexpr int tile_h = 8, tile_w = 16, tile = tile_h * tile_w;  ///< positions; sixteen of them to a warp
static_assert(tile == 16 * warps);
constexpr int window = 32, ones = window - 1, most_k = 256;
/// Rows of 32 numbers in shared memory, so far apart that eight of them lie in different banks.
constexpr int window_bytes = 2 * window + 16;
constexpr int piece_bytes = tile * 128;  ///< 64 channels of a tile
constexpr int most_shared_bytes = hopper_shared_bytes - 1024;

struct Few {
  ConvGeometry g;
  int step_h, step_w;       ///< from one tile's positions to the next one's
  int down, across, tiles;  ///< of an image, and all
  int64_t x_pitch, y_pitch;
  /// Of a tile of backward_data.
  __host__ __device__ int inputs() const { return step_h * g.stride[1] * step_w * g.stride[2] * g.c; }
  __host__ __device__ int window_size() const { return g.kernel[1] * g.kernel[2] * g.c; }
  __host__ __device__ int pieces() const { return g.k / 64; }
  __host__ __device__ int stage_bytes() const { return pieces() * piece_bytes; }
};

struct Tile {
  int row, column, image;  ///< in tiles; the image
  __device__ Tile(const Few& f, int i) {
    column = i % f.across, i /= f.across;
    row = i % f.down, image = i / f.down;
  }
};

__host__ __device__ inline int floor_div(int a, int b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/// Two tiles of many channels.
struct TilePair {
  uint32_t memory;
  StagePair stages;
  __device__ uint32_t at(const Few& f, int stage) const { return memory + uint32_t(stage * f.stage_bytes()); }
  /// Has tile i brought, if there is one; its first position is first(axis, number of the tile along it). All threads
  /// may call it.
  template <class First>
  __device__ void fetch(const Few& f, const CUtensorMap& from, int stage, int i, First&& first) const {
    if (threadIdx.x > 0 || i >= f.tiles) return;
    const Tile tile(f, i);
    const int row = first(1, tile.row), column = first(2, tile.column);
    barrier_expect(stages.full(stage), f.stage_bytes());
    for (int piece = 0; piece < f.pieces(); ++piece)
      copy_piece(at(f, stage) + uint32_t(piece * piece_bytes), from, stages.full(stage), 64 * piece, column, row,
                 tile.image);
  }
};

/// The number of a window that belongs to the calling lane: where it lies, and of which of them.
template <class T>
class WindowLane {
 public:
  __device__ WindowLane(const Few& f, const T* x) : f_(f), x_(x), lane_(int(threadIdx.x) % 32) {
    const int c = lane_ % f.g.c, tap = lane_ / f.g.c;
    kh_ = tap / f.g.kernel[2] - f.g.pad[1], kw_ = tap % f.g.kernel[2] - f.g.pad[2];
    offset_ = (int64_t(kh_) * f.g.x[2] + kw_) * f.x_pitch + c;
  }
  /// Of output position (row, column).
  __device__ T load(int image, int row, int column) const {
    const ConvGeometry& g = f_.g;
    const int h = row * g.stride[1], w = column * g.stride[2];
    if (lane_ >= f_.window_size()) return from_float<T>(lane_ == ones ? 1.0f : 0.0f);
    if (h + kh_ < 0 || h + kh_ >= g.x[1] || w + kw_ < 0 || w + kw_ >= g.x[2]) return from_float<T>(0.0f);
    return x_[((int64_t(image) * g.x[1] + h) * g.x[2] + w) * f_.x_pitch + offset_];
  }

 private:
  const Few& f_;
  const T* x_;
  int lane_, kh_, kw_;
  int64_t offset_;
};

/// The windows of a warp's sixteen positions in a tile, a lane's number of each.
template <class T>
struct Windows {
  T v[16];
  __device__ void load(const WindowLane<T>& lane, const Tile& at) {
    const int warp = int(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = lane.load(at.image, at.row * tile_h + warp, at.column * tile_w + i);
  }
  __device__ void store(char* shared) const {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 16; ++i) *reinterpret_cast<T*>(shared + (16 * warp + i) * window_bytes + 2 * lane) = v[i];
  }
};
static_assert(tile_w == 16, "a warp's positions are a row of a tile");

/// y = x * w + bias.
template <class T>
__global__ void __launch_bounds__(threads, 3)
    forward(const __grid_constant__ Few f, const T* x, const T* w, const float* bias, T* y) {
#if CONVOY_WGMMA
  __shared__ __align__(16) char weights[most_k * window_bytes], windows[tile * window_bytes];
  const ConvGeometry& g = f.g;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  await_kernel_ahead();
  for (int i = int(threadIdx.x); i < g.k * window; i += threads) {
    const int k = i / window, n = i % window;
    *reinterpret_cast<T*>(weights + k * window_bytes + 2 * n) =
        n < f.window_size() ? w[k * f.window_size() + n] : from_float<T>(0.0f);
  }
  const WindowLane<T> of_lane(f, x);
  Windows<T> own;
  own.load(of_lane, Tile(f, int(blockIdx.x)));
#pragma unroll 1
  for (int i = int(blockIdx.x), next; i < f.tiles; i = next) {
    const Tile at(f, i);
    next = i + int(gridDim.x);
    __syncthreads();
    own.store(windows);
    __syncthreads();
    if (next < f.tiles) own.load(of_lane, Tile(f, next));
    uint32_t a[2][4];
    for (int half = 0; half < 2; ++half)
      load_matrices(a[half],
                    shared_address(windows + (16 * warp + lane % 16) * window_bytes + 32 * half + lane / 16 * 16));
    const int row = at.row * tile_h + warp, column = at.column * tile_w + lane / 4;
    T* to = y + ((int64_t(at.image) * g.y[1] + row) * g.y[2] + column) * f.y_pitch + 8 * (lane % 4);
    const bool inside = row < g.y[1];
    // The columns of four products of eight are so assigned to channels that a lane has eight neighbours.
    const int channel_of_row = lane % 8 / 2 * 8 + lane % 2;
#pragma unroll 1
    for (int k = 0; k < g.k; k += 32) {
      float c[4][4];
      for (int j = 0; j < 4; ++j) {
        for (int e = 0; e < 4; ++e) c[j][e] = bias ? bias[k + 8 * (lane % 4) + 2 * j + e % 2] : 0.0f;
        uint32_t b[4];
        load_matrices(b, shared_address(weights + (k + channel_of_row + 2 * j) * window_bytes + lane / 8 * 16));
        multiply_add<T>(c[j], a[0], b[0], b[1]);
        multiply_add<T>(c[j], a[1], b[2], b[3]);
      }
      for (int low = 0; low < 2; ++low) {
        uint4 out;
        uint32_t* words = &out.x;
        for (int j = 0; j < 4; ++j)
          words[j] = bits_of<T>(rounded_two<T>(make_float2(c[j][2 * low], c[j][2 * low + 1])));
        if (inside && column + 8 * low < g.y[2]) *reinterpret_cast<uint4*>(to + 8 * low * f.y_pitch + k) = out;
      }
    }
  }
#endif
}

constexpr int sums_pitch = window + 4;  ///< floats of shared memory from one position's to the next one's

/// An input of a tile: the sum of its first tap in shared memory, and where it lies.
struct Input {
  short first;
  uint8_t row, column, channel, kh, kw;
};

/// dx from dy: a tile has the positions that its share of the inputs is seen by.
template <class T>
__global__ void __launch_bounds__(threads, 1)
    backward_data(const __grid_constant__ Few f, const __grid_constant__ CUtensorMap dy, const T* w, const float* bias,
                  T* dx) {
#if CONVOY_WGMMA
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2];
  const ConvGeometry& g = f.g;
  const TilePair ring{(shared_address(memory) + 1023) & ~1023u, {barriers}};
  char* behind = memory + (ring.at(f, 2) - shared_address(memory));
  auto* sums = reinterpret_cast<float*>(behind);
  char* weights = behind + tile * sums_pitch * sizeof(float);
  const int weights_pitch = 2 * g.k + 16;
  auto* table = reinterpret_cast<Input*>(weights + window * weights_pitch);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  // The first input of a tile, and the first position that sees it.
  const auto first_input = [&](int axis, int i) { return i * (axis == 1 ? f.step_h : f.step_w) * g.stride[axis]; };
  const auto first_position = [&](int axis, int i) {
    return floor_div(first_input(axis, i) + g.pad[axis] - (g.kernel[axis] - 1) * g.dilation[axis] + g.stride[axis] - 1,
                     g.stride[axis]);
  };
  const auto fetch = [&](int i, int stage) { ring.fetch(f, dy, stage, i, first_position); };
  // The same in all tiles: tap t + stride of an input is seen by the position before.
  const int inputs = f.inputs(), next_line = g.stride[1] * g.kernel[2] * g.c - tile_w * sums_pitch,
            next_column = g.stride[2] * g.c - sums_pitch;
  for (int n = int(threadIdx.x); n < inputs; n += threads) {
    const int line = f.step_w * g.stride[2] * g.c, row = n / line, column = n % line / g.c, channel = n % g.c;
    const int h = row + g.pad[1], w = column + g.pad[2], kh = h % g.stride[1], kw = w % g.stride[2];
    const int position =
        ((h - kh) / g.stride[1] - first_position(1, 0)) * tile_w + (w - kw) / g.stride[2] - first_position(2, 0);
    table[n] = {short(position * sums_pitch + (kh * g.kernel[2] + kw) * g.c + channel),
                uint8_t(row),
                uint8_t(column),
                uint8_t(channel),
                uint8_t(kh),
                uint8_t(kw)};
  }
  ring.stages.begin();
  await_kernel_ahead();
  fetch(int(blockIdx.x), 0), fetch(int(blockIdx.x + gridDim.x), 1);
  for (int i = int(threadIdx.x); i < g.k * window; i += threads) {
    const int k = i / window, n = i % window;
    *reinterpret_cast<T*>(weights + n * weights_pitch + 2 * k) =
        n < f.window_size() ? w[k * f.window_size() + n] : from_float<T>(0.0f);
  }
  __syncthreads();

  int round = 0;
#pragma unroll 1
  for (int i = int(blockIdx.x); i < f.tiles; i += int(gridDim.x), ++round) {
    const int stage = round & 1;
    ring.stages.wait(round);
    float c[4][4] = {};
#pragma unroll 1
    for (int piece = 0; piece < f.pieces(); ++piece)
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint32_t a[4], b[4];
        load_matrices(
            a, ring.at(f, stage) + uint32_t(piece * piece_bytes) + slot_128(16 * warp + lane % 16, 2 * s + lane / 16));
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          load_matrices(b, shared_address(weights + (8 * j + lane / 16 * 8 + lane % 8) * weights_pitch +
                                          2 * (64 * piece + 16 * s + lane / 8 % 2 * 8)));
          multiply_add<T>(c[j], a, b[0], b[1]);
          multiply_add<T>(c[j + 1], a, b[2], b[3]);
        }
      }
    for (int j = 0; j < 4; ++j)
      for (int low = 0; low < 2; ++low)
        *reinterpret_cast<float2*>(sums + (16 * warp + lane / 4 + 8 * low) * sums_pitch + 8 * j + 2 * (lane % 4)) =
            make_float2(c[j][2 * low], c[j][2 * low + 1]);
    __syncthreads();
    fetch(i + 2 * int(gridDim.x), stage);

    const Tile at(f, i);
    const int first_h = first_input(1, at.row), first_w = first_input(2, at.column);
    T* to = dx + ((int64_t(at.image) * g.x[1] + first_h) * g.x[2] + first_w) * f.x_pitch;
    for (int n = int(threadIdx.x); n < inputs; n += threads) {
      const Input input = table[n];
      if (first_h + input.row >= g.x[1] || first_w + input.column >= g.x[2]) continue;
      float sum = bias ? bias[input.channel] : 0.0f;
      for (int kh = input.kh, line = input.first; kh < g.kernel[1]; kh += g.stride[1], line += next_line)
        for (int kw = input.kw, from = line; kw < g.kernel[2]; kw += g.stride[2], from += next_column)
          sum += sums[from];
      to[(int64_t(input.row) * g.x[2] + input.column) * f.x_pitch + input.channel] = from_float<T>(sum);
    }
    __syncthreads();
  }
#endif
}

/// Leaves gradients of weights [K][window], then of biases, for each block.
template <class T>
__global__ void __launch_bounds__(threads, 1)
    backward_weights(const __grid_constant__ Few f, const T* x, const __grid_constant__ CUtensorMap dy, float* parts) {
#if CONVOY_WGMMA
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2];
  const ConvGeometry& g = f.g;
  const TilePair ring{(shared_address(memory) + 1023) & ~1023u, {barriers}};
  char* windows = memory + (ring.at(f, 2) - shared_address(memory));
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, channels = 32 * warp;
  const auto fetch = [&](int i, int stage) {
    ring.fetch(f, dy, stage, i, [](int axis, int number) { return number * (axis == 1 ? tile_h : tile_w); });
  };
  ring.stages.begin();
  await_kernel_ahead();
  fetch(int(blockIdx.x), 0);
  const WindowLane<T> of_lane(f, x);
  Windows<T> own;
  own.load(of_lane, Tile(f, int(blockIdx.x)));
  float c[2][4][4] = {};
  int round = 0;
#pragma unroll 1
  for (int i = int(blockIdx.x); i < f.tiles; i += int(gridDim.x), ++round) {
    const int stage = round & 1, next = i + int(gridDim.x);
    own.store(windows);
    __syncthreads();
    fetch(next, stage ^ 1);
    if (next < f.tiles) own.load(of_lane, Tile(f, next));
    ring.stages.wait(round);
    if (channels < g.k)
#pragma unroll 2
      for (int s = 0; s < tile / 16; ++s) {
        uint32_t a[2][4], b[2][4];
        for (int m = 0; m < 2; ++m)
          load_transposed(a[m],
                          ring.at(f, stage) + uint32_t(channels / 64 * piece_bytes) +
                              slot_128(16 * s + lane / 16 * 8 + lane % 8, channels % 64 / 8 + 2 * m + lane / 8 % 2));
        for (int j = 0; j < 2; ++j)
          load_transposed(b[j],
                          shared_address(windows + (16 * s + lane % 16) * window_bytes + 32 * j + lane / 16 * 16));
        for (int m = 0; m < 2; ++m)
          for (int j = 0; j < 4; ++j) multiply_add<T>(c[m][j], a[m], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    __syncthreads();
  }
  if (channels >= g.k) return;
  float* part = parts + int64_t(blockIdx.x) * (f.window_size() + 1) * g.k;
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 4; ++e) {
        const int k = channels + 16 * m + lane / 4 + e / 2 * 8, n = 8 * j + 2 * (lane % 4) + e % 2;
        if (n < f.window_size())
          part[k * f.window_size() + n] = c[m][j][e];
        else if (n == ones)
          part[g.k * f.window_size() + k] = c[m][j][e];
      }
#endif
}

Few few(const Problem& p) {
  Few f{};
  f.g = conv_geometry(p);
  const bool data = p.op.kind == OpKind::conv_backward_data, weights = p.op.kind == OpKind::conv_backward_weights;
  // A tile's positions see some inputs that others see, too: backward_data takes those that no position outside sees.
  const auto step = [&](int axis, int positions) {
    return data ? positions - pieces(f.g.kernel[axis] - 1, f.g.stride[axis]) : positions;
  };
  f.step_h = step(1, tile_h), f.step_w = step(2, tile_w);
  if (f.step_h < 1 || f.step_w < 1) return f;
  const auto tiles = [&](int axis, int positions) {
    return data ? pieces(f.g.x[axis], positions * f.g.stride[axis]) : pieces(f.g.y[axis], positions);
  };
  f.down = tiles(1, f.step_h), f.across = tiles(2, f.step_w), f.tiles = int(f.g.n) * f.down * f.across;
  f.x_pitch = data ? p.out[0].pixel_pitch() : p.in[0].pixel_pitch();
  f.y_pitch = data ? p.in[0].pixel_pitch() : weights ? p.in[1].pixel_pitch() : p.out[0].pixel_pitch();
  return f;
}

int data_bytes(const Few& f) {
  return 2 * f.stage_bytes() + tile * sums_pitch * int(sizeof(float)) + window * (2 * f.g.k + 16) +
         f.inputs() * int(sizeof(Input)) + 1024;
}
int weights_bytes(const Few& f) {
  return 2 * f.stage_bytes() + tile * window_bytes + 1024;
}
int blocks_of(const Few& f, int at_once) {
  return std::min(f.tiles, at_once * multiprocessors());
}

CUtensorMap tile_map(const Few& f, const Tensor& y) {
  return image_map(name, y, f.g.y, f.g.n, {tile_w, tile_h});
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([f = few(p)](const KernelArgs& a) {
    expect_even_place(name, a.out[0], "an output", 16);
    dispatch_16(a.in[0].dtype(), [&](auto zero) {
      using T = decltype(zero);
      launch_early(forward<T>, dim3(static_cast<unsigned>(blocks_of(f, 3))), dim3(threads), 0, f,
                   data<const T>(a.in[0]), data<const T>(a.in[1]),
                   a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, data<T>(a.out[0]));
    });
  });
}

std::unique_ptr<Prepared> prepare_data(const Problem& p) {
  return prepared([f = few(p)](const KernelArgs& a) {
    const CUtensorMap dy = tile_map(f, a.in[0]);
    dispatch_16(a.in[0].dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto kernel = backward_data<T>;
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), most_shared_bytes);
      launch_early(kernel, dim3(static_cast<unsigned>(blocks_of(f, 1))), dim3(threads), data_bytes(f), f, dy,
                   data<const T>(a.in[1]), a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, data<T>(a.out[0]));
    });
  });
}

std::unique_ptr<Prepared> prepare_weights(const Problem& p) {
  const Few f = few(p);
  const int blocks = blocks_of(f, 1);
  const int64_t of_weights = int64_t(f.window_size()) * f.g.k, values = of_weights + f.g.k;
  return prepared(
      [f, blocks, of_weights, values](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float*>(a.workspace);
        const CUtensorMap dy = tile_map(f, a.in[1]);
        dispatch_16(a.in[0].dtype(), [&](auto zero) {
          using T = decltype(zero);
          const auto kernel = backward_weights<T>;
          allow_shared_bytes(reinterpret_cast<const void*>(kernel), most_shared_bytes);
          launch_early(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), weights_bytes(f), f,
                       data<const T>(a.in[0]), dy, parts);
        });
        add_parts(blocks, values, parts, ToTwoVectors{data<float>(a.out[0]), data<float>(a.out[1]), of_weights});
      },
      4 * blocks * values);
}

Support supports(const Problem& p) {
  if (const Support images = ungrouped_images(p); !images.ok) return images;
  const Few f = few(p);
  if (f.g.stride[1] > 2 || f.g.stride[2] > 2) return Support::no("strides of at most 2");
  if (f.g.dilation[1] != 1 || f.g.dilation[2] != 1) return Support::no("no dilation");
  if (f.window_size() > ones) return Support::no("windows of at most 31 inputs");
  if (f.g.k % 64 != 0 || f.g.k > most_k) return Support::no("64, 128, 192 or 256 output channels");
  if (f.y_pitch % 8 != 0) return Support::no("multiples of eight output channels");
  if (f.tiles == 0) return Support::no("taps too far apart for a tile");
  if (p.op.kind == OpKind::conv_backward_data && data_bytes(f) > most_shared_bytes)
    return Support::no("more inputs to a tile than shared memory holds");
  return Support::yes();
}

}  // namespace
}  // namespace conv_few_tma

std::vector<KernelPtr> conv_few_tma_kernels() {
  using namespace conv_few_tma;
  std::vector<KernelPtr> list;
  list.push_back(kernel(name, OpKind::conv_forward, supports, prepare_forward));
  list.push_back(kernel(name, OpKind::conv_backward_data, supports, prepare_data));
  list.push_back(kernel(name, OpKind::conv_backward_weights, supports, prepare_weights));
  return list;
}

}  // namespace convoy
