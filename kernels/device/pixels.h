// Work per channel on CUDA devices: tensors as pixels of channels, dense or slices of wider ones. A thread keeps its
// channels and walks over pixels, so that what belongs to a channel is read once.
#pragma once

#include <initializer_list>

#include "kernels/device/cuda.h"

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

/// f.finish(what belongs to the thread's channels, what it loaded, pixel, channel) at every pixel.
template <int width, class F>
__global__ void __launch_bounds__(256, 2) for_pixels(int64_t pixels, int packs, F f) {
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  if (pack >= packs) return;
  const auto own = f.of_channels(channel);
  over_pixels(pixels, channel, f, [&](const auto& loaded, int64_t pixel) { f.finish(own, loaded, pixel, channel); });
}

template <int width, class F>
void queue_for_pixels(int64_t pixels, int64_t channels, const F& f) {
  const PixelGrid grid(pixels, channels / width, 4);
  for_pixels<width><<<grid.blocks, grid.threads, 0, stream()>>>(pixels, int(channels / width), f);
  check_launch("work per channel");
}

/// Sums over a block's pixels of the F::quantities values that f.add() adds up per channel; one row of `parts` per
/// block, quantity after quantity.
template <int width, class F>
__global__ void __launch_bounds__(256, 2) sum_pixels(int64_t pixels, int packs, F f, double* parts) {
  constexpr int values = F::quantities * width;
  __shared__ double shared[256 * values];
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  float sums[F::quantities][width] = {};
  if (pack < packs) {
    const auto own = f.of_channels(channel);
    over_pixels(pixels, channel, f, [&](const auto& loaded, int64_t) { f.add(own, loaded, sums); });
  }
  // Neighbouring threads write neighbouring words: value by value.
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  for (int v = 0; v < values; ++v) shared[v * 256 + thread] = double(sums[v / width][v % width]);
  for (int rows = int(blockDim.y) / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (int(threadIdx.y) < rows)
      for (int v = 0; v < values; ++v) shared[v * 256 + thread] += shared[v * 256 + thread + rows * int(blockDim.x)];
  }
  if (threadIdx.y > 0 || pack >= packs) return;
  const int64_t channels = int64_t(packs) * width;
  for (int v = 0; v < values; ++v)
    parts[(int64_t(blockIdx.y) * F::quantities + v / width) * channels + channel + v % width] =
        shared[v * 256 + thread];
}

/// out = factor * the sum of all parts; block (32, 32), a column to each 32 threads below each other.
template <class T>
__global__ void add_parts_of_channels(int parts, int64_t columns, const double* from, double factor, T* out) {
  __shared__ double lanes[32][33];
  const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
  double sum = 0;
  if (column < columns)
    for (int i = int(threadIdx.y); i < parts; i += 32) sum += from[i * columns + column];
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int i = 1; i < 32; ++i) sum += lanes[i][threadIdx.x];
  out[column] = T(factor * sum);
}

/// Plain sums, for queue_channel_sums.
template <class T, int width>
struct ChannelSum {
  static constexpr int quantities = 1;
  Pixels<const T> x;
  __device__ int of_channels(int) const { return 0; }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void add(int, const Pack<T, width>& v, float (&sums)[1][width]) const {
    for (int k = 0; k < width; ++k) sums[0][k] += to_float(v.v[k]);
  }
};

/// Workspace of queue_channel_sums.
inline int64_t channel_sum_bytes(int64_t pixels, int64_t channels, int quantities) {
  int64_t most = 0;
  for (int width : {1, 4, 8})
    most = std::max<int64_t>(most, PixelGrid(pixels, (channels + width - 1) / width, 2).blocks.y);
  return most * quantities * channels * 8;
}

/// Queues the sums of parts of the pixels, [part][quantity][channel] in `workspace`; how many parts.
template <int width, class F>
int queue_parts_of_channels(int64_t pixels, int64_t channels, const F& f, std::byte* workspace) {
  const PixelGrid grid(pixels, channels / width, 2);
  sum_pixels<width><<<grid.blocks, grid.threads, 0, stream()>>>(pixels, int(channels / width), f,
                                                                reinterpret_cast<double*>(workspace));
  check_launch("sums per channel");
  return int(grid.blocks.y);
}

/// Queues out[quantity][channel] = factor * sum over pixels; the same bits in every run.
template <int width, class F, class T>
void queue_channel_sums(int64_t pixels, int64_t channels, const F& f, double factor, std::byte* workspace, T* out) {
  const int parts = queue_parts_of_channels<width>(pixels, channels, f, workspace);
  const int64_t columns = F::quantities * channels;
  add_parts_of_channels<<<static_cast<unsigned>((columns + 31) / 32), dim3(32, 32), 0, stream()>>>(
      parts, columns, reinterpret_cast<const double*>(workspace), factor, out);
  check_launch("sums per channel");
}

/// Queues the sums of a tensor's channels, times `factor`, over each `each` pixels that follow each other: to a pixel
/// of `out` each, `pitch` elements apart.
template <class Out>
void queue_sums_of_images(const Tensor& x, int64_t each, double factor, std::byte* workspace, Out* out, int64_t pitch) {
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>({&x}, [&](auto width) {
      Pixels<const T> from = pixels<const T>(x);
      for (int64_t image = 0; image < x.shape().rows() / each; ++image, from.data += each * from.pitch)
        queue_channel_sums<width>(each, x.shape().c(), ChannelSum<T, width>{from}, factor, workspace,
                                  out + image * pitch);
    });
  });
}

/// The same over all pixels.
inline void queue_channel_sum(const Tensor& x, std::byte* workspace, float* out) {
  queue_sums_of_images(x, x.shape().rows(), 1, workspace, out, 0);
}

}  // namespace convoy::cuda
