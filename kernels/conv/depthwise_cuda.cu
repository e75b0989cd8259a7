// Depthwise 3x3 convolutions of images on CUDA devices (groups = channels on both sides): any stride, dilation and
// padding, dense tensors and slices. A thread keeps the nine weights of its channels, or their gradients, in registers,
// and takes strips of four neighbouring outputs, whose columns it loads once. Maps of stride and dilation 1 walk down
// the rows and load every input row once, for the three rows of outputs that need it. Bound by memory.
#include "core/conv_shapes.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/device/pixels.h"
#include "kernels/device/sums.h"

namespace convoy {
namespace {

using namespace cuda;

constexpr int channels_each = 4, strip = 4, taps = 9;
constexpr int channels_of_rows = 2;  ///< where the sums of three rows are under way

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
  for (int k = 0; k < width; ++k) out.v[k] = to_float(pack.v[k]);
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

/// f(position of the strip, tap of the row, input) for all products of a strip's row of taps. A known stride, 1 or 2,
/// of neighbouring taps: every column is loaded once.
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

/// Output = sum of weights times inputs, plus a bias. stride 1, 2: of neighbouring taps; 0: any.
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

/// backward_data of strided convolutions: `g` is reversed, its stride that of the forward one; known: 2, else 0.
template <int width, int known, class T>
__global__ void __launch_bounds__(256, 2)
    gather(const Geometry g, int packs, Pixels<const T> dy, const T* w, const float* bias, Pixels<T> dx) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  if (pack >= packs) return;
  const Weights<width> weights(w, channel, true);
  const int down = known ? known : g.stride[0], across = known ? known : g.stride[1];
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

/// How outputs are shared among the threads of a map of stride and dilation 1: a strip of columns in a segment of rows
/// to each.
struct Segments {
  int strips, rows, each;  ///< strips across, segments below each other, rows of a segment
  int64_t count;           ///< of all images
};

/// A thread's rows of outputs and its strip of their columns.
struct Segment {
  int column, begin, end;
  int64_t image;
  __device__ Segment(int64_t i, const Geometry& g, const Segments& s) {
    column = int(i % s.strips) * strip, i /= s.strips;
    begin = int(i % s.rows) * s.each, end = min(begin + s.each, g.out[0]);
    image = i / s.rows;
  }
};

/// Inputs of a strip in one row, as they lie in memory; zeros outside the image.
template <int count, int width, class T>
struct RawRow {
  Pack<T, width> v[count];
  __device__ RawRow(const Pixels<const T>& x, int64_t image, const int extent[2], int row, int column, int channel) {
    const bool row_exists = row >= 0 && row < extent[0];
    const int64_t first = (image * extent[0] + row) * extent[1];
#pragma unroll
    for (int j = 0; j < count; ++j) {
      for (int k = 0; k < width; ++k) v[j].v[k] = from_float<T>(0);
      if (row_exists && column + j >= 0 && column + j < extent[1])
        v[j] = x.template load<width>(first + column + j, channel);
    }
  }
};

/// The map with stride and dilation 1. Sums of three rows of outputs are under way: input row h adds its products to
/// rows h + pad (tap row 0), h + pad - 1 and h + pad - 2, which is complete then.
template <int width, class T>
__global__ void __launch_bounds__(256, 2)
    depthwise_rows(Geometry g, Segments segments, int packs, bool flipped, Pixels<const T> x, const T* w,
                   const float* bias, Pixels<T> y) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  const int64_t i = int64_t(blockIdx.y) * blockDim.y + threadIdx.y;
  if (pack >= packs || i >= segments.count) return;
  const Segment at(i, g, segments);
  const Weights<width> weights(w, channel, flipped);
  float start[width], sums[3][strip][width];
  for (int k = 0; k < width; ++k) start[k] = bias ? bias[channel + k] : 0.0f;
  const int first = at.begin - g.pad[0], last = at.end + 1 - g.pad[0], column = at.column - g.pad[1];
  RawRow<strip + 2, width, T> next(x, at.image, g.in, first, column, channel);
#pragma unroll 3
  for (int h = first; h <= last; ++h) {
    const RawRow<strip + 2, width, T> row = next;
    if (h < last) next = RawRow<strip + 2, width, T>(x, at.image, g.in, h + 1, column, channel);
#pragma unroll
    for (int s = 0; s < strip; ++s)
      for (int k = 0; k < width; ++k)
        sums[2][s][k] = sums[1][s][k], sums[1][s][k] = sums[0][s][k], sums[0][s][k] = start[k];
#pragma unroll
    for (int j = 0; j < strip + 2; ++j) {
      const Values<width> v = widened<width>(row.v[j]);
#pragma unroll
      for (int kw = 0; kw < 3; ++kw) {
        const int s = j - kw;
        if (s < 0 || s >= strip) continue;
#pragma unroll
        for (int kh = 0; kh < 3; ++kh)
          for (int k = 0; k < width; ++k) sums[kh][s][k] = fmaf(v.v[k], weights.v[3 * kh + kw][k], sums[kh][s][k]);
      }
    }
    const int complete = h + g.pad[0] - 2;
    if (complete < at.begin) continue;
#pragma unroll
    for (int s = 0; s < strip; ++s) {
      if (at.column + s >= g.out[1]) break;
      Pack<T, width> out;
      for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sums[2][s][k]);
      y.store((at.image * g.out[0] + complete) * g.out[1] + at.column + s, channel, out);
    }
  }
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
  for (int rows = int(blockDim.y) / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (int(threadIdx.y) < rows)
      for (int v = 0; v < values; ++v) shared[v * 256 + thread] += shared[v * 256 + thread + rows * int(blockDim.x)];
  }
  if (threadIdx.y > 0 || pack >= packs) return;
  const int64_t channels = int64_t(packs) * width;
  float* part = parts + blockIdx.y * (taps + 1) * channels;
  for (int k = 0; k < width; ++k) {
    for (int t = 0; t < taps; ++t) part[(channel + k) * taps + t] = shared[(t * width + k) * 256 + thread];
    part[taps * channels + channel + k] = shared[(taps * width + k) * 256 + thread];
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

/// 1 or 2 where kernels know the stride, else 0.
int known_stride(const Geometry& g) {
  return g.dilation[1] == 1 && g.stride[1] <= 2 ? g.stride[1] : 0;
}
template <class F>
void with_stride(int stride, F&& f) {
  if (stride == 1)
    f(std::integral_constant<int, 1>());
  else if (stride == 2)
    f(std::integral_constant<int, 2>());
  else
    f(std::integral_constant<int, 0>());
}

bool plain(const Geometry& g) {
  return g.stride[0] == 1 && g.stride[1] == 1 && g.dilation[0] == 1 && g.dilation[1] == 1;
}

/// Threads across channels, and segments as long as leaves two blocks for every multiprocessor.
struct RowGrid {
  Segments segments;
  dim3 blocks, threads;
  RowGrid(const Geometry& g, int64_t packs) {
    for (int each : {64, 32, 16, 8, 4}) {
      const int rows = (g.out[0] + each - 1) / each;
      segments = {g.strips(), rows, each, g.images * g.strips() * rows};
      // With as many blocks allowed as there are segments, one to a thread.
      const PixelGrid grid(segments.count, packs, int64_t{1} << 30);
      blocks = grid.blocks, threads = grid.threads;
      if (int64_t(blocks.x) * blocks.y >= 2 * multiprocessors()) break;
    }
  }
};

PixelGrid grid_of_strips(const Geometry& g, int64_t packs) {
  return {g.images * g.out[0] * g.strips(), packs, 2};
}

/// From in[0] to out[0] through in[1].
template <class T>
void queue_map(const KernelArgs& a, const Geometry& g, bool flipped) {
  const Pixels<const T> x = pixels<const T>(a.in[0]);
  const Pixels<T> y = pixels<T>(a.out[0]);
  const T* w = data<const T>(a.in[1]);
  const float* bias = a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
  if (plain(g))
    with_width<T, channels_of_rows>({&a.in[0], &a.out[0]}, [&](auto width) {
      const int packs = int(a.out[0].shape().c() / width);
      const RowGrid grid(g, packs);
      depthwise_rows<width>
          <<<grid.blocks, grid.threads, 0, stream()>>>(g, grid.segments, packs, flipped, x, w, bias, y);
    });
  else
    with_width<T, channels_each>({&a.in[0], &a.out[0]}, [&](auto width) {
      const int packs = int(a.out[0].shape().c() / width);
      const PixelGrid grid = grid_of_strips(g, packs);
      with_stride(known_stride(g), [&](auto stride) {
        depthwise<width, stride>
            <<<grid.blocks, grid.threads, 0, stream()>>>(g, g.strips(), packs, flipped, x, w, bias, y);
      });
    });
  check_launch("a depthwise convolution");
}

template <class T>
void queue_gather(const KernelArgs& a, const Geometry& g) {
  const float* bias = a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
  with_width<T, channels_each>({&a.in[0], &a.out[0]}, [&](auto width) {
    const int packs = int(a.out[0].shape().c() / width);
    const PixelGrid grid(g.images * g.out[0] * g.out[1], packs, 2);
    const auto kernel = g.stride[0] == 2 && g.stride[1] == 2 ? gather<width, 2, T> : gather<width, 0, T>;
    kernel<<<grid.blocks, grid.threads, 0, stream()>>>(g, packs, pixels<const T>(a.in[0]), data<const T>(a.in[1]), bias,
                                                       pixels<T>(a.out[0]));
  });
  check_launch("a depthwise convolution's data gradient");
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([g = geometry(*conv_shapes(p))](const KernelArgs& a) {
    dispatch(a.in[0].dtype(), [&](auto zero) { queue_map<decltype(zero)>(a, g, false); });
  });
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  const Geometry forward = geometry(*conv_shapes(p));
  return prepared([g = reversed(forward),
                   strided = forward.stride[0] > 1 || forward.stride[1] > 1](const KernelArgs& a) {
    dispatch(a.in[0].dtype(),
             [&](auto zero) { strided ? queue_gather<decltype(zero)>(a, g) : queue_map<decltype(zero)>(a, g, true); });
  });
}

std::unique_ptr<Prepared> prepare_backward_weights(const Problem& p) {
  const Geometry g = geometry(*conv_shapes(p));
  const int64_t channels = p.in[0].shape.c();
  const unsigned most = std::max(grid_of_strips(g, channels).blocks.y,
                                 grid_of_strips(g, (channels + channels_each - 1) / channels_each).blocks.y);
  return prepared(
      [g, channels](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float*>(a.workspace);
        dispatch(a.in[0].dtype(), [&](auto zero) {
          using T = decltype(zero);
          with_width<T, channels_each>({&a.in[0], &a.in[1]}, [&](auto width) {
            const int packs = int(channels / width);
            const PixelGrid grid = grid_of_strips(g, packs);
            with_stride(known_stride(g), [&](auto stride) {
              weight_gradients<width, stride><<<grid.blocks, grid.threads, 0, stream()>>>(
                  g, g.strips(), packs, pixels<const T>(a.in[0]), pixels<const T>(a.in[1]), parts);
            });
            check_launch("a depthwise convolution's weight gradient");
            add_parts(int(grid.blocks.y), (taps + 1) * channels, parts,
                      ToTwoVectors{data<float>(a.out[0]), data<float>(a.out[1]), taps * channels});
          });
        });
      },
      4 * int64_t(most) * (taps + 1) * channels);
}

Support supports(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.groups != s.x.c() || s.attrs.groups != s.y.c()) return Support::no("as many groups as channels only");
  if (s.x.d() != 1 || s.y.d() != 1 || s.attrs.pad_low[0] != 0) return Support::no("images only");
  if (s.w.d() != 1 || s.w.h() != 3 || s.w.w() != 3) return Support::no("3x3 only");
  if (s.x.rows() > 1 << 26) return Support::no("more than 2^26 pixels");
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
