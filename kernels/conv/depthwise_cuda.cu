// Depthwise 3x3 convolutions of images on CUDA devices (groups = channels on both sides): any stride, dilation and
// padding, dense tensors and slices. A thread keeps the nine weights of its channels, or their gradients, in registers,
// and takes strips of four neighbouring outputs, whose columns it loads once; with stride 1 it takes two such strips
// below each other, whose rows it loads once. Bound by memory.
#include "core/conv_shapes.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/device/last_block.h"
#include "kernels/device/pixels.h"
#include "kernels/device/sums.h"

namespace convoy {
namespace {

using namespace cuda;

constexpr int channels_each = 4, strip = 4, taps = 9;
constexpr int rows = 2, channels_of_rows = 2;  ///< where a thread takes strips of two rows
/// That run at once on a multiprocessor, so that their registers hold what they load.
template <class T>
constexpr int blocks_of_tiles = sizeof(T) == 2 ? 3 : 2;

/// A map from one image to another of the same channels: the position that tap k of output i reads is
/// i*stride - pad + k*dilation.
struct Geometry {
  int in[2], out[2], stride[2], pad[2], dilation[2];
  int64_t images;
  int strips() const { return (out[1] + strip - 1) / strip; }
};

Geometry geometry(const ConvShapes& s) {
  Geometry g{};
  for (int i = 0; i < 2; ++i) {
    const auto axis = static_cast<size_t>(i + 1);
    g.in[i] = int(s.x[i + 2]), g.out[i] = int(s.y[i + 2]), g.stride[i] = int(s.attrs.stride[axis]);
    g.pad[i] = int(s.attrs.pad_low[axis]), g.dilation[i] = int(s.attrs.dilation[axis]);
  }
  g.images = s.x.n();
  return g;
}

/// The other way round; with a stride, taps that fall between outputs read nothing.
Geometry reversed(const Geometry& g) {
  Geometry r = g;
  for (int i = 0; i < 2; ++i) r.in[i] = g.out[i], r.out[i] = g.in[i], r.pad[i] = 2 * g.dilation[i] - g.pad[i];
  return r;
}

/// Strip `i` of an image's rows.
struct Strip {
  int row, column;
  int64_t image;
  __device__ Strip(int64_t i, const Geometry& g, int strips) {
    column = int(i % strips) * strip, i /= strips;
    row = int(i % g.out[0]), image = i / g.out[0];
  }
};

template <int width>
struct Values {
  float v[width];
};
template <int width, class T>
__device__ Values<width> widened(const Pack<T, width>& pack) {
  Values<width> out;
  for (int k = 0; k < width; ++k) out.v[k] = value_of(pack, k);
  return out;
}

/// A row of an image that may lie outside, like its columns: zeros there.
template <int width, class T>
struct Row {
  Pixels<const T> x;
  int64_t first;  ///< pixel of column 0
  int columns, channel;
  __device__ Values<width> at(int column) const {
    if (column < 0 || column >= columns) return {};
    return widened<width>(x.template load<width>(first + column, channel));
  }
};

/// f(position of the strip, tap of the row, input) for all products of a strip's row of taps. A known stride of
/// neighbouring taps: every column is loaded once.
template <int width, int stride, class T, class F>
__device__ void for_row_of_taps(const Row<width, T>& row, const Geometry& g, int column, F&& f) {
  if constexpr (stride > 0) {
    const int first = column * stride - g.pad[1];
#pragma unroll
    for (int j = 0; j < (strip - 1) * stride + 3; ++j) {
      const Values<width> x = row.at(first + j);
#pragma unroll
      for (int kw = 0; kw < 3; ++kw)
        if ((j - kw) % stride == 0 && j >= kw && (j - kw) / stride < strip) f((j - kw) / stride, kw, x);
    }
  } else {
#pragma unroll
    for (int s = 0; s < strip; ++s)
#pragma unroll
      for (int kw = 0; kw < 3; ++kw) f(s, kw, row.at((column + s) * g.stride[1] - g.pad[1] + kw * g.dilation[1]));
  }
}

/// Nine weights of each of the thread's channels; `flipped`: in reverse order.
template <int width>
struct Weights {
  float v[taps][width];
  template <class T>
  __device__ Weights(const T* w, int channel, bool flipped) {
    for (int k = 0; k < width; ++k)
#pragma unroll
      for (int t = 0; t < taps; ++t) v[t][k] = to_float(w[(channel + k) * taps + (flipped ? taps - 1 - t : t)]);
  }
};

/// Output = sum of weights times inputs, plus a bias. stride 2: of neighbouring taps; 0: any.
template <int width, int stride, class T>
__global__ void __launch_bounds__(256, 2) depthwise(Geometry g, int strips, int packs, bool flipped, Pixels<const T> x,
                                                    const T* w, const float* bias, Pixels<T> y) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  if (pack >= packs) return;
  const Weights<width> weights(w, channel, flipped);
  const int64_t count = g.images * g.out[0] * strips, step = int64_t(gridDim.y) * blockDim.y;
  for (int64_t i = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; i < count; i += step) {
    const Strip at(i, g, strips);
    float sums[strip][width];
    for (int k = 0; k < width; ++k)
      for (int s = 0; s < strip; ++s) sums[s][k] = bias ? bias[channel + k] : 0.0f;
#pragma unroll
    for (int kh = 0; kh < 3; ++kh) {
      const int h = at.row * g.stride[0] - g.pad[0] + kh * g.dilation[0];
      if (h < 0 || h >= g.in[0]) continue;
      const Row<width, T> row{x, (at.image * g.in[0] + h) * g.in[1], g.in[1], channel};
      for_row_of_taps<width, stride>(row, g, at.column, [&](int s, int kw, const Values<width>& v) {
        for (int k = 0; k < width; ++k) sums[s][k] = fmaf(v.v[k], weights.v[3 * kh + kw][k], sums[s][k]);
      });
    }
    for (int s = 0; s < strip; ++s) {
      if (at.column + s >= g.out[1]) break;
      Pack<T, width> out;
      for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sums[s][k]);
      y.store((at.image * g.out[0] + at.row) * g.out[1] + at.column + s, channel, out);
    }
  }
}

