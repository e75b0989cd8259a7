// Sums over pixels, per channel, on CUDA devices: in f64 beyond a thread's own, in the same order in every run.
#pragma once

#include "core/error.h"
#include "kernels/device/last_block.h"
#include "kernels/device/pixels.h"

namespace convoy::cuda {

constexpr int blocks_of_sums = 3;  ///< that run at once on a multiprocessor

/// Sums over all pixels of the F::quantities values that f.add() adds up per channel. Every block leaves a row of
/// `parts`, quantity after quantity; finish(channel, sums) gets the sums of them.
template <int width, class F, class Finish>
__global__ void __launch_bounds__(256, blocks_of_sums)
    sum_pixels(int64_t pixels, int packs, F f, Finish finish, double* parts) {
  await_kernel_ahead();
  constexpr int values = F::quantities * width;
  __shared__ double shared[256 * values];
  const int pack = int(blockIdx.x * blockDim.x + threadIdx.x), channel = pack * width;
  float sums[F::quantities][width] = {};
  const auto own = of_channels<width>(f, packs);
  if (pack < packs) over_pixels(pixels, channel, f, [&](const auto& loaded, int64_t) { f.add(own, loaded, sums); });
  const int thread = int(threadIdx.y * blockDim.x + threadIdx.x);
  for (int v = 0; v < values; ++v) shared[v * 256 + thread] = double(sums[v / width][v % width]);
  add_threads_below(shared, values);
  const int channels = packs * width;
  if (threadIdx.y == 0 && pack < packs)
    for (int v = 0; v < values; ++v)
      parts[(int64_t(blockIdx.y) * F::quantities + v / width) * channels + channel + v % width] =
          shared[v * 256 + thread];
  const int first = int(blockIdx.x * blockDim.x) * width, there = min(int(blockDim.x) * width, channels - first);
  const bool last = add_rows<256>(
      parts, F::quantities * channels, F::quantities * there,
      [&](int i) { return i / there * channels + first + i % there; }, [&](int i, double sum) { shared[i] = sum; });
  if (!last) return;
  __syncthreads();
  for (int i = thread; i < there; i += 256) {
    double of_channel[F::quantities];
    for (int q = 0; q < F::quantities; ++q) of_channel[q] = shared[q * there + i];
    finish(first + i, of_channel);
  }
}

/// out[quantity][channel] = factor * the sum.
template <class Out>
struct Scaled {
  double factor;
  Out* out;
  int channels;
  template <int quantities>
  __device__ void operator()(int c, const double (&sums)[quantities]) const {
    for (int q = 0; q < quantities; ++q) out[q * channels + c] = Out(factor * sums[q]);
  }
};

/// Workspace of queue_sums.
inline int64_t channel_sum_bytes(int64_t pixels, int64_t channels, int quantities) {
  int64_t most = 0;
  for (int width : {1, 4, 8})
    most = std::max<int64_t>(most, PixelGrid(pixels, (channels + width - 1) / width, blocks_of_sums).blocks.y);
  return most * quantities * channels * 8;
}

/// Queues them.
template <int width, class F, class Finish>
void queue_sums(int64_t pixels, int64_t channels, const F& f, const Finish& finish, std::byte* workspace) {
  const PixelGrid grid(pixels, channels / width, blocks_of_sums);
  if (channels > most_summed_channels) fail_runtime("sums of more than 2^17 channels on a CUDA device");
  launch_early(sum_pixels<width, F, Finish>, grid.blocks, grid.threads, 0, pixels, int(channels / width), f, finish,
               reinterpret_cast<double*>(workspace));
}

/// Plain sums, for queue_channel_sum.
template <class T, int width>
struct ChannelSum {
  static constexpr int quantities = 1, values_of_channel = 0;
  Pixels<const T> x;
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void add(const OfChannels<0, width>&, const Pack<T, width>& v, float (&sums)[1][width]) const {
    for (int k = 0; k < width; ++k) sums[0][k] += value_of(v, k);
  }
};

/// Queues the sums of a tensor's channels, times `factor`, over each `each` pixels that follow each other: to a pixel
/// of `out` each, `pitch` elements apart.
template <class Out>
void queue_sums_of_images(const Tensor& x, int64_t each, double factor, std::byte* workspace, Out* out, int64_t pitch) {
  const int64_t channels = x.shape().c();
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>({&x}, [&](auto width) {
      Pixels<const T> from = pixels<const T>(x);
      for (int64_t image = 0; image < x.shape().rows() / each; ++image, from.data += each * from.pitch)
        queue_sums<width>(each, channels, ChannelSum<T, width>{from},
                          Scaled<Out>{factor, out + image * pitch, int(channels)}, workspace);
    });
  });
}

/// The same over all pixels.
inline void queue_channel_sum(const Tensor& x, std::byte* workspace, float* out) {
  queue_sums_of_images(x, x.shape().rows(), 1, workspace, out, 0);
}

}  // namespace convoy::cuda
