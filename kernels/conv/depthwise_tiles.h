// Depthwise 3x3 convolutions with stride 1, and the data gradients of those with stride 2, as kernels in which a thread
// takes several strips of outputs below each other and loads every row of inputs once (depthwise_cuda.cu).
#pragma once

#include "kernels/conv/depthwise_geometry.h"
#include "kernels/device/pixels.h"

namespace convoy::cuda::depthwise_3x3 {

/// Where a thread takes strips of several rows: its channels, and the rows, of maps and of weight gradients.
constexpr int channels_of_rows = 2, map_rows = 2, few_rows = 2, many_rows = 4;
/// Blocks that run at once on a multiprocessor, so that their registers hold what they load.
template <class T>
constexpr int tiles_at_once = sizeof(T) == 2 ? 3 : 2;
constexpr int weights_at_once = 2;

/// How blocks of stride 1 share the outputs: a block's threads below each other are two strips across times four of
/// several rows each. With a dilation, the outputs of a strip are as far apart as its taps.
struct Tiles {
  int across, down;  ///< of an image
  static constexpr int strips_across = 2, strips_down = 4, threads_down = strips_across * strips_down;
  Tiles(const Geometry& g, int rows) {
    const auto pieces = [](int extent, int piece) { return (extent + piece - 1) / piece; };
    // The i-th strip begins at i or behind it: there are no more than outputs.
    across = pieces(std::min(g.out[1], pieces(g.out[1], strip * g.dilation[1]) * g.dilation[1]), strips_across);
    down = pieces(std::min(g.out[0], pieces(g.out[0], rows * g.dilation[0]) * g.dilation[0]), strips_down);
  }
  __host__ __device__ int count() const { return across * down; }
};

/// The strips of a thread in one tile of an image: columns from `column` on, in rows from `row` on, g.dilation apart.
/// All threads of a warp have the same ones.
template <int rows>
struct Place {
  int row, column;
  __device__ Place(const Geometry& g, int across, int down) {
    const int thread = int(threadIdx.y);
    const auto first = [](int i, int each, int apart) { return i / apart * each * apart + i % apart; };
    column = first(across * Tiles::strips_across + thread % Tiles::strips_across, strip, g.dilation[1]);
    row = first(down * Tiles::strips_down + thread / Tiles::strips_across, rows, g.dilation[0]);
  }
  __device__ bool exists(const Geometry& g) const { return row < g.out[0] && column < g.out[1]; }
  /// Whether all that the strips read and write lies inside.
  __device__ bool inside(const Geometry& g) const {
    return row >= g.pad[0] && column >= g.pad[1] && row - g.pad[0] + (rows + 1) * g.dilation[0] < g.in[0] &&
           column - g.pad[1] + (strip + 1) * g.dilation[1] < g.in[1] && row + (rows - 1) * g.dilation[0] < g.out[0] &&
           column + (strip - 1) * g.dilation[1] < g.out[1];
  }
};

/// `down` x `across` pixels of an image, `apart` from each other, as they lie in memory; zeros outside it, where not
/// all are known to be inside. Addresses would take most instructions of these kernels: they are sums of one pointer
/// and steps in 32 bits.
template <bool inside, int down, int across, int width, class T>
struct Block {
  Pack<T, width> v[down][across];
  __device__ Block(const T* image, int pitch, const int extent[2], int row, int column, int channel,
                   const int apart[2]) {
    const char* line = reinterpret_cast<const char*>(image + (int64_t(row) * extent[1] + column) * pitch + channel);
    const int step = pitch * int(sizeof(T)) * apart[1], line_step = pitch * int(sizeof(T)) * extent[1] * apart[0];
#pragma unroll
    for (int i = 0; i < down; ++i, line += line_step)
#pragma unroll
      for (int j = 0; j < across; ++j) {
        if constexpr (!inside) {
          for (int k = 0; k < width; ++k) v[i][j].v[k] = from_float<T>(0);
          const int r = row + i * apart[0], c = column + j * apart[1];
          if (r < 0 || r >= extent[0] || c < 0 || c >= extent[1]) continue;
        }
        v[i][j] = *reinterpret_cast<const Pack<T, width>*>(line + int64_t(j) * step);
      }
  }
};

template <class F>
__device__ void with_inside(bool inside, F&& f) {
  if (inside)
    f(std::true_type());
  else
    f(std::false_type());
}

/// f(input row, its row of taps, output row) for those of a tile's rows that meet.
template <int rows, class F>
__device__ void for_rows(F&& f) {
#pragma unroll
  for (int h = 0; h < rows + 2; ++h)
#pragma unroll
    for (int kh = 0; kh < 3; ++kh)
      if (h - kh >= 0 && h - kh < rows) f(h, kh, h - kh);
}

/// What is done to which channels by a kernel of tiles; blocks: groups of channels and tiles across, `each` tiles down,
/// images.
template <class T>
struct TileWork {
  Geometry g;
  int packs, groups, each;
  bool flipped;
  Pixels<const T> x;
  const T* w;
  const float* bias;
  Pixels<T> y;
};

/// Weights and biases of a block's channels, read in the order of memory: gathered by each thread they cost more than a
/// strip does. All threads of the block make it.
template <int width>
class BlockWeights {
 public:
  template <class T>
  __device__ BlockWeights(const TileWork<T>& t, float* shared) : shared_(shared) {
    const int first = int(blockIdx.x) % t.groups * channels, thread = int(threadIdx.y * 32 + threadIdx.x);
    const int there = min(channels, t.packs * width - first);
    if (thread < there) shared[taps * row + thread] = t.bias ? t.bias[first + thread] : 0.0f;
    for (int i = thread; i < there * taps; i += 256)
      shared[(t.flipped ? taps - 1 - i % taps : i % taps) * row + i / taps] = to_float(t.w[first * taps + i]);
    __syncthreads();
    channel = first + own(), exists = own() < there;
    if (!exists) return;
    for (int tap = 0; tap < taps; ++tap)
      for (int k = 0; k < width; ++k) v[tap][k] = shared[tap * row + own() + k];
  }
  static constexpr int floats = (taps + 1) * (32 * width + 2);
  int channel;  ///< the thread's first
  bool exists;
  float v[taps][width];
  __device__ float bias(int k) const { return shared_[taps * row + own() + k]; }

