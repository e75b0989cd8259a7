// Sums over the pixels of small images, per channel, and in the same launch what is made of each pixel by them: blocks
// of a cluster share a group of channels, read its pixels once and keep them in registers (compute capability 9.0).
#pragma once

#include <cooperative_groups.h>

#include "kernels/device/pixels.h"

namespace convoy::cuda {

constexpr int cluster_blocks = 8, cluster_lanes = 16, cluster_rows = 32;
/// Pixels that a thread keeps, at most, and those of a cluster.
template <class T>
constexpr int cluster_each = 32 / int(sizeof(T));
inline int64_t most_cluster_pixels(DType type) {
  return cluster_blocks * cluster_rows * 32 / int64_t(size_of(type));
}

/// Adds up what sums.add() says (as sum_pixels), calls finish(channel, sums) in every block of the cluster, and then
/// map.finish() at every pixel with what sums.load() has read. Blocks: groups of channels, then the cluster; sums in
/// f64 beyond the pixels of two threads, in the same order in every run and every block.
template <int most, int width, class Sums, class Finish, class Map>
__global__ void __launch_bounds__(cluster_lanes* cluster_rows, 1)
    sum_and_map(int pixels, int packs, Sums sums, Finish finish, Map map) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  await_kernel_ahead();
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  constexpr int threads = cluster_lanes * cluster_rows, warps = threads / 32;
  constexpr int across = cluster_lanes * width, values = Sums::quantities * across;
  __shared__ double of_warp[warps][values], of_block[values], of_all[values];
  const int thread = int(threadIdx.y) * cluster_lanes + int(threadIdx.x), lane = thread % 32;
  const int pack = int(blockIdx.x) * cluster_lanes + int(threadIdx.x), channel = pack * width;
  const int begin = pixels * int(blockIdx.y) / cluster_blocks, end = pixels * (int(blockIdx.y) + 1) / cluster_blocks;
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < most; ++k)
      if (const int pixel = begin + int(threadIdx.y) + k * cluster_rows; pixel < end && pack < packs) f(k, pixel);
  };
  decltype(sums.load(0, 0)) loaded[most];
  each([&](int k, int pixel) { loaded[k] = sums.load(pixel, channel); });

  float own[Sums::quantities][width] = {};
  const auto to_add = of_channels<width>(sums, packs);
  each([&](int k, int) { sums.add(to_add, loaded[k], own); });
  for (int q = 0; q < Sums::quantities; ++q)
    for (int k = 0; k < width; ++k) {
      for (int step = cluster_lanes; step < 32; step *= 2) own[q][k] += __shfl_xor_sync(0xffffffffu, own[q][k], step);
      if (lane < cluster_lanes) of_warp[thread / 32][q * across + lane * width + k] = double(own[q][k]);
    }
  __syncthreads();
  if (thread < values) {
    double sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += of_warp[warp][thread];
    of_block[thread] = sum;
  }
  cluster.sync();
  if (thread < values) {
    double sum = 0;
    for (int block = 0; block < cluster_blocks; ++block)
      sum += cluster.map_shared_rank(of_block, unsigned(block))[thread];
    of_all[thread] = sum;
  }
  __syncthreads();
  if (const int c = int(blockIdx.x) * across + thread; thread < across && c < packs * width) {
    double of_channel[Sums::quantities];
    for (int q = 0; q < Sums::quantities; ++q) of_channel[q] = of_all[q * across + thread];
    finish(c, of_channel);
  }
  // From here on none reads sums of others, or pixels, which the map may replace where they lie.
  auto all_have_read = cluster.barrier_arrive();
  __syncthreads();
  const auto to_map = of_channels<width>(map, packs);
  cluster.barrier_wait(std::move(all_have_read));
  each([&](int k, int pixel) { map.finish(to_map, loaded[k], pixel, channel); });
#endif
}

template <class T, int width, class Sums, class Finish, class Map>
void queue_sum_and_map(int64_t pixels, int64_t channels, const Sums& sums, const Finish& finish, const Map& map) {
  const int packs = int(channels / width), groups = (packs + cluster_lanes - 1) / cluster_lanes;
  launch_cluster(sum_and_map<cluster_each<T>, width, Sums, Finish, Map>, cluster_blocks,
                 dim3(unsigned(groups), cluster_blocks), dim3(cluster_lanes, cluster_rows), 0, int(pixels), packs, sums,
                 finish, map);
}

}  // namespace convoy::cuda
