// Max and average pools of any window, stride and padding on CUDA devices, dense tensors and slices: a position and 16
// bytes of its channels to a thread; averages of large windows are shared by the threads of a block. Gradients are
// gathered window by window, in the same order in every run.
#include <limits>

#include "kernels/device/channel_sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace pool_windows_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256;

struct Geometry {
  int x[3], y[3], kernel[3], stride[3], pad[3];
  bool count_padding;
};

Geometry geometry(const PoolAttrs& a, const Shape& x, const Shape& y) {
  Geometry g{};
  for (int i = 0; i < 3; ++i) {
    const auto axis = static_cast<size_t>(i);
    g.x[i] = int(x[i + 1]), g.y[i] = int(y[i + 1]), g.kernel[i] = int(a.kernel[axis]);
    g.stride[i] = int(a.stride[axis]), g.pad[i] = int(a.pad_low[axis]);
  }
  g.count_padding = a.count_padding != 0;
  return g;
}

/// A position of an image or volume.
struct Place {
  int at[3];
  int64_t n;
  __device__ Place(int64_t i, const int extent[3]) {
    for (int axis = 2; axis >= 0; --axis) at[axis] = int(i % extent[axis]), i /= extent[axis];
    n = i;
  }
};

/// The part of a window that lies inside: [begin, end) of the input along each axis, and where the window starts.
struct Window {
  int start[3], begin[3], end[3];
  __device__ Window(const Geometry& g, const int at[3]) {
    for (int i = 0; i < 3; ++i) {
      start[i] = at[i] * g.stride[i] - g.pad[i];
      begin[i] = max(0, start[i]), end[i] = min(g.x[i], start[i] + g.kernel[i]);
    }
  }
  __device__ int inside() const {
    int count = 1;
    for (int i = 0; i < 3; ++i) count *= max(0, end[i] - begin[i]);
    return count;
  }
  __device__ float divisor(const Geometry& g) const {
    return float(g.count_padding ? g.kernel[0] * g.kernel[1] * g.kernel[2] : inside());
  }
};

__device__ int64_t pixel_of(const int extent[3], int64_t n, int d, int h, int w) {
  return ((n * extent[0] + d) * extent[1] + h) * extent[2] + w;
}

template <int width, class T>
__global__ void max_pool(int64_t count, int packs, Geometry g, Pixels<const T> x, Pixels<T> y, Pixels<uint8_t> arg) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const int channel = int(i % packs) * width;
    const Place p(i / packs, g.y);
    const Window window(g, p.at);
    Pack<T, width> best;
    Pack<uint8_t, width> winner;
    bool first = true;
    for (int d = window.begin[0]; d < window.end[0]; ++d)
      for (int h = window.begin[1]; h < window.end[1]; ++h)
        for (int w = window.begin[2]; w < window.end[2]; ++w) {
          const auto v = x.template load<width>(pixel_of(g.x, p.n, d, h, w), channel);
          const auto code = static_cast<uint8_t>(
              ((d - window.start[0]) * g.kernel[1] + h - window.start[1]) * g.kernel[2] + w - window.start[2]);
          for (int k = 0; k < width; ++k) {
            const float value = to_float(v.v[k]), other = first ? 0 : to_float(best.v[k]);
            // A NaN wins and stays.
            if (first || value > other || (isnan(value) && !isnan(other))) best.v[k] = v.v[k], winner.v[k] = code;
          }
          first = false;
        }
    y.store(i / packs, channel, best), arg.store(i / packs, channel, winner);
  }
}

/// f(pixel of the pooled map, its window) for every window that holds position `p` of the input.
template <class F>
__device__ void for_windows(const Geometry& g, const Place& p, F&& f) {
  int begin[3], end[3];
  for (int i = 0; i < 3; ++i) {
    const int at = p.at[i] + g.pad[i];
    begin[i] = max(0, at - g.kernel[i] + g.stride[i]) / g.stride[i];
    end[i] = min(g.y[i], at / g.stride[i] + 1);
  }
  for (int d = begin[0]; d < end[0]; ++d)
    for (int h = begin[1]; h < end[1]; ++h)
      for (int w = begin[2]; w < end[2]; ++w) {
        const int at[3] = {d, h, w};
        f(pixel_of(g.y, p.n, d, h, w), Window(g, at));
      }
}

