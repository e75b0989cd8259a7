#include "kernels/conv/conv_cuda_passes.h"

#include "kernels/device/channel_sums.h"

namespace convoy::cuda {
namespace conv_cuda_passes {
namespace {

constexpr int threads = 256;

template <class T, int width>
struct BiasActivation {
  static constexpr int values_of_channel = 1;
  Pixels<const T> from;
  Pixels<T> to;
  const float* bias;
  float slope;
  __device__ void of_channel(int c, float (&v)[1]) const { v[0] = bias ? bias[c] : 0.0f; }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return from.template load<width>(pixel, channel); }
  __device__ void finish(const OfChannels<1, width>& own, const Pack<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float value = value_of(v, k) + own.v[0][k];
      out.v[k] = from_float<T>(value > 0 ? value : slope * value);
    }
    to.store(pixel, channel, out);
  }
};

struct Extents {
  int from[3], to[3], offset[3];
};

template <int width, class T>
__global__ void place(int64_t count, int packs, Extents e, Pixels<const T> from, Pixels<T> to) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const int channel = int(i % packs) * width;
    const int64_t pixel = i / packs;
    int64_t at = pixel, source = 0, stride = 1;
    bool inside = true;
    for (int axis = 2; axis >= 0; --axis) {
      const int position = int(at % e.to[axis]) - e.offset[axis];
      at /= e.to[axis];
      inside = inside && position >= 0 && position < e.from[axis];
      source += position * stride, stride *= e.from[axis];
    }
    Pack<T, width> v;
    for (int k = 0; k < width; ++k) v.v[k] = from_float<T>(0);
    if (inside) v = from.template load<width>(at * stride + source, channel);
    to.store(pixel, channel, v);
  }
}

template <class T>
__global__ void widen(int64_t n, const T* narrow, float* wide) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    wide[i] = to_float(narrow[i]);
}

}  // namespace
}  // namespace conv_cuda_passes

void queue_bias_activation(const Tensor& from, const Tensor& to, const float* bias, float slope) {
  using namespace conv_cuda_passes;
  dispatch(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>({&from, &to}, [&](auto width) {
      queue_for_pixels<width>(to.shape().rows(), to.shape().c(),
                              BiasActivation<T, width>{pixels<const T>(from), pixels<T>(to), bias, slope});
    });
  });
}

void queue_place(const Tensor& from, const Tensor& to, const Int3& offset) {
  using namespace conv_cuda_passes;
  Extents e;
  for (int i = 0; i < 3; ++i)
    e.from[i] = int(from.shape()[i + 1]), e.to[i] = int(to.shape()[i + 1]),
    e.offset[i] = int(offset[static_cast<size_t>(i)]);
  dispatch(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>({&from, &to}, [&](auto width) {
      const int64_t count = to.shape().elements() / width;
      place<width><<<grid_for(count, threads), threads, 0, stream()>>>(count, int(to.shape().c() / width), e,
                                                                       pixels<const T>(from), pixels<T>(to));
    });
  });
  check_launch("placing an image");
}

void queue_widen(DType from, int64_t n, const void* narrow, float* wide) {
  using namespace conv_cuda_passes;
  dispatch(from, [&](auto zero) {
    widen<<<grid_for(n, threads), threads, 0, stream()>>>(n, static_cast<const decltype(zero)*>(narrow), wide);
  });
  check_launch("widening");
}

int64_t column_sum_bytes(const Shape& shape) {
  return channel_sum_bytes(shape.rows(), shape.c(), 1);
}

void queue_column_sums(const Tensor& t, std::byte* workspace, float* out) {
  queue_channel_sum(t, workspace, out);
}

}  // namespace convoy::cuda
