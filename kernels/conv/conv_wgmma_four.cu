// Weight gradients of the first layer (four input channels to 32, 3 x 3 x 3) from the gradient of the pooled map on
// Hopper's warpgroup products (kernels/device/wgmma.h). Six positions of four channels, from two before an even
// position, are 24 values in a row of memory, of which the taps of the even position and of the next need twelve each:
// 32 rows of the left operand are the gradient's channels at even positions, the other 32 at odd ones, and the right
// operand is the input as it lies, each row two positions further. A window's gradient and arg-max become values of the
// left operand in registers (as in conv_wgmma_weights.cu). All 27 taps are 108 sums a thread; two warpgroups take half
// of the windows each, a third brings the next tiles of 4 x 4 x 16 positions.
#include "kernels/conv/gradient_words.h"

namespace convoy::cuda {
namespace conv_wgmma_four {
namespace {

using B = Tile<16>;
constexpr int channels = 32, stages = 6;
constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
/// Rows of twenty positions, from two before the tile, as ten packs of 16 bytes.
constexpr int packs_across = 10, halo_height = B::height + 2, halo_packs = (B::depth + 2) * halo_height * packs_across;
/// Words of a window's channels (store_words); every other window lies in different banks.
constexpr int windows = 32, window_words = channels + 4;
constexpr int stage_bytes = halo_packs * 16 + windows * window_words * 4;
constexpr int sums_bytes = channels * 108 * 4, shared_bytes = std::max(stages * stage_bytes, sums_bytes);
static_assert(shared_bytes + 1024 <= hopper_shared_bytes);  // beside the bias's sums
static_assert(stage_bytes % 128 == 0 && windows * channels / 8 == warpgroup);

using Slots = Ring<stages>;
constexpr int among_consumers = Slots::next_barrier, among_producers = among_consumers + 1;

/// The third warpgroup's work.
template <class T>
class Producer {
 public:
  __device__ Producer(const MmaConv& p, const T* x, const MmaSource& dy) : p_(p), x_(x), dy_(dy) {}
  /// Starts to read the windows of the tile that `bring` is called for next: eight channels of one a thread.
  __device__ void foresee(int tile) {
    const TileOrigin<16> o(p_, tile);
    const int pd = p_.od / 2, ph = p_.oh / 2, pw = p_.ow / 2;
    const int window = int(threadIdx.x) / slots;
    const int d = o.d / 2 + window / 16, h = o.h / 2 + window / 8 % 2, w = o.w / 2 + window % 8;
    ahead_.load(dy_, d < pd && h < ph && w < pw,
                (((int64_t(o.n) * pd + d) * ph + h) * pw + w) * channels + int(threadIdx.x) % slots * 8);
  }
  /// Starts the copies of a tile's inputs, and writes the words of its windows.
  __device__ void bring(int tile, uint32_t stage) {
    const TileOrigin<16> o(p_, tile);
#pragma unroll
    for (int i = 0; i < (halo_packs + warpgroup - 1) / warpgroup; ++i) {
      const int at = i * warpgroup + int(threadIdx.x), row = at / packs_across;
      const int d = o.d + row / halo_height - p_.pad[0], h = o.h + row % halo_height - p_.pad[1],
                w = o.w - 2 + at % packs_across * 2;
      const bool valid = uint32_t(d) < uint32_t(p_.d) && uint32_t(h) < uint32_t(p_.h) && uint32_t(w) < uint32_t(p_.w);
      if (at < halo_packs)
        copy_16(stage + at * 16, x_ + (((int64_t(o.n) * p_.d + d) * p_.h + h) * p_.w + w) * 4, valid);
    }
    uint32_t pairs[4];
    scale_gradient<T>(ahead_.gradient, ahead_.output, p_.slope, pairs);
    store_words(stage + halo_packs * 16 + (threadIdx.x / slots * window_words + threadIdx.x % slots * 8) * 4, pairs,
                ahead_.arg);
    bias_.add(pairs);
  }
  /// The sums of all windows that were brought, which are the bias's gradient.
  __device__ void finish_bias(int barrier, float* out) {
    bias_.template finish<slots>(barrier, out);
  }