 private:
  static constexpr int channels = 32 * width, row = channels + 2;
  static __device__ int own() { return int(threadIdx.x) * width; }
  const float* shared_;
};

/// Stores a thread's outputs, those that lie inside.
template <bool inside, int rows, int width, class T>
__device__ void store_strips(T* image, const Geometry& g, int64_t pitch, const Place<rows>& at,
                             const float (&sums)[rows][strip][width]) {
  const int size = int(pitch) * int(sizeof(T)), step = size * g.dilation[1],
            line_step = size * g.out[1] * g.dilation[0];
  char* line = reinterpret_cast<char*>(image + (int64_t(at.row) * g.out[1] + at.column) * pitch);
#pragma unroll
  for (int r = 0; r < rows; ++r, line += line_step)
#pragma unroll
    for (int s = 0; s < strip; ++s) {
      const int row = at.row + r * g.dilation[0], column = at.column + s * g.dilation[1];
      if (!inside && (row < 0 || row >= g.out[0] || column < 0 || column >= g.out[1])) continue;
      Pack<T, width> out;
      for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sums[r][s][k]);
      *reinterpret_cast<Pack<T, width>*>(line + int64_t(s) * step) = out;
    }
}

/// f(the thread's strips, the block's image, its outputs from the channel on) in all tiles of the block; they begin
/// `margin` rows and columns ahead of the outputs.
template <class T, class F>
__device__ void for_tiles(const TileWork<T>& t, int channel, int margin_rows, int margin_columns, F&& f) {
  const T* from = t.x.data + int64_t(blockIdx.z) * t.g.in[0] * t.g.in[1] * t.x.pitch;
  T* to = t.y.data + int64_t(blockIdx.z) * t.g.out[0] * t.g.out[1] * t.y.pitch + channel;
#pragma unroll 1
  for (int down = int(blockIdx.y) * t.each; down < (int(blockIdx.y) + 1) * t.each; ++down) {
    Place<map_rows> at(t.g, int(blockIdx.x) / t.groups, down);
    at.row -= margin_rows, at.column -= margin_columns;
    if (!at.exists(t.g)) return;
    f(at, from, to);
  }
}

/// The map with stride 1.
template <int width, class T>
__global__ void __launch_bounds__(256, tiles_at_once<T>) depthwise_tiles(const TileWork<T> t) {
  await_kernel_ahead();
  __shared__ __align__(8) float shared[BlockWeights<width>::floats];
  const BlockWeights<width> weights(t, shared);
  if (!weights.exists) return;
  const Geometry& g = t.g;
  for_tiles(t, weights.channel, 0, 0, [&](const Place<map_rows>& at, const T* from, T* to) {
    with_inside(at.inside(g), [&](auto inside) {
      const Block<inside, map_rows + 2, strip + 2, width, T> in(from, int(t.x.pitch), g.in, at.row - g.pad[0],
                                                                at.column - g.pad[1], weights.channel, g.dilation);
      float sums[map_rows][strip][width];
      for (int r = 0; r < map_rows; ++r)
        for (int s = 0; s < strip; ++s)
          for (int k = 0; k < width; ++k) sums[r][s][k] = weights.bias(k);
      for_rows<map_rows>([&](int h, int kh, int r) {
#pragma unroll
        for (int s = 0; s < strip; ++s)
#pragma unroll
          for (int kw = 0; kw < 3; ++kw)
            for (int k = 0; k < width; ++k)
              sums[r][s][k] = fmaf(value_of(in.v[h][s + kw], k), weights.v[3 * kh + kw][k], sums[r][s][k]);
      });
      store_strips<inside>(to, g, t.y.pitch, at, sums);
    });
  });
}

