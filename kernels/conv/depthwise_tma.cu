// Depthwise 3x3 convolutions of images in 16 bits on Hopper, dilation 1: forward and weight gradients with stride 1 and
// 2, data gradients, also added to a value, with stride 1. The copy engine brings tiles of the inputs, 64 channels of
// some rows and columns with zeros around the image, to shared memory, the next one while the block works on this one.
// A warp walks along two rows of outputs, each lane with two channels: it reads and widens every input of its rows once
// and multiplies it with all taps that see it, while up to three outputs (or gradients) across are in registers.
//
// That is 17 instructions to an output, 9 of them products, and on images of 48 x 72 with all around it 23; kernels
// that load to registers (depthwise_tiles.h) take 44 there, for addresses, borders and inputs that neighbours widen
// again.
#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/conv/depthwise_geometry.h"
#include "kernels/conv/hopper_images.h"
#include "kernels/conv/mma_tile.h"
#include "kernels/device/bulk.h"
#include "kernels/device/early.h"
#include "kernels/device/pixels.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace depthwise_tma {
namespace {

using namespace cuda;
using depthwise_3x3::filters_of_channels, depthwise_3x3::Geometry, depthwise_3x3::geometry, depthwise_3x3::reversed,
    depthwise_3x3::taps;

constexpr const char* name = "cuda_depthwise_tma";
constexpr int warps = 8, threads = 32 * warps, group = 64 /* channels */, pixel_bytes = 2 * group;
/// Blocks that run at once on a multiprocessor at most, so that their registers hold what they need.
constexpr int blocks_at_once = 4;

/// How the outputs are cut: tiles of 2 * pairs rows, in which a warp walks `segment` columns of a pair.
struct Tiling {
  int pairs, segment;
  int in_rows, in_columns;  ///< of a tile
  int across, down;         ///< tiles of an image
  int stages, blocks;       ///< of shared memory; that share a group of channels
  int out[2], pad[2], channels;
  int images;
  int64_t pitch;  ///< of outputs
  bool flipped;   ///< the taps, for data gradients
  __host__ __device__ int rows() const { return 2 * pairs; }
  __host__ __device__ int columns() const { return warps / pairs * segment; }
  __host__ __device__ int groups() const { return (channels + group - 1) / group; }
  __host__ __device__ int tiles() const { return images * down * across; }
  __host__ __device__ int x_bytes() const { return in_rows * in_columns * pixel_bytes; }
  __host__ __device__ int gradient_bytes() const { return rows() * columns() * pixel_bytes; }
};

struct Tile {
  int row, column, image;
  __device__ Tile(const Tiling& t, int i) {
    column = i % t.across * t.columns(), i /= t.across;
    row = i % t.down * t.rows(), image = i / t.down;
  }
};

/// What a warp does of a tile: `count` columns from `column` on in rows `row` and the next, `first_row` and
/// `first_column` in the tile.
struct Strip {
  int first_row, first_column, row, column, count;
  __device__ Strip(const Tiling& t, const Tile& tile) {
    const int warp = warp_number();
    first_row = 2 * (warp % t.pairs), first_column = warp / t.pairs * t.segment;
    row = tile.row + first_row, column = tile.column + first_column;
    count = row < t.out[0] ? min(t.segment, t.out[1] - column) : 0;
  }
};

/// Two channels. (Compilers take three instructions to widen two brain floats that they know as such.)
template <class T>
__device__ float2 widened_word(uint32_t word) {
  if constexpr (std::is_same_v<T, bfloat>)
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  else
    return widened(*reinterpret_cast<const Two<T>*>(&word));
}
__device__ float2 sum_of_product(float2 a, float2 b, float2 addend) {
  return make_float2(fmaf(a.x, b.x, addend.x), fmaf(a.y, b.y, addend.y));
}

/// The columns of inputs along a walk come in `period` phases; `live` outputs across are under way.
template <int stride>
struct Walk {
  static constexpr int period = stride == 1 ? 3 : 4, live = stride == 1 ? 3 : 2, lines = stride + 3;
  /// Which of the live outputs sees a column of this phase through this tap; -1: none.
  __host__ __device__ static constexpr int output(int phase, int tap) {
    return (phase + period - tap) % stride ? -1 : (phase + period - tap) / stride % live;
  }
  /// f(phase, first) at the columns first + phase along `count` outputs.
  template <class F>
  static __device__ void run(int count, F&& f) {
    const int columns = (count - 1) * stride + 3;
#pragma unroll 1
    for (int first = 0; first < columns; first += period) {
      f(std::integral_constant<int, 0>(), first);
      if (first + 1 < columns) f(std::integral_constant<int, 1>(), first);
      if (first + 2 < columns) f(std::integral_constant<int, 2>(), first);
      if constexpr (period == 4)
        if (first + 3 < columns) f(std::integral_constant<int, 3>(), first);
    }
  }
  /// f(output, row, input, kh, kw) for all products of the column first + phase, `line` bytes from row to row: of the
  /// live outputs' two rows, the inputs of row * stride + kh.
  template <class T, class F>
  static __device__ void products(int phase, int first, uint32_t from, int line, F&& f) {
    float2 in[lines];
#pragma unroll
    for (int i = 0; i < lines; ++i)
      in[i] = widened_word<T>(load_4(from + uint32_t(first * pixel_bytes + i * line) + phase * pixel_bytes));
#pragma unroll
    for (int kw = 0; kw < 3; ++kw) {
      const int o = output(phase, kw);
      if (o < 0) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int kh = 0; kh < 3; ++kh) f(o, r, in[r * stride + kh], kh, kw);
    }
  }
};