/// backward_data of strided convolutions: `g` is reversed, its stride that of the forward one.
template <int width, class T>
__global__ void __launch_bounds__(256, 2)
    gather(const Geometry g, int packs, Pixels<const T> dy, const T* w, const float* bias, Pixels<T> dx) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  if (pack >= packs) return;
  const Weights<width> weights(w, channel, true);
  const int down = g.stride[0], across = g.stride[1];
  const int64_t count = g.images * g.out[0] * g.out[1], step = int64_t(gridDim.y) * blockDim.y;
  for (int64_t i = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; i < count; i += step) {
    const int column = int(i % g.out[1]), row = int(i / g.out[1] % g.out[0]);
    const int64_t image = i / g.out[1] / g.out[0];
    float sum[width];
    for (int k = 0; k < width; ++k) sum[k] = bias ? bias[channel + k] : 0.0f;
#pragma unroll
    for (int kh = 0; kh < 3; ++kh) {
      const int h = row - g.pad[0] + kh * g.dilation[0];
      if (h < 0 || h % down || h / down >= g.in[0]) continue;
      const Row<width, T> from{dy, (image * g.in[0] + h / down) * g.in[1], g.in[1], channel};
#pragma unroll
      for (int kw = 0; kw < 3; ++kw) {
        const int v = column - g.pad[1] + kw * g.dilation[1];
        if (v < 0 || v % across) continue;
        const Values<width> gradient = from.at(v / across);
        for (int k = 0; k < width; ++k) sum[k] = fmaf(gradient.v[k], weights.v[3 * kh + kw][k], sum[k]);
      }
    }
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sum[k]);
    dx.store(i, channel, out);
  }
}

/// How blocks of stride 1 share the outputs: a block's threads below each other are two strips across times four of
/// `rows` rows each. With a dilation, the outputs of a strip are as far apart as its taps.
struct Tiles {
  int across, down;  ///< of an image
  static constexpr int strips_across = 2, strips_down = 4, threads_down = strips_across * strips_down;
  explicit Tiles(const Geometry& g) {
    const auto pieces = [](int extent, int piece) { return (extent + piece - 1) / piece; };
    across = pieces(pieces(g.out[1], strip * g.dilation[1]) * g.dilation[1], strips_across);
    down = pieces(pieces(g.out[0], rows * g.dilation[0]) * g.dilation[0], strips_down);
  }
  __host__ __device__ int count() const { return across * down; }
};