/// backward_data of stride 2 and dilation 1; t.g is the forward map's the other way round but for its padding. Position
/// i + pad = 2*q is read by taps 0 and 2 of outputs q and q - 1, position i + 1 by tap 1 of output q: strips begin
/// where i + pad is even, so that which taps meet is known.
template <int width, class T>
__global__ void __launch_bounds__(256, tiles_at_once<T>) gather_tiles(const TileWork<T> t) {
  await_kernel_ahead();
  __shared__ __align__(8) float shared[BlockWeights<width>::floats];
  const BlockWeights<width> weights(t, shared);
  if (!weights.exists) return;
  const Geometry& g = t.g;
  for_tiles(t, weights.channel, g.pad[0] & 1, g.pad[1] & 1, [&](const Place<map_rows>& at, const T* from, T* to) {
    const int row = (at.row + g.pad[0]) / 2 - 1, column = (at.column + g.pad[1]) / 2 - 1;
    constexpr int across = strip / 2 + 1;
    const bool all_inside = at.row >= 0 && at.column >= 0 && at.row + map_rows <= g.out[0] &&
                            at.column + strip <= g.out[1] && row >= 0 && column >= 0 &&
                            row + map_rows / 2 + 1 <= g.in[0] && column + across <= g.in[1];
    with_inside(all_inside, [&](auto inside) {
      const Block<inside, map_rows / 2 + 1, across, width, T> in(from, int(t.x.pitch), g.in, row, column,
                                                                 weights.channel, g.dilation);
      float sums[map_rows][strip][width];
#pragma unroll
      for (int r = 0; r < map_rows; ++r)
#pragma unroll
        for (int s = 0; s < strip; ++s) {
          for (int k = 0; k < width; ++k) sums[r][s][k] = weights.bias(k);
#pragma unroll
          for (int kh = r % 2; kh < 3; kh += 2)
#pragma unroll
            for (int kw = s % 2; kw < 3; kw += 2)
              for (int k = 0; k < width; ++k)
                sums[r][s][k] = fmaf(value_of(in.v[r / 2 + (kh == 2 ? 0 : 1)][s / 2 + (kw == 2 ? 0 : 1)], k),
                                     weights.v[3 * kh + kw][k], sums[r][s][k]);
        }
      store_strips<inside>(to, g, t.y.pitch, at, sums);
    });
  });
}

/// Adds up what a block's threads below each other have, and leaves it as a row of `parts`: gradients of weights
/// (C, taps), then of biases (C).
template <int width>
__device__ void leave_part(const float (&sums)[taps + 1][width], int packs, float* parts) {
  constexpr int values = (taps + 1) * width;
  __shared__ float shared[values * 256];
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
#pragma unroll
  for (int v = 0; v < values; ++v) shared[v * 256 + thread] = sums[v / width][v % width];
  add_threads_below(shared, values);
  if (threadIdx.y > 0 || pack >= packs) return;
  const int64_t channels = int64_t(packs) * width;
  float* part = parts + blockIdx.y * (taps + 1) * channels;
  for (int k = 0; k < width; ++k) {
    for (int t = 0; t < taps; ++t) part[(channel + k) * taps + t] = shared[(t * width + k) * 256 + thread];
    part[taps * channels + channel + k] = shared[(taps * width + k) * 256 + thread];
  }
}

/// Weight gradients with stride 1; blocks: groups of channels, parts of the tiles of all images.
template <int width, int rows, class T>
__global__ void __launch_bounds__(256, weights_at_once)
    weight_gradients_of_tiles(Geometry g, Tiles tiles, int packs, Pixels<const T> x, Pixels<const T> dy, float* parts) {
  await_kernel_ahead();
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  float sums[taps + 1][width] = {};
  if (pack < packs)
    for (int i = int(blockIdx.y); i < int(g.images) * tiles.count(); i += int(gridDim.y)) {
      const int tile = i % tiles.count();
      const int64_t image = i / tiles.count();
      const Place<rows> at(g, tile % tiles.across, tile / tiles.across);
      if (!at.exists(g)) continue;
      with_inside(at.inside(g), [&](auto inside) {
        const Block<inside, rows, strip, width, T> gradients(dy.data + image * g.out[0] * g.out[1] * dy.pitch,
                                                             int(dy.pitch), g.out, at.row, at.column, channel,
                                                             g.dilation);
        const Block<inside, rows + 2, strip + 2, width, T> in(x.data + image * g.in[0] * g.in[1] * x.pitch,
                                                              int(x.pitch), g.in, at.row - g.pad[0],
                                                              at.column - g.pad[1], channel, g.dilation);
#pragma unroll
        for (int r = 0; r < rows; ++r)
#pragma unroll
          for (int s = 0; s < strip; ++s)
            for (int k = 0; k < width; ++k) sums[taps][k] += value_of(gradients.v[r][s], k);
        for_rows<rows>([&](int h, int kh, int r) {
#pragma unroll
          for (int s = 0; s < strip; ++s)
#pragma unroll
            for (int kw = 0; kw < 3; ++kw)
              for (int k = 0; k < width; ++k)
                sums[3 * kh + kw][k] =
                    fmaf(value_of(in.v[h][s + kw], k), value_of(gradients.v[r][s], k), sums[3 * kh + kw][k]);
        });
      });
    }
  leave_part(sums, packs, parts);
}

}  // namespace convoy::cuda::depthwise_3x3
