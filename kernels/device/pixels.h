// Work per channel on CUDA devices: tensors as pixels of channels, dense or slices of wider ones. A thread keeps its
// channels and walks over pixels, so that what belongs to a channel is read once.
#pragma once

#include <initializer_list>

#include "kernels/device/early.h"

namespace convoy::cuda {

/// A tensor's pixels, `pitch` elements from one to the next.
template <class T>
struct Pixels {
  T* data;
  int64_t pitch;
  template <int width>
  __device__ Pack<std::remove_const_t<T>, width> load(int64_t pixel, int channel) const {
    return *reinterpret_cast<const Pack<std::remove_const_t<T>, width>*>(data + pixel * pitch + channel);
  }
  template <int width>
  __device__ void store(int64_t pixel, int channel, const Pack<T, width>& values) const {
    *reinterpret_cast<Pack<T, width>*>(data + pixel * pitch + channel) = values;
  }
};

template <class T>
Pixels<T> pixels(const Tensor& t) {
  return {data<T>(t), t.desc().pixel_pitch()};
}

/// Calls f with how many channels of all the tensors, which are of one type, a thread takes by one instruction: `width`
/// where that divides what there is, else one.
template <class T, int width = 16 / int(sizeof(T)), class F>
void with_width(std::initializer_list<const Tensor*> tensors, F&& f) {
  bool packs = true;
  for (const Tensor* t : tensors)
    packs = packs && t->shape().c() % width == 0 && t->desc().pixel_pitch() % width == 0 &&
            reinterpret_cast<uintptr_t>(t->bytes()) % (width * sizeof(T)) == 0;
  if (packs)
    f(std::integral_constant<int, width>());
  else
    f(std::integral_constant<int, 1>());
}

/// Threads side by side over channels, below each other over pixels; as many blocks as run at once, so that what a
/// thread does once, before and behind its pixels, it does for as many of them as there are.
struct PixelGrid {
  dim3 blocks, threads;
  PixelGrid(int64_t pixels, int64_t packs, int64_t blocks_at_once) {
    constexpr unsigned all = 256;
    unsigned across = 1;
    while (across < packs && across < 32) across *= 2;
    threads = dim3(across, all / across);
    blocks.x = static_cast<unsigned>((packs + across - 1) / across);
    const int64_t wanted = (pixels + threads.y - 1) / threads.y, most = blocks_at_once * multiprocessors() / blocks.x;
    blocks.y = static_cast<unsigned>(std::max<int64_t>(1, std::min(wanted, most)));
  }
};

/// Channels [begin, begin + size) of a tensor.
inline Tensor channels_of(const Tensor& t, int64_t begin, int64_t size) {
  TensorDesc desc = t.desc();
  desc.shape[4] = size;
  return {desc, t.bytes() + begin * size_of(desc.dtype)};
}

/// Adds up what threads below each other in a block of 256 have: `values` numbers each, the v-th at
/// shared[v * 256 + thread] (neighbouring threads, neighbouring words). Those of threadIdx.y = 0 hold the sums.
template <class Number>
__device__ void add_threads_below(Number* shared, int values) {
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  for (int rows = int(blockDim.y) / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (int(threadIdx.y) < rows)
      for (int v = 0; v < values; ++v) shared[v * 256 + thread] += shared[v * 256 + thread + rows * int(blockDim.x)];
  }
}

constexpr int pixels_ahead = 4;  ///< loads of a thread under way at once

/// use(what f loads, the pixel) at every pixel of the thread, several loads under way at once.
template <class F, class Use>
__device__ void over_pixels(int64_t pixels, int channel, const F& f, Use&& use) {
  const int64_t step = int64_t(gridDim.y) * blockDim.y;
  for (int64_t first = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; first < pixels; first += pixels_ahead * step) {
    decltype(f.load(first, channel)) loaded[pixels_ahead];
#pragma unroll
    for (int k = 0; k < pixels_ahead; ++k)
      if (first + k * step < pixels) loaded[k] = f.load(first + k * step, channel);
#pragma unroll
    for (int k = 0; k < pixels_ahead; ++k)
      if (first + k * step < pixels) use(loaded[k], first + k * step);
  }
}

/// So many values to each of a thread's channels.
template <int values, int width>
struct OfChannels {
  float v[values][width];
};
template <int width>
struct OfChannels<0, width> {};

/// What F::of_channel(channel, values) makes of the thread's channels: F::values_of_channel values each. The block
/// makes them once, a channel to a thread, in reads of neighbours; each thread's own scattered ones took longer than
/// the pixels of a small image. All threads of the block call it.
template <int width, class F>
__device__ OfChannels<F::values_of_channel, width> of_channels(const F& f, int packs) {
  constexpr int values = F::values_of_channel;
  OfChannels<values, width> own;
  if constexpr (values > 0) {
    __shared__ __align__(16) float made[values][32 * width];
    const int first = int(blockIdx.x * blockDim.x) * width;
    for (int c = int(threadIdx.y * blockDim.x + threadIdx.x); c < int(blockDim.x) * width; c += 256) {
      if (first + c >= packs * width) break;
      float of_channel[values];
      f.of_channel(first + c, of_channel);
      for (int v = 0; v < values; ++v) made[v][c] = of_channel[v];
    }
    __syncthreads();
    for (int v = 0; v < values; ++v)
      for (int k = 0; k < width; ++k) own.v[v][k] = made[v][int(threadIdx.x) * width + k];
  }
  return own;
}

constexpr int blocks_of_maps = 3;  ///< that run at once on a multiprocessor

/// f.finish(what belongs to the thread's channels, what it loaded, pixel, channel) at every pixel.
template <int width, class F>
__global__ void __launch_bounds__(256, blocks_of_maps) for_pixels(int64_t pixels, int packs, F f) {
  await_kernel_ahead();
  const auto own = of_channels<width>(f, packs);
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  if (pack >= packs) return;
  over_pixels(pixels, channel, f, [&](const auto& loaded, int64_t pixel) { f.finish(own, loaded, pixel, channel); });
}

template <int width, class F>
void queue_for_pixels(int64_t pixels, int64_t channels, const F& f) {
  const PixelGrid grid(pixels, channels / width, blocks_of_maps);
  launch_early(for_pixels<width, F>, grid.blocks, grid.threads, 0, pixels, int(channels / width), f);
}

}  // namespace convoy::cuda