/// The strips of a thread in one tile of an image: columns from `column` on, in rows from `row` on, g.dilation apart.
/// All threads of a warp have the same ones.
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
template <class F>
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
template <bool inside, int width, class T>
__device__ void store_strips(T* image, const Geometry& g, int64_t pitch, const Place& at,
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

/// The map with stride 1.
template <int width, class T>
__global__ void __launch_bounds__(256, blocks_of_tiles<T>) depthwise_tiles(const TileWork<T> t) {
  await_kernel_ahead();
  __shared__ __align__(8) float shared[BlockWeights<width>::floats];
  const BlockWeights<width> weights(t, shared);
  if (!weights.exists) return;
  const Geometry& g = t.g;
  const T* from = t.x.data + int64_t(blockIdx.z) * g.in[0] * g.in[1] * t.x.pitch;
  T* to = t.y.data + int64_t(blockIdx.z) * g.out[0] * g.out[1] * t.y.pitch + weights.channel;
#pragma unroll 1
  for (int down = int(blockIdx.y) * t.each; down < (int(blockIdx.y) + 1) * t.each; ++down) {
    const Place at(g, int(blockIdx.x) / t.groups, down);
    if (!at.exists(g)) return;
    with_inside(at.inside(g), [&](auto inside) {
      const Block<inside, rows + 2, strip + 2, width, T> in(from, int(t.x.pitch), g.in, at.row - g.pad[0],
                                                            at.column - g.pad[1], weights.channel, g.dilation);
      float sums[rows][strip][width];
      for (int r = 0; r < rows; ++r)
        for (int s = 0; s < strip; ++s)
          for (int k = 0; k < width; ++k) sums[r][s][k] = weights.bias(k);
      for_rows([&](int h, int kh, int r) {
#pragma unroll
        for (int s = 0; s < strip; ++s)
#pragma unroll
          for (int kw = 0; kw < 3; ++kw)
            for (int k = 0; k < width; ++k)
              sums[r][s][k] = fmaf(value_of(in.v[h][s + kw], k), weights.v[3 * kh + kw][k], sums[r][s][k]);
      });
      store_strips<inside>(to, g, t.y.pitch, at, sums);
    });
  }
}

/// backward_data of stride 2 and dilation 1; t.g is the forward map's the other way round but for its padding. Position
/// i + pad = 2*q is read by taps 0 and 2 of outputs q and q - 1, position i + 1 by tap 1 of output q: strips begin
/// where i + pad is even, so that which taps meet is known.
template <int width, class T>
__global__ void __launch_bounds__(256, blocks_of_tiles<T>) gather_tiles(const TileWork<T> t) {
  await_kernel_ahead();
  __shared__ __align__(8) float shared[BlockWeights<width>::floats];
  const BlockWeights<width> weights(t, shared);
  if (!weights.exists) return;
  const Geometry& g = t.g;
  const T* from = t.x.data + int64_t(blockIdx.z) * g.in[0] * g.in[1] * t.x.pitch;
  T* to = t.y.data + int64_t(blockIdx.z) * g.out[0] * g.out[1] * t.y.pitch + weights.channel;
#pragma unroll 1
  for (int down = int(blockIdx.y) * t.each; down < (int(blockIdx.y) + 1) * t.each; ++down) {
    Place at(g, int(blockIdx.x) / t.groups, down);
    at.row -= g.pad[0] & 1, at.column -= g.pad[1] & 1;
    if (!at.exists(g)) return;
    const int row = (at.row + g.pad[0]) / 2 - 1, column = (at.column + g.pad[1]) / 2 - 1;
    constexpr int across = strip / 2 + 1;
    const bool all_inside = at.row >= 0 && at.column >= 0 && at.row + rows <= g.out[0] &&
                            at.column + strip <= g.out[1] && row >= 0 && column >= 0 && row + 2 <= g.in[0] &&
                            column + across <= g.in[1];
    with_inside(all_inside, [&](auto inside) {
      const Block<inside, 2, across, width, T> in(from, int(t.x.pitch), g.in, row, column, weights.channel, g.dilation);
      float sums[rows][strip][width];
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int s = 0; s < strip; ++s) {
          for (int k = 0; k < width; ++k) sums[r][s][k] = weights.bias(k);
#pragma unroll
          for (int kh = r % 2; kh < 3; kh += 2)
#pragma unroll
            for (int kw = s % 2; kw < 3; kw += 2)
              for (int k = 0; k < width; ++k)
                sums[r][s][k] = fmaf(value_of(in.v[kh == 2 ? 0 : 1][s / 2 + (kw == 2 ? 0 : 1)], k),
                                     weights.v[3 * kh + kw][k], sums[r][s][k]);
        }
      store_strips<inside>(to, g, t.y.pitch, at, sums);
    });
  }
}

