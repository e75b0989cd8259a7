// Weight gradients of 3 x 3 x 3 convolutions from the gradient of the pooled map on Hopper's warpgroup products
// (kernels/device/wgmma.h): dw[k][tap][c] sums dy[position][k] * x[position + tap][c] over all positions. A block owns
// 64 output and 32 input channels and the nine taps of one depth, and goes through its share of the tiles of 4 x 8 x 8
// positions. The transposed gradient is the left operand, in registers: sixteen positions are eight across in two rows,
// so a thread's eight values are half of a window of the pool in two channels, which it makes of one gradient and its
// arg-max each; the gradient is never spread out in memory. The inputs stay in shared memory, where a tap is another
// address. Two warpgroups multiply half of the windows each (144 sums a thread), a third brings the next tiles.
//
// Per 64 x 32 x 16 products, 16 clocks of the tensor cores, shared memory gives 1 KiB of inputs: 8 clocks where a tap's
// rows are aligned, up to 16 where they are not.
#include "kernels/conv/gradient_words.h"

namespace convoy::cuda {
namespace conv_wgmma_weights {
namespace {

using B = Tile<wgmma_width>;
constexpr int block_k = 64, block_c = 32, stages = 5;
constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
constexpr int height = B::height + 2, width = B::width + 2, rows = B::depth * height * width;
/// Eight channels of all inputs; the four planes lie in different banks.
constexpr int plane_bytes = (rows * 16 + 127) / 128 * 128 + 32;
/// Words of a window's channels (store_words); windows lie in different banks.
constexpr int windows = 32, window_words = block_k + 8;
constexpr int stage_bytes = 4 * plane_bytes + windows * window_words * 4;
/// Copies of a thread of the third warpgroup, and what it knows of each: place in the tile, and offset in the input.
constexpr int copies = (rows * 4 + warpgroup - 1) / warpgroup, table_bytes = copies * warpgroup * 8;
/// Sums of the second half of the windows wait here for those of the first.
constexpr int reduction_bytes = 144 * warpgroup * 4;
constexpr int shared_bytes = std::max(stages * stage_bytes + table_bytes, reduction_bytes);
static_assert(shared_bytes + 1024 <= hopper_shared_bytes);  // beside the bias's sums

using Slots = Ring<stages>;
constexpr int among_consumers = Slots::next_barrier, among_producers = among_consumers + 1;

/// The third warpgroup's work.
template <class T>
class Producer {
 public:
  __device__ Producer(const MmaConv& p, const T* x, const MmaSource& dy, int kd, int first_k, int first_c,
                      uint32_t table)
      : p_(p),
        x_(x + first_c + threadIdx.x % 4 * 8),
        dy_(dy),
        kd_(kd),
        first_k_(first_k),
        table_(table + threadIdx.x * 8) {
    for (int i = 0; i < copies; ++i) {
      const int row = row_of(i), d = row / (width * height), h = row / width % height, w = row % width;
      store_8(table_ + i * warpgroup * 8, make_uint2(d | h << 8 | w << 16, (d * p.h + h) * p.w + w));
    }
  }

  /// Starts to read the windows of the tile that `bring` is called for next.
  __device__ void foresee(int tile) {
    const TileOrigin<wgmma_width> o(p_, tile);
    const int pd = p_.od / 2, ph = p_.oh / 2, pw = p_.ow / 2;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int window = window_of(i);
      const int d = o.d / 2 + window / 16, h = o.h / 2 + window / 4 % 4, w = o.w / 2 + window % 4;
      ahead_[i].load(dy_, d < pd && h < ph && w < pw,
                     (((int64_t(o.n) * pd + d) * ph + h) * pw + w) * p_.k + first_k_ + threadIdx.x % slots * 8);
    }
  }

  /// Starts the copies of a tile's inputs, and writes the words of its windows.
  __device__ void bring(int tile, uint32_t stage) {
    const TileOrigin<wgmma_width> o(p_, tile);
    const int d0 = o.d + kd_ - p_.pad[0], h0 = o.h - p_.pad[1], w0 = o.w - p_.pad[2];
    const T* origin = x_ + (int64_t(o.n) * p_.d * p_.h * p_.w + (int64_t(d0) * p_.h + h0) * p_.w + w0) * p_.c;
    const uint32_t plane = stage + threadIdx.x % 4 * plane_bytes;
#pragma unroll 4
    for (int i = 0; i < copies; ++i) {
      const uint2 place = load_8(table_ + i * warpgroup * 8);
      const int d = d0 + int(place.x & 0xff), h = h0 + int(place.x >> 8 & 0xff), w = w0 + int(place.x >> 16);
      const bool valid = uint32_t(d) < uint32_t(p_.d) && uint32_t(h) < uint32_t(p_.h) && uint32_t(w) < uint32_t(p_.w);
      if (const int row = row_of(i); row < rows) copy_16(plane + row * 16, origin + int64_t(place.y) * p_.c, valid);
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      uint32_t pairs[4];
      scale_gradient<T>(ahead_[i].gradient, ahead_[i].output, p_.slope, pairs);
      store_words(stage + 4 * plane_bytes + uint32_t(window_of(i) * window_words + int(threadIdx.x) % slots * 8) * 4,
                  pairs, ahead_[i].arg);
      bias_.add(pairs);
    }
  }

  /// The sums of all windows that were brought, which are the bias's gradient.
  __device__ void finish_bias(int barrier, float* out) {
    bias_.template finish<slots>(barrier, out);
  }