 private:
  static constexpr int slots = channels / 8;
  const MmaConv& p_;
  const T* x_;
  const MmaSource& dy_;
  PooledEight ahead_;
  BiasSums<T> bias_;
};

/// Values of position `code` of two neighbouring windows.
__device__ uint32_t two_of(uint32_t left, uint32_t right, int code) {
  const auto here = [&](uint32_t word) { return int(word >> 16 & 7) == code ? word : 0u; };
  return __byte_perm(here(left), here(right), 0x5410);
}

template <class T>
__global__ void __launch_bounds__(threads, 1) weights(const __grid_constant__ MmaConv p, const T* __restrict__ x,
                                                      const __grid_constant__ MmaSource dy, GradientParts parts) {
#if CONVOY_WGMMA
  extern __shared__ __align__(128) char memory[];
  const uint32_t ring = shared_address(memory);
  const int tiles = p.all_tiles(), split = int(blockIdx.x), splits = int(gridDim.x);
  const int begin = int(int64_t(tiles) * split / splits), end = int(int64_t(tiles) * (split + 1) / splits);

  if (threadIdx.x < warpgroup) {
    give_registers<72>();
    Producer<T> producer(p, x, dy);
    produce_tiles<Slots>(producer, begin, end, ring, stage_bytes, threads);
    producer.finish_bias(among_producers, parts.bias + split * parts.stride);
    return;
  }

  take_registers<216>();
  const int consumer = warpgroup_number() - 1, warp = int(threadIdx.x) % warpgroup / 32, lane = int(threadIdx.x) % 32;
  const int odd = warp / 2, channel = 16 * (warp % 2) + lane / 4;
  const uint32_t words =
      ring + halo_packs * 16 + uint32_t((16 * consumer + 2 * (lane % 4)) * window_words + channel) * 4;
  const Columns columns(ring + 2 * consumer * halo_height * packs_across * 16, packs_across * 16, 16);
  float acc[9][12] = {};
  uint32_t a[2][2][4];
  int slot = 0;
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile, slot = Slots::after(slot)) {
    arrive_and_wait(Slots::full(slot), threads);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = words + uint32_t(slot) * stage_bytes + 8 * h * window_words * 4;
      const uint32_t low[2] = {load_4(at), load_4(at + window_words * 4)},
                     high[2] = {load_4(at + 32), load_4(at + window_words * 4 + 32)};
#pragma unroll
      for (int d = 0; d < 2; ++d)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int code = 4 * d + 2 * row + odd;
          a[h][d][2 * row] = two_of(low[0], low[1], code), a[h][d][2 * row + 1] = two_of(high[0], high[1], code);
        }
      products_begin();
#pragma unroll
      for (int d = 0; d < 2; ++d)
#pragma unroll
        for (int taps = 0; taps < 9; ++taps)
          multiply_rows<T>(
              acc[taps], a[h][d],
              columns + (slot * (stage_bytes / 16) + ((d + taps / 3) * halo_height + 2 * h + taps % 3) * packs_across));
      commit_products();
      wait_products<1>();
      if (h == 0 && tile > begin) arrive(Slots::empty(Slots::before(slot)), threads);
    }
  }
  wait_products<0>();

  // Each half of the windows and of the rows in turn adds its sums, the last to the result.
  auto* sums = reinterpret_cast<float*>(memory);
  float* out = parts.weights + split * parts.stride;
  for (int turn = 0; turn < 4; ++turn) {
    arrive_and_wait(among_consumers, consumers);
    if (2 * consumer + odd != turn) continue;
#pragma unroll
    for (int i = 0; i < 108; ++i) {
      const int e = i % 12, k = channel + 8 * (e >> 1 & 1);
      const int value = e / 4 * 8 + 2 * (lane % 4) + (e & 1), kw = value / 4 - 1 - odd;
      if (kw < 0 || kw > 2) continue;
      const int to = (k * 27 + i / 12 * 3 + kw) * 4 + value % 4;
      const float sum = (turn > 0 ? sums[to] : 0) + acc[i / 12][e];
      (turn == 3 ? out : sums)[to] = sum;
    }
  }
#endif
}

}  // namespace
}  // namespace conv_wgmma_four

void queue_wgmma_four_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy,
                              const GradientParts& parts) {
  using namespace conv_wgmma_four;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    allow_shared_bytes(reinterpret_cast<const void*>(weights<T>), shared_bytes);
    weights<<<splits, threads, shared_bytes, stream()>>>(p, static_cast<const T*>(x), dy, parts);
  });
  check_launch("conv_wgmma_four");
}

}  // namespace convoy::cuda