/// Adds up what a block's threads below each other have, and leaves it as a row of `parts`: gradients of weights
/// (C, taps), then of biases (C); the last block of a column adds up the rows.
template <int width>
__device__ void add_gradients(const float (&sums)[taps + 1][width], int packs, float* parts, const ToTwoVectors& to) {
  constexpr int values = (taps + 1) * width;
  __shared__ float shared[values * 256];
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
#pragma unroll
  for (int v = 0; v < values; ++v) shared[v * 256 + thread] = sums[v / width][v % width];
  for (int rows = int(blockDim.y) / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (int(threadIdx.y) < rows)
      for (int v = 0; v < values; ++v) shared[v * 256 + thread] += shared[v * 256 + thread + rows * int(blockDim.x)];
  }
  const int64_t channels = int64_t(packs) * width;
  if (threadIdx.y == 0 && pack < packs) {
    float* part = parts + blockIdx.y * (taps + 1) * channels;
    for (int k = 0; k < width; ++k) {
      for (int t = 0; t < taps; ++t) part[(channel + k) * taps + t] = shared[(t * width + k) * 256 + thread];
      part[taps * channels + channel + k] = shared[(taps * width + k) * 256 + thread];
    }
  }
  const int first = int(blockIdx.x * blockDim.x) * width, there = min(int(blockDim.x) * width, int(channels) - first);
  const auto column = [&](int i) {
    return i < taps * there ? first * taps + i : taps * channels + first + i - taps * there;
  };
  add_rows<256>(parts, (taps + 1) * channels, (taps + 1) * there, column,
                [&](int i, float sum) { to(column(i), sum); });
}

/// Weight gradients of any stride and dilation.
template <int width, int stride, class T>
__global__ void __launch_bounds__(256, 2) weight_gradients(Geometry g, int strips, int packs, Pixels<const T> x,
                                                           Pixels<const T> dy, float* parts, ToTwoVectors to) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  float sums[taps + 1][width] = {};
  if (pack < packs) {
    const int64_t count = g.images * g.out[0] * strips, step = int64_t(gridDim.y) * blockDim.y;
    for (int64_t i = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; i < count; i += step) {
      const Strip at(i, g, strips);
      const Row<width, T> gradients{dy, (at.image * g.out[0] + at.row) * g.out[1], g.out[1], channel};
      Values<width> gradient[strip];
#pragma unroll
      for (int s = 0; s < strip; ++s) {
        gradient[s] = gradients.at(at.column + s);
        for (int k = 0; k < width; ++k) sums[taps][k] += gradient[s].v[k];
      }
#pragma unroll
      for (int kh = 0; kh < 3; ++kh) {
        const int h = at.row * g.stride[0] - g.pad[0] + kh * g.dilation[0];
        if (h < 0 || h >= g.in[0]) continue;
        const Row<width, T> row{x, (at.image * g.in[0] + h) * g.in[1], g.in[1], channel};
        for_row_of_taps<width, stride>(row, g, at.column, [&](int s, int kw, const Values<width>& v) {
          for (int k = 0; k < width; ++k) sums[3 * kh + kw][k] = fmaf(v.v[k], gradient[s].v[k], sums[3 * kh + kw][k]);
        });
      }
    }
  }
  add_gradients(sums, packs, parts, to);
}