 private:
  static constexpr int slots = block_k / 8, each = windows * slots / warpgroup;
  static __device__ int row_of(int i) {
    return i * (warpgroup / 4) + int(threadIdx.x) / 4;
  }
  static __device__ int window_of(int i) {
    return i * (warpgroup / 8) + int(threadIdx.x) / 8;
  }
  const MmaConv& p_;
  const T* x_;
  const MmaSource& dy_;
  int kd_, first_k_;
  uint32_t table_;
  PooledEight ahead_[each];
  BiasSums<T> bias_;
};

/// A gradient where it belongs in a window: bits of two neighbours across, and which of the four pairs they are.
struct Placed {
  uint32_t pair;
  int which;
  __device__ explicit Placed(uint32_t word)
      : pair(word & 0x10000 ? word << 16 : word & 0xffff), which(int(word >> 17 & 3)) {}
  __device__ uint32_t of(int pair_number) const { return which == pair_number ? pair : 0; }
};

template <class T>
__global__ void __launch_bounds__(threads, 1) weights(const __grid_constant__ MmaConv p, const T* __restrict__ x,
                                                      const __grid_constant__ MmaSource dy, GradientParts parts) {
#if CONVOY_WGMMA
  extern __shared__ __align__(128) char memory[];
  const uint32_t ring = shared_address(memory);
  const int blocks_c = p.c / block_c;
  const int first_c = int(blockIdx.x) % blocks_c * block_c, first_k = int(blockIdx.x) / blocks_c * block_k;
  const int kd = int(blockIdx.y), tiles = p.all_tiles(), split = int(blockIdx.z), splits = int(gridDim.z);
  const int begin = int(int64_t(tiles) * split / splits), end = int(int64_t(tiles) * (split + 1) / splits);

  if (threadIdx.x < warpgroup) {
    give_registers<72>();
    Producer<T> producer(p, x, dy, kd, first_k, first_c, ring + stages * stage_bytes);
    produce_tiles<Slots>(producer, begin, end, ring, stage_bytes, threads);
    if (kd == 0 && first_c == 0) producer.finish_bias(among_producers, parts.bias + split * parts.stride + first_k);
    return;
  }

  take_registers<216>();
  const int consumer = warpgroup_number() - 1, warp = int(threadIdx.x) % warpgroup / 32, lane = int(threadIdx.x) % 32;
  const uint32_t words =
      ring + 4 * plane_bytes + uint32_t((16 * consumer + lane % 4) * window_words + 16 * warp + lane / 4) * 4;
  const Columns columns(ring + 2 * consumer * height * width * 16, width * 16, plane_bytes);
  float acc[9][16] = {};
  uint32_t a[2][2][4];
  int slot = 0;
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile, slot = Slots::after(slot)) {
    arrive_and_wait(Slots::full(slot), threads);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // windows of two rows
      const uint32_t at = words + uint32_t(slot) * stage_bytes + 4 * i * window_words * 4;
      const Placed low(load_4(at)), high(load_4(at + 32));
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        uint32_t(&f)[4] = a[i & 1][d];
        f[0] = low.of(2 * d), f[1] = high.of(2 * d), f[2] = low.of(2 * d + 1), f[3] = high.of(2 * d + 1);
      }
      products_begin();
#pragma unroll
      for (int d = 0; d < 2; ++d)
#pragma unroll
        for (int tap = 0; tap < 9; ++tap)
          multiply_channels<T>(
              acc[tap], a[i & 1][d],
              columns + (slot * (stage_bytes / 16) + (d * height + 2 * i + tap / 3) * width + tap % 3));
      commit_products();
      wait_products<1>();
      if (i == 0 && tile > begin) arrive(Slots::empty(Slots::before(slot)), threads);
    }
  }
  wait_products<0>();

  arrive_and_wait(among_consumers, consumers);
  float* waiting = reinterpret_cast<float*>(memory) + threadIdx.x % warpgroup;
  if (consumer == 1)
#pragma unroll
    for (int i = 0; i < 144; ++i) waiting[i * warpgroup] = acc[i / 16][i % 16];
  arrive_and_wait(among_consumers, consumers);
  if (consumer == 1) return;
#pragma unroll
  for (int i = 0; i < 144; ++i) acc[i / 16][i % 16] += waiting[i * warpgroup];
  float* out = parts.weights + split * parts.stride;
  const int k = first_k + 16 * warp + lane / 4, c = first_c + 2 * (lane % 4);
#pragma unroll
  for (int tap = 0; tap < 9; ++tap)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int low = 0; low < 2; ++low)
        *reinterpret_cast<float2*>(out + (int64_t(k + 8 * low) * 27 + 9 * kd + tap) * p.c + c + 8 * j) =
            make_float2(acc[tap][4 * j + 2 * low], acc[tap][4 * j + 2 * low + 1]);
#endif
}

}  // namespace
}  // namespace conv_wgmma_weights

void queue_wgmma_weights(DType type, const MmaConv& p, int splits, const void* x, const MmaSource& dy,
                         const GradientParts& parts) {
  using namespace conv_wgmma_weights;
  const dim3 grid(static_cast<unsigned>(p.k / block_k * (p.c / block_c)), 3, static_cast<unsigned>(splits));
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    allow_shared_bytes(reinterpret_cast<const void*>(weights<T>), shared_bytes);
    weights<<<grid, threads, shared_bytes, stream()>>>(p, static_cast<const T*>(x), dy, parts);
  });
  check_launch("conv_wgmma_weights");
}

}  // namespace convoy::cuda