/// Tiles of the block's group, one after the other: copy(tile, stage, barrier) of each by one thread, a tile ahead, and
/// work(tile, stage) by all; ready(), by all, while the first one comes.
template <class Copy, class Ready, class Work>
__device__ void for_tiles(const Tiling& t, Copy&& copy, Ready&& ready, Work&& work) {
  __shared__ uint64_t barriers[2];
  const StagePair stages{barriers};
  stages.begin();
  await_kernel_ahead();
  const int first = int(blockIdx.x) / t.groups();
  const auto fetch = [&](int tile, int stage) {
    if (threadIdx.x == 0 && tile < t.tiles()) copy(Tile(t, tile), stage, stages.full(stage));
  };
  fetch(first, 0);
  ready();
  int round = 0;
#pragma unroll 1
  for (int tile = first; tile < t.tiles(); tile += t.blocks, ++round) {
    fetch(tile + t.blocks, (round + 1) & 1);
    stages.wait(round);
    work(Tile(t, tile), round & 1);
    __syncthreads();
  }
}

/// `adds`: to `addend`, not to a bias.
template <class T, int stride, bool adds>
__global__ void __launch_bounds__(threads, blocks_at_once)
    map(const __grid_constant__ Tiling t, const __grid_constant__ CUtensorMap x, const T* w, const float* biases,
        const Pixels<const T> addend, T* y) {
#if CONVOY_WGMMA
  using W = Walk<stride>;
  extern __shared__ char memory[];
  const uint32_t ring = (shared_address(memory) + 127) & ~127u;
  const int first_channel = int(blockIdx.x) % t.groups() * group, lane = int(threadIdx.x) % 32,
            channel = first_channel + 2 * lane;
  const bool exists = channel < t.channels;
  float2 weights[taps] = {}, bias = make_float2(0, 0);
  for_tiles(
      t,
      [&](const Tile& tile, int stage, uint32_t barrier) {
        barrier_expect(barrier, t.x_bytes());
        copy_piece(ring + uint32_t(stage * t.x_bytes()), x, barrier, first_channel, tile.column * stride - t.pad[1],
                   tile.row * stride - t.pad[0], tile.image);
      },
      [&] {
        if (!exists) return;
        float of_channels[2 * taps];
        for (int i = 0; i < taps; ++i) {
          const float2 two = widened_word<T>(reinterpret_cast<const uint32_t*>(w + channel * taps)[i]);
          of_channels[2 * i] = two.x, of_channels[2 * i + 1] = two.y;
        }
        for (int i = 0; i < taps; ++i)
          weights[i] = t.flipped ? make_float2(of_channels[taps - 1 - i], of_channels[2 * taps - 1 - i])
                                 : make_float2(of_channels[i], of_channels[taps + i]);
        if (biases) bias = make_float2(biases[channel], biases[channel + 1]);
      },
      [&](const Tile& tile, int stage) {
        const Strip at(t, tile);
        if (at.count <= 0) return;
        const int line = t.in_columns * pixel_bytes;
        const uint32_t from = ring + uint32_t(stage * t.x_bytes() + at.first_row * stride * line +
                                              at.first_column * stride * pixel_bytes + 4 * lane);
        const int64_t pixel = (int64_t(tile.image) * t.out[0] + at.row) * t.out[1] + at.column;
        char* to = reinterpret_cast<char*>(y + pixel * t.pitch + channel);
        const uint32_t step = uint32_t(t.pitch) * sizeof(T), next_line = step * uint32_t(t.out[1]);
        const T* sum = adds ? addend.data + pixel * addend.pitch + channel : nullptr;
        const bool lower = exists && at.row + 1 < t.out[0];
        float2 sums[W::live][2] = {};
        W::run(at.count, [&](auto phase, int first) {
          constexpr int done = W::output(phase, 2);
          // Asked for ahead of the products, added behind them. (No `if constexpr`: nvcc 13.0 takes `lower` for unused
          // where its first use in this lambda is discarded.)
          uint32_t added[2] = {};
          if (adds && done >= 0 && first + phase >= 2) {
            if (exists) added[0] = *reinterpret_cast<const uint32_t*>(sum);
            if (lower) added[1] = *reinterpret_cast<const uint32_t*>(sum + int64_t(t.out[1]) * addend.pitch);
            sum += addend.pitch;
          }
          W::template products<T>(phase, first, from, line, [&](int o, int r, float2 in, int kh, int kw) {
            sums[o][r] = sum_of_product(in, weights[3 * kh + kw], kw == 0 && kh == 0 ? bias : sums[o][r]);
          });
          if constexpr (done >= 0)
            if (first + phase >= 2) {
              if (adds)
                for (int r = 0; r < 2; ++r) {
                  const float2 two = widened_word<T>(added[r]);
                  sums[done][r] = make_float2(sums[done][r].x + two.x, sums[done][r].y + two.y);
                }
              if (exists) *reinterpret_cast<uint32_t*>(to) = bits_of<T>(rounded_two<T>(sums[done][0]));
              if (lower) *reinterpret_cast<uint32_t*>(to + next_line) = bits_of<T>(rounded_two<T>(sums[done][1]));
              to += step;
            }
        });
      });
#endif
}