template <int width, class T>
__global__ void max_pool_backward(int64_t count, int packs, Geometry g, Pixels<const T> dy, Pixels<const uint8_t> arg,
                                  Pixels<T> dx) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const int channel = int(i % packs) * width;
    const Place p(i / packs, g.x);
    float sum[width] = {};
    for_windows(g, p, [&](int64_t pixel, const Window& window) {
      const int code = ((p.at[0] - window.start[0]) * g.kernel[1] + p.at[1] - window.start[1]) * g.kernel[2] + p.at[2] -
                       window.start[2];
      const auto winner = arg.template load<width>(pixel, channel);
      const auto v = dy.template load<width>(pixel, channel);
      for (int k = 0; k < width; ++k)
        if (winner.v[k] == code) sum[k] += to_float(v.v[k]);
    });
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sum[k]);
    dx.store(i / packs, channel, out);
  }
}

/// Blocks of (32, 8) threads: packs of channels side by side, positions of the window below each other.
template <int width, class T>
__global__ void avg_pool(int packs, Geometry g, Pixels<const T> x, Pixels<T> y) {
  __shared__ float shared[8][32 * width];
  const int pack = int(blockIdx.y) * 32 + int(threadIdx.x), channel = pack * width;
  const Place p(blockIdx.x, g.y);
  const Window window(g, p.at);
  const int height = window.end[1] - window.begin[1], across = window.end[2] - window.begin[2];
  float sum[width] = {};
  if (pack < packs)
#pragma unroll 4
    for (int i = int(threadIdx.y); i < window.inside(); i += 8) {
      const int w = window.begin[2] + i % across, h = window.begin[1] + i / across % height,
                d = window.begin[0] + i / across / height;
      const auto v = x.template load<width>(pixel_of(g.x, p.n, d, h, w), channel);
      for (int k = 0; k < width; ++k) sum[k] += to_float(v.v[k]);
    }
  for (int k = 0; k < width; ++k) shared[threadIdx.y][k * 32 + threadIdx.x] = sum[k];
  __syncthreads();
  if (threadIdx.y > 0 || pack >= packs) return;
  Pack<T, width> out;
  for (int k = 0; k < width; ++k) {
    for (int row = 1; row < 8; ++row) sum[k] += shared[row][k * 32 + threadIdx.x];
    out.v[k] = from_float<T>(sum[k] / window.divisor(g));
  }
  y.store(blockIdx.x, channel, out);
}

template <int width, class T>
__global__ void avg_pool_backward(int64_t count, int packs, Geometry g, Pixels<const T> dy, Pixels<T> dx) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const int channel = int(i % packs) * width;
    const Place p(i / packs, g.x);
    float sum[width] = {};
    for_windows(g, p, [&](int64_t pixel, const Window& window) {
      const auto v = dy.template load<width>(pixel, channel);
      for (int k = 0; k < width; ++k) sum[k] += to_float(v.v[k]) / window.divisor(g);
    });
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sum[k]);
    dx.store(i / packs, channel, out);
  }
}

/// Bytes of channels are read by instructions as long as those of the values allow.
template <class F>
void dispatch_pixels(const Problem& p, std::initializer_list<const Tensor*> tensors, const Tensor* arg, F&& f) {
  dispatch(p.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    with_width<T>(tensors, [&](auto width) {
      const bool fits = !arg || (arg->desc().pixel_pitch() % width == 0 &&
                                 reinterpret_cast<uintptr_t>(arg->bytes()) % static_cast<uintptr_t>(width) == 0);
      if (fits)
        f(zero, width);
      else
        f(zero, std::integral_constant<int, 1>());
    });
  });
}

std::unique_ptr<Prepared> prepare_max(const Problem& p) {
  return prepared([p, g = geometry(p.op.as<PoolAttrs>(), p.in[0].shape, p.out[0].shape)](const KernelArgs& a) {
    dispatch_pixels(p, {&a.in[0], &a.out[0]}, &a.out[1], [&](auto zero, auto width) {
      using T = decltype(zero);
      const int64_t count = p.out[0].shape.elements() / width;
      max_pool<width><<<grid_for(count, threads), threads, 0, stream()>>>(count, int(p.out[0].shape.c() / width), g,
                                                                          pixels<const T>(a.in[0]), pixels<T>(a.out[0]),
                                                                          pixels<uint8_t>(a.out[1]));
    });
    check_launch("max_pool");
  });
}

