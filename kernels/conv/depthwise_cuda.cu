// Depthwise 3x3 convolutions of images on CUDA devices (groups = channels on both sides): any stride, dilation and
// padding, dense tensors and slices. A thread keeps the nine weights of its channels, or their gradients, in registers,
// and takes strips of four neighbouring outputs, whose columns it loads once; with stride 1 it takes several
// such strips below each other, whose rows it loads once. Outputs of a strip beyond the image have a gradient of zero:
// an input that is not finite may reach a tap's gradient that no output of the image gives it. Bound by memory.
#include "core/conv_shapes.h"
#include "kernels/conv/depthwise_tiles.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace depthwise_cuda {
namespace {

using namespace cuda;
using namespace cuda::depthwise_3x3;

constexpr int channels_each = 4;  ///< of a thread that takes single strips

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

/// Weight gradients of any stride and dilation.
template <int width, int stride, class T>
__global__ void __launch_bounds__(256, 2)
    weight_gradients(Geometry g, int strips, int packs, Pixels<const T> x, Pixels<const T> dy, float* parts) {
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
  leave_part(sums, packs, parts);
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
dim3 grid_of_tiles(int64_t tiles, int64_t groups) {
  const int64_t most = std::max<int64_t>(1, weights_at_once * multiprocessors() / groups),
                each = (tiles + most - 1) / most;
  return dim3(static_cast<unsigned>(groups), static_cast<unsigned>((tiles + each - 1) / each));
}
PixelGrid grid_of_strips(const Geometry& g, int64_t packs) {
  return {g.images * g.out[0] * g.strips(), packs, 2};
}

/// Queues a kernel of tiles; `margin`: rows and columns that tiles begin ahead of the outputs.
template <class T>
void queue_tiles(void (*kernel)(TileWork<T>), int width, const KernelArgs& a, const Geometry& g, bool flipped,
                 const int (&margin)[2]) {
  const int packs = int(a.out[0].shape().c()) / width, groups = (packs + 31) / 32;
  Geometry wider = g;
  for (int i = 0; i < 2; ++i) wider.out[i] += margin[i];
  const Tiles tiles(wider, map_rows);
  // Several tiles to a block, for its weights' sake, where that leaves many more blocks than run at once.
  const int64_t many = 8 * tiles_at_once<T> * multiprocessors();
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

/// How many rows a thread takes: many, where their blocks still run in several rounds and registers hold them.
template <class T, class F>
void with_rows(const Geometry& g, int groups, F&& f) {
  if constexpr (sizeof(T) == 2)
    if (groups * Tiles(g, many_rows).count() * g.images >= 4 * weights_at_once * multiprocessors())
      return f(std::integral_constant<int, many_rows>());
  f(std::integral_constant<int, few_rows>());
}

/// Queues the parts of the weight gradients, and how many they are.
template <class T>
int queue_parts(const KernelArgs& a, const Geometry& g, float* parts) {
  const Pixels<const T> x = pixels<const T>(a.in[0]), dy = pixels<const T>(a.in[1]);
  const int64_t channels = a.in[0].shape().c();
  dim3 blocks;
  if (unstrided(g))
    with_width<T, channels_of_rows>({&a.in[0], &a.in[1]}, [&](auto width) {
      const int packs = int(channels / width), groups = (packs + 31) / 32;
      with_rows<T>(g, groups, [&](auto rows) {
        const Tiles tiles(g, rows);
        blocks = grid_of_tiles(g.images * tiles.count(), groups);
        launch_early(weight_gradients_of_tiles<width, rows, T>, blocks, dim3(32, Tiles::threads_down), 0, g, tiles,
                     packs, x, dy, parts);
      });
    });
  else
    with_width<T, channels_each>({&a.in[0], &a.in[1]}, [&](auto width) {
      const int packs = int(channels / width);
      const PixelGrid grid = grid_of_strips(g, packs);
      blocks = grid.blocks;
      with_stride(g, [&](auto stride) {
        weight_gradients<width, stride><<<blocks, grid.threads, 0, stream()>>>(g, g.strips(), packs, x, dy, parts);
      });
    });
  check_launch("a depthwise convolution's weight gradient");
  return int(blocks.y);
}

/// The most that queue_parts() makes, whatever the alignment of the tensors.
int64_t most_parts(const Geometry& g, int64_t channels) {
  unsigned most = 0;
  for (int width : {1, channels_of_rows, channels_each}) {
    const int64_t packs = (channels + width - 1) / width;
    if (!unstrided(g)) most = std::max(most, grid_of_strips(g, packs).blocks.y);
    for (int rows : {few_rows, many_rows})
      if (unstrided(g)) most = std::max(most, grid_of_tiles(g.images * Tiles(g, rows).count(), (packs + 31) / 32).y);
  }
  return most;
}

std::unique_ptr<Prepared> prepare_backward_weights(const Problem& p) {
  const Geometry g = geometry(*conv_shapes(p));
  const int64_t channels = p.in[0].shape.c();
  return prepared(
      [g, channels](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float*>(a.workspace);
        int count = 0;
        dispatch(a.in[0].dtype(), [&](auto zero) { count = queue_parts<decltype(zero)>(a, g, parts); });
        add_parts(count, (taps + 1) * channels, parts,
                  ToTwoVectors{data<float>(a.out[0]), data<float>(a.out[1]), taps * channels});
      },
      4 * most_parts(g, channels) * (taps + 1) * channels);
}

Support supports(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  if (const Support filters = filters_of_channels(s); !filters.ok) return filters;
  if (s.x.d() != 1 || s.y.d() != 1 || s.attrs.pad_low[0] != 0) return Support::no("images only");
  if (std::max(s.x.rows(), s.y.rows()) > 1 << 26) return Support::no("more than 2^26 pixels");
  if (std::max({s.x.n(), s.x.h(), s.y.h()}) >= 1 << 16) return Support::no("more than 65535 images or rows");
  if (std::max(s.attrs.dilation[1], s.attrs.dilation[2]) >= 1 << 16) return Support::no("dilation above 65535");
  if (const Support even = even_convolution(p); !even.ok) return even;
  // Kernels step from row to row, and between taps, in 32 bits; the second input of maps is the weights.
  const bool weights = p.op.kind == OpKind::conv_backward_weights;
  for (const TensorDesc* t : {&p.in[0], weights ? &p.in[1] : &p.out[0]})
    if (t->pixel_pitch() * size_of(t->dtype) * std::max(t->shape.w() * s.attrs.dilation[1], s.attrs.dilation[2]) >=
        int64_t{1} << 31)
      return Support::no("rows 2^31 bytes apart");
  return Support::yes();
}

}  // namespace
}  // namespace depthwise_cuda

std::vector<KernelPtr> depthwise_cuda_kernels() {
  using namespace depthwise_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_depthwise", OpKind::conv_forward, supports, prepare_forward));
  list.push_back(kernel("cuda_depthwise", OpKind::conv_backward_data, supports, prepare_backward_data));
  list.push_back(kernel("cuda_depthwise", OpKind::conv_backward_weights, supports, prepare_backward_weights));
  return list;
}

}  // namespace convoy