/// Leaves gradients of weights (C, taps), then of biases (C), for each of the blocks that share a group. Rows and
/// columns beyond a warp's outputs have a gradient of zero: an input that is not finite may reach a tap more than it
/// should.
template <class T, int stride>
__global__ void __launch_bounds__(threads, blocks_at_once)
    weight_gradients(const __grid_constant__ Tiling t, const __grid_constant__ CUtensorMap x,
                     const __grid_constant__ CUtensorMap dy, float* parts) {
#if CONVOY_WGMMA
  using W = Walk<stride>;
  extern __shared__ char memory[];
  const uint32_t ring = (shared_address(memory) + 127) & ~127u;
  const int first_channel = int(blockIdx.x) % t.groups() * group, lane = int(threadIdx.x) % 32;
  const int stage_bytes = t.x_bytes() + t.gradient_bytes();
  float2 sums[taps + 1] = {};
  for_tiles(
      t,
      [&](const Tile& tile, int stage, uint32_t barrier) {
        const uint32_t to = ring + uint32_t(stage * stage_bytes);
        barrier_expect(barrier, stage_bytes);
        copy_piece(to, x, barrier, first_channel, tile.column * stride - t.pad[1], tile.row * stride - t.pad[0],
                   tile.image);
        copy_piece(to + uint32_t(t.x_bytes()), dy, barrier, first_channel, tile.column, tile.row, tile.image);
      },
      [] {},
      [&](const Tile& tile, int stage) {
        const Strip at(t, tile);
        if (at.count <= 0) return;
        const int line = t.in_columns * pixel_bytes, gradient_line = t.columns() * pixel_bytes;
        const uint32_t begin = ring + uint32_t(stage * stage_bytes + 4 * lane);
        const uint32_t from = begin + uint32_t(at.first_row * stride * line + at.first_column * stride * pixel_bytes);
        const uint32_t gradients =
            begin + uint32_t(t.x_bytes() + at.first_row * gradient_line + at.first_column * pixel_bytes);
        float2 gradient[W::live][2] = {};
        W::run(at.count, [&](auto phase, int first) {
          if constexpr (phase % stride == 0) {
            constexpr int newest = W::output(phase, 0);
            const int column = (first + phase) / stride;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const uint32_t word =
                  column < at.count ? load_4(gradients + uint32_t(r * gradient_line + column * pixel_bytes)) : 0;
              gradient[newest][r] = widened_word<T>(word);
              sums[taps].x += gradient[newest][r].x, sums[taps].y += gradient[newest][r].y;
            }
          }
          W::template products<T>(phase, first, from, line, [&](int o, int r, float2 in, int kh, int kw) {
            sums[3 * kh + kw] = sum_of_product(in, gradient[o][r], sums[3 * kh + kw]);
          });
        });
      });

  // Sums of the block's warps, by value and channel, in the warps' order.
  auto* shared = reinterpret_cast<float*>(memory + (ring - shared_address(memory)));