/// Those of stride 1; blocks: groups of channels, parts of the tiles of all images.
template <int width, class T>
__global__ void __launch_bounds__(256, blocks_of_tiles<T>)
    weight_gradients_of_tiles(Geometry g, Tiles tiles, int packs, Pixels<const T> x, Pixels<const T> dy, float* parts,
                              ToTwoVectors to) {
  await_kernel_ahead();
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  float sums[taps + 1][width] = {};
  if (pack < packs)
    for (int i = int(blockIdx.y); i < int(g.images) * tiles.count(); i += int(gridDim.y)) {
      const int tile = i % tiles.count();
      const int64_t image = i / tiles.count();
      const Place at(g, tile % tiles.across, tile / tiles.across);
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
        for_rows([&](int h, int kh, int r) {
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
  add_gradients(sums, packs, parts, to);
}

/// 2 where kernels know the stride, else 0.
template <class F>
void with_stride(const Geometry& g, F&& f) {
  if (g.stride[1] == 2 && g.dilation[1] == 1)
    f(std::integral_constant<int, 2>());
  else
    f(std::integral_constant<int, 0>());
}

bool unstrided(const Geometry& g) {
  return g.stride[0] == 1 && g.stride[1] == 1;
}

/// Groups of channels x as many blocks as run at once, with as many tiles each, if there are so many tiles.
dim3 grid_of_tiles(int64_t tiles, int64_t groups, int at_once) {
  const int64_t most = std::max<int64_t>(1, at_once * multiprocessors() / groups), each = (tiles + most - 1) / most;
  return dim3(static_cast<unsigned>(groups), static_cast<unsigned>((tiles + each - 1) / each));
}
PixelGrid grid_of_strips(const Geometry& g, int64_t packs) {
  return {g.images * g.out[0] * g.strips(), packs, 2};
}

/// Queues a kernel of tiles for so many channels at once; `margin`: rows and columns that tiles begin ahead of the
/// outputs.
template <class T>
void queue_tiles(void (*kernel)(TileWork<T>), int width, const KernelArgs& a, const Geometry& g, bool flipped,
                 const int (&margin)[2]) {
  const int packs = int(a.out[0].shape().c()) / width, groups = (packs + 31) / 32;
  Geometry wider = g;
  for (int i = 0; i < 2; ++i) wider.out[i] += margin[i];
  const Tiles tiles(wider);
  // Several tiles to a block, for its weights' sake, where that leaves many more blocks than run at once.
  const int64_t many = 8 * blocks_of_tiles<T> * multiprocessors();
  const int each = int(std::clamp<int64_t>(groups * tiles.count() * g.images / many, 1, 4));
  const dim3 blocks(static_cast<unsigned>(groups * tiles.across), static_cast<unsigned>((tiles.down + each - 1) / each),
                    static_cast<unsigned>(g.images));
  launch_early(kernel, blocks, dim3(32, Tiles::threads_down), 0,
               TileWork<T>{g, packs, groups, each, flipped, pixels<const T>(a.in[0]), data<const T>(a.in[1]),
                           a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, pixels<T>(a.out[0])});
}

/// From in[0] to out[0] through in[1].
template <class T>
void queue_map(const KernelArgs& a, const Geometry& g, bool flipped) {
  if (unstrided(g))
    with_width<T, channels_of_rows>({&a.in[0], &a.out[0]}, [&](auto width) {
      queue_tiles(depthwise_tiles<width, T>, width, a, g, flipped, {0, 0});
    });
  else
    with_width<T, channels_each>({&a.in[0], &a.out[0]}, [&](auto width) {
      const int packs = int(a.out[0].shape().c() / width);
      const PixelGrid grid = grid_of_strips(g, packs);
      with_stride(g, [&](auto stride) {
        depthwise<width, stride><<<grid.blocks, grid.threads, 0, stream()>>>(
            g, g.strips(), packs, flipped, pixels<const T>(a.in[0]), data<const T>(a.in[1]),
            a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, pixels<T>(a.out[0]));
      });
    });
  check_launch("a depthwise convolution");
}

/// backward_data of a strided convolution.
template <class T>
void queue_gather(const KernelArgs& a, const Geometry& forward) {
  Geometry g = reversed(forward);
  if (forward.stride[0] == 2 && forward.stride[1] == 2 && forward.dilation[0] == 1 && forward.dilation[1] == 1) {
    for (int i = 0; i < 2; ++i) g.pad[i] = forward.pad[i];
    with_width<T, channels_of_rows>({&a.in[0], &a.out[0]}, [&](auto width) {
      queue_tiles(gather_tiles<width, T>, width, a, g, false, {g.pad[0] & 1, g.pad[1] & 1});
    });
  } else {
    const float* bias = a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
    with_width<T, channels_each>({&a.in[0], &a.out[0]}, [&](auto width) {
      const int packs = int(a.out[0].shape().c() / width);
      const PixelGrid grid(g.images * g.out[0] * g.out[1], packs, 2);
      gather<width><<<grid.blocks, grid.threads, 0, stream()>>>(g, packs, pixels<const T>(a.in[0]),
                                                                data<const T>(a.in[1]), bias, pixels<T>(a.out[0]));
    });
  }
  check_launch("a depthwise convolution's data gradient");
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([g = geometry(*conv_shapes(p))](const KernelArgs& a) {
    dispatch(a.in[0].dtype(), [&](auto zero) { queue_map<decltype(zero)>(a, g, false); });
  });
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  return prepared([forward = geometry(*conv_shapes(p))](const KernelArgs& a) {
    dispatch(a.in[0].dtype(), [&](auto zero) {
      using T = decltype(zero);
      if (forward.stride[0] > 1 || forward.stride[1] > 1)
        queue_gather<T>(a, forward);
      else
        queue_map<T>(a, reversed(forward), true);
    });
  });
}

template <class T>
void queue_weight_gradients(const KernelArgs& a, const Geometry& g) {
  const Pixels<const T> x = pixels<const T>(a.in[0]), dy = pixels<const T>(a.in[1]);
  const int64_t channels = a.in[0].shape().c();
  auto* parts = reinterpret_cast<float*>(a.workspace);
  const ToTwoVectors to{data<float>(a.out[0]), data<float>(a.out[1]), taps * channels};
  if (unstrided(g))
    with_width<T, channels_of_rows>({&a.in[0], &a.in[1]}, [&](auto width) {
      const int packs = int(channels / width), groups = (packs + 31) / 32;
      const Tiles tiles(g);
      const dim3 blocks = grid_of_tiles(g.images * tiles.count(), groups, blocks_of_tiles<T>);
      launch_early(weight_gradients_of_tiles<width, T>, blocks, dim3(32, Tiles::threads_down), 0, g, tiles, packs, x,
                   dy, parts, to);
    });
  else
    with_width<T, channels_each>({&a.in[0], &a.in[1]}, [&](auto width) {
      const int packs = int(channels / width);
      const PixelGrid grid = grid_of_strips(g, packs);
      with_stride(g, [&](auto stride) {
        weight_gradients<width, stride>
            <<<grid.blocks, grid.threads, 0, stream()>>>(g, g.strips(), packs, x, dy, parts, to);
      });
    });
  check_launch("a depthwise convolution's weight gradient");
}

/// The most rows of parts there are, whatever the alignment of the tensors.
int64_t most_parts(const Geometry& g, int64_t channels) {
  unsigned most = 0;
  for (int width : {1, channels_of_rows, channels_each}) {
    const int64_t packs = (channels + width - 1) / width;
    most = std::max(most, unstrided(g)
                              ? grid_of_tiles(g.images * Tiles(g).count(), (packs + 31) / 32, blocks_of_tiles<bfloat>).y
                              : grid_of_strips(g, packs).blocks.y);
  }
  return most;
}

std::unique_ptr<Prepared> prepare_backward_weights(const Problem& p) {
  const Geometry g = geometry(*conv_shapes(p));
  const int64_t channels = p.in[0].shape.c();
  return prepared(
      [g](const KernelArgs& a) {
        dispatch(a.in[0].dtype(), [&](auto zero) { queue_weight_gradients<decltype(zero)>(a, g); });
      },
      4 * most_parts(g, channels) * (taps + 1) * channels);
}

Support supports(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.groups != s.x.c() || s.attrs.groups != s.y.c()) return Support::no("as many groups as channels only");
  if (s.x.d() != 1 || s.y.d() != 1 || s.attrs.pad_low[0] != 0) return Support::no("images only");
  if (s.w.d() != 1 || s.w.h() != 3 || s.w.w() != 3) return Support::no("3x3 only");
  if (s.x.rows() > 1 << 26) return Support::no("more than 2^26 pixels");
  if (s.x.c() > 1 << 17) return Support::no("more than 2^17 channels");
  if (std::max({s.x.n(), s.x.h(), s.y.h()}) >= 1 << 16) return Support::no("more than 65535 images or rows");
  return even_floats(p);
}

}  // namespace

std::vector<KernelPtr> depthwise_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_depthwise", OpKind::conv_forward, supports, prepare_forward));
  list.push_back(kernel("cuda_depthwise", OpKind::conv_backward_data, supports, prepare_backward_data));
  list.push_back(kernel("cuda_depthwise", OpKind::conv_backward_weights, supports, prepare_backward_weights));
  return list;
}

}  // namespace convoy