std::unique_ptr<Prepared> prepare_max_backward(const Problem& p) {
  return prepared([p, g = geometry(p.op.as<PoolAttrs>(), p.out[0].shape, p.in[0].shape)](const KernelArgs& a) {
    dispatch_pixels(p, {&a.in[0], &a.out[0]}, &a.in[1], [&](auto zero, auto width) {
      using T = decltype(zero);
      const int64_t count = p.out[0].shape.elements() / width;
      max_pool_backward<width><<<grid_for(count, threads), threads, 0, stream()>>>(
          count, int(p.out[0].shape.c() / width), g, pixels<const T>(a.in[0]), pixels<const uint8_t>(a.in[1]),
          pixels<T>(a.out[0]));
    });
    check_launch("max_pool_backward");
  });
}

/// One window over each image.
std::unique_ptr<Prepared> prepare_image_average(const Problem& p) {
  const Shape x = p.in[0].shape;
  const int64_t each = x.d() * x.h() * x.w();
  return prepared(
      [each](const KernelArgs& a) {
        dispatch(a.out[0].dtype(), [&](auto zero) {
          const Pixels<decltype(zero)> y = pixels<decltype(zero)>(a.out[0]);
          queue_sums_of_images(a.in[0], each, 1 / double(each), a.workspace, y.data, y.pitch);
        });
      },
      channel_sum_bytes(each, x.c(), 1));
}

/// A block to each pixel of the output.
Support supports_avg(const Problem& p) {
  if (p.out[0].shape.rows() > std::numeric_limits<int>::max())
    return Support::no("at most 2^31 - 1 pixels, found " + std::to_string(p.out[0].shape.rows()));
  return even_sums(p);
}

std::unique_ptr<Prepared> prepare_avg(const Problem& p) {
  const PoolAttrs& attrs = p.op.as<PoolAttrs>();
  const Shape& image = p.in[0].shape;
  if (attrs.kernel == spatial(image) && p.out[0].shape.rows() == image.n() && attrs.pad_low == Int3{0, 0, 0})
    return prepare_image_average(p);
  return prepared([p, g = geometry(p.op.as<PoolAttrs>(), p.in[0].shape, p.out[0].shape)](const KernelArgs& a) {
    dispatch_pixels(p, {&a.in[0], &a.out[0]}, nullptr, [&](auto zero, auto width) {
      using T = decltype(zero);
      const int packs = int(p.out[0].shape.c() / width);
      const dim3 blocks(static_cast<unsigned>(p.out[0].shape.rows()), static_cast<unsigned>((packs + 31) / 32));
      avg_pool<width><<<blocks, dim3(32, 8), 0, stream()>>>(packs, g, pixels<const T>(a.in[0]), pixels<T>(a.out[0]));
    });
    check_launch("avg_pool");
  });
}

std::unique_ptr<Prepared> prepare_avg_backward(const Problem& p) {
  return prepared([p, g = geometry(p.op.as<PoolAttrs>(), p.out[0].shape, p.in[0].shape)](const KernelArgs& a) {
    dispatch_pixels(p, {&a.in[0], &a.out[0]}, nullptr, [&](auto zero, auto width) {
      using T = decltype(zero);
      const int64_t count = p.out[0].shape.elements() / width;
      avg_pool_backward<width><<<grid_for(count, threads), threads, 0, stream()>>>(
          count, int(p.out[0].shape.c() / width), g, pixels<const T>(a.in[0]), pixels<T>(a.out[0]));
    });
    check_launch("avg_pool_backward");
  });
}

}  // namespace
}  // namespace pool_windows_cuda

std::vector<KernelPtr> pool_windows_cuda_kernels() {
  using namespace pool_windows_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::max_pool, even_floats, prepare_max));
  list.push_back(kernel("cuda", OpKind::max_pool_backward, even_floats, prepare_max_backward));
  list.push_back(kernel("cuda", OpKind::avg_pool, supports_avg, prepare_avg));
  list.push_back(kernel("cuda", OpKind::avg_pool_backward, even_floats, prepare_avg_backward));
  return list;
}

}  // namespace convoy