#pragma unroll
  for (int v = 0; v <= taps; ++v) reinterpret_cast<float2*>(shared)[v * threads + int(threadIdx.x)] = sums[v];
  __syncthreads();
  float* part = parts + int64_t(blockIdx.x) / t.groups() * (taps + 1) * t.channels;
  for (int i = int(threadIdx.x); i < (taps + 1) * group; i += threads) {
    const int c = i < taps * group ? i / taps : i - taps * group, v = i < taps * group ? i % taps : taps;
    if (first_channel + c >= t.channels) continue;
    float sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += shared[2 * (v * threads + 32 * warp) + c];
    part[v < taps ? (first_channel + c) * taps + v : taps * t.channels + first_channel + c] = sum;
  }
#endif
}

constexpr int sums_bytes = (taps + 1) * threads * int(sizeof(float2));

/// From what these kernels read to what they make.
Geometry geometry(const Problem& p) {
  const Geometry g = geometry(*conv_shapes(p));
  return is_data_gradient(p.op.kind) ? reversed(g) : g;
}

/// The tiling that takes least time by a model: a multiprocessor's rounds of tiles, each bound by instructions or by
/// what is copied and stored. (Smaller ones, that more blocks could work on at once, were slower: their walks are
/// short.)
Tiling best_tiling(const Problem& p) {
  const bool weights = p.op.kind == OpKind::conv_backward_weights;
  const Geometry g = geometry(p);
  const int stride = g.stride[0];
  Tiling best{}, t{};
  for (int i = 0; i < 2; ++i) t.out[i] = g.out[i], t.pad[i] = g.pad[i];
  t.channels = int(p.in[0].shape.c()), t.images = int(g.images);
  t.flipped = is_data_gradient(p.op.kind);
  t.pitch = weights ? 0 : p.out[0].pixel_pitch();
  constexpr int most_bytes = 56 * 1024, most_extent = 256;
  constexpr double bytes_per_clock = 20;
  const double instructions = stride == 1 ? 71 : 49;  // of a column
  double least = std::numeric_limits<double>::infinity();
  for (t.pairs = 2; t.pairs <= warps; t.pairs *= 2)
    for (t.segment = 4; t.segment <= 40; ++t.segment) {
      t.in_rows = (t.rows() - 1) * stride + 3, t.in_columns = (t.columns() - 1) * stride + 3;
      t.across = pieces(t.out[1], t.columns()), t.down = pieces(t.out[0], t.rows());
      const int bytes = t.x_bytes() + (weights ? t.gradient_bytes() : 0);
      if (t.in_rows > most_extent || t.in_columns > most_extent || bytes > most_bytes) continue;
      const double issued = warps / 4 * (((t.segment - 1) * stride + 3) * instructions + 150),
                   moved = (t.x_bytes() + t.gradient_bytes()) / bytes_per_clock;
      const double clocks = pieces(int64_t(t.tiles()) * t.groups(), multiprocessors()) * std::max(issued, moved);
      if (clocks >= least) continue;
      least = clocks, best = t;
      const auto at_once = [&](int stages) {
        const int of_one = std::min(blocks_at_once, hopper_shared_bytes / (stages * bytes + 1024 + 128));
        return std::max(1, of_one * multiprocessors() / t.groups());
      };
      best.stages = t.tiles() <= at_once(1) ? 1 : 2;
      best.blocks = pieces(t.tiles(), pieces(t.tiles(), at_once(best.stages)));
    }
  return best;
}

int shared_bytes(const Tiling& t, bool weights) {
  return std::max(t.stages * (t.x_bytes() + (weights ? t.gradient_bytes() : 0)), weights ? sums_bytes : 0) + 128;
}

/// f(a zero of the type, the stride).
template <class F>
void with_kind(DType type, int stride, F&& f) {
  dispatch_16(type, [&](auto zero) {
    stride == 1 ? f(zero, std::integral_constant<int, 1>()) : f(zero, std::integral_constant<int, 2>());
  });
}

template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), const Tiling& t, int bytes, Args&&... args) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), hopper_shared_bytes - 1024);
  launch_early(kernel, dim3(static_cast<unsigned>(t.blocks * t.groups())), dim3(threads), bytes, t,
               std::forward<Args>(args)...);
}

std::string detail(const Tiling& t) {
  return "tiles of " + std::to_string(t.rows()) + "x" + std::to_string(t.columns());
}

CUtensorMap tile_map(const Tensor& x, const int (&extent)[2], int columns, int rows) {
  return image_map(name, x, {1, extent[0], extent[1]}, x.shape().n(), {columns, rows, false});
}

std::unique_ptr<Prepared> prepare_map(const Problem& p) {
  const Tiling t = best_tiling(p);
  return prepared(
      [t, g = geometry(p), adds = adds_to_value(p)](const KernelArgs& a) {
        expect_even_place(name, a.out[0], "an output", 4);
        const CUtensorMap x = tile_map(a.in[0], g.in, t.in_columns, t.in_rows);
        if (adds) {
          expect_even_place(name, a.in[2], "what it adds to", 4);
          return dispatch_16(a.in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            launch(map<T, 1, true>, t, shared_bytes(t, false), x, data<const T>(a.in[1]), nullptr,
                   pixels<const T>(a.in[2]), data<T>(a.out[0]));
          });
        }
        with_kind(a.in[0].dtype(), g.stride[0], [&](auto zero, auto stride) {
          using T = decltype(zero);
          launch(map<T, stride, false>, t, shared_bytes(t, false), x, data<const T>(a.in[1]),
                 a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, Pixels<const T>{}, data<T>(a.out[0]));
        });
      },
      0, detail(t));
}

std::unique_ptr<Prepared> prepare_weights(const Problem& p) {
  const Tiling t = best_tiling(p);
  const int64_t values = int64_t(taps + 1) * t.channels;
  return prepared(
      [t, values, g = geometry(p)](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float*>(a.workspace);
        const CUtensorMap x = tile_map(a.in[0], g.in, t.in_columns, t.in_rows),
                          dy = tile_map(a.in[1], g.out, t.columns(), t.rows());
        with_kind(a.in[0].dtype(), g.stride[0], [&](auto zero, auto stride) {
          launch(weight_gradients<decltype(zero), stride>, t, shared_bytes(t, true), x, dy, parts);
        });
        add_parts(t.blocks, values, parts,
                  ToTwoVectors{data<float>(a.out[0]), data<float>(a.out[1]), int64_t(taps) * t.channels});
      },
      4 * t.blocks * values, detail(t));
}

Support supports(const Problem& p) {
  const bool weights = p.op.kind == OpKind::conv_backward_weights;
  if (const Support images = hopper_images(p); !images.ok) return images;
  if (const Support in = copied({&p.in[0], weights ? &p.in[1] : &p.in[0]}); !in.ok) return in;
  const ConvShapes s = *conv_shapes(p);
  if (const Support filters = filters_of_channels(s); !filters.ok) return filters;
  if (s.attrs.dilation[1] != 1 || s.attrs.dilation[2] != 1) return Support::no("no dilation");
  const int64_t stride = s.attrs.stride[1];
  if (s.attrs.stride[2] != stride || stride > 2) return Support::no("strides of 1 or 2 on both axes only");
  if (is_data_gradient(p.op.kind) && stride != 1) return Support::no("no stride");
  if (weights) return Support::yes();
  if (adds_to_value(p) && p.in[2].pixel_pitch() % 2 != 0)
    return Support::no("adds to an even number of channels between pixels");
  if (p.out[0].pixel_pitch() % 2 != 0) return Support::no("an even number of channels between pixels");
  if (p.out[0].pixel_pitch() * 2 * p.out[0].shape.w() >= int64_t{1} << 31) return Support::no("rows 2^31 bytes apart");
  return Support::yes();
}

}  // namespace
}  // namespace depthwise_tma

std::vector<KernelPtr> depthwise_tma_kernels() {
  using namespace depthwise_tma;
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_data_add})
    list.push_back(kernel(name, kind, supports, prepare_map));
  list.push_back(kernel(name, OpKind::conv_backward_weights, supports, prepare_weights));
  return list;
}

}  // namespace convoy
