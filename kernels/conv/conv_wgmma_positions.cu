// Weight gradients over all positions of a convolution (conv_mma_positions.cu) on Hopper's warpgroup products: both
// operands stay in shared memory, rows of 128 bytes to a position, which the products transpose on their way. A block
// has 128 output channels and 256 columns; two warpgroups multiply 64 x 256 each, a third copies the next 64 positions.
//
// What comes from the second-level cache bounds it: 48 KiB for 4 MFLOP.
#include "kernels/conv/bias_pairs.h"
#include "kernels/conv/positions.h"

namespace convoy::cuda {
namespace conv_wgmma_positions {
namespace {

constexpr int tile_k = 128, tile_n = 256, step = 64, stages = 4;
constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
constexpr int strip_bytes = step * 128, a_bytes = tile_k / 64 * strip_bytes;
constexpr int stage_bytes = a_bytes + tile_n / 64 * strip_bytes;
/// The products want multiples of 1024 bytes.
constexpr int shared_bytes = stages * stage_bytes + 1024;
static_assert(shared_bytes + 2 * step * int(sizeof(Origin)) + 4096 <= hopper_shared_bytes);

using Slots = Ring<stages>;
constexpr int among_consumers = Slots::next_barrier, among_producers = among_consumers + 1;

/// The third warpgroup's work: a thread copies the same eight channels of every step.
template <class T>
class Producer {
 public:
  __device__ Producer(const Positions& g, const T* x, const T* dy, Origin (*origins)[step], int first_k, int first_n,
                      int begin, int end)
      : g_(g),
        origins_(origins),
        walk_(g, begin + thread() % step),
        column_(g, first_n + 8 * (thread() % slots_b)),
        from_a_(dy + int64_t(begin + thread() / slots_a) * g.k + first_k + 8 * (thread() % slots_a)),
        from_b_(x + column_.offset),
        left_(first_k + 8 * (thread() % slots_a) < g.k ? end - begin - thread() / slots_a : 0),
        next_(begin + thread() % step),
        end_(end) {
    find_origins(0);
  }

  __device__ void bring(int s, uint32_t stage) {
    arrive_and_wait(among_producers, warpgroup);  // the origins are there
    const int row_a = thread() / slots_a, row_b = thread() / slots_b;
#pragma unroll
    for (int i = 0; i < step / rows_a; ++i)
      copy_16(stage + strip_slot<step>(row_a + i * rows_a, thread() % slots_a), from_a_ + int64_t(i * rows_a) * g_.k,
              i * rows_a < left_);
    from_a_ += int64_t(step) * g_.k, left_ -= step;
#pragma unroll 8
    for (int i = 0; i < step / rows_b; ++i) {
      const Origin o = origins_[s & 1][row_b + i * rows_b];
      copy_16(stage + a_bytes + strip_slot<step>(row_b + i * rows_b, thread() % slots_b),
              from_b_ + int64_t(o.pixel) * g_.c, column_.meets(g_, o));
    }
    find_origins(s + 1);
  }

 private:
  static constexpr int slots_a = tile_k / 8, rows_a = warpgroup / slots_a, slots_b = tile_n / 8,
                       rows_b = warpgroup / slots_b;
  static __device__ int thread() {
    return int(threadIdx.x);
  }
  __device__ void find_origins(int s) {
    if (thread() >= step) return;
    origins_[s & 1][thread()] = walk_.origin(g_, next_ < end_);
    walk_.advance(g_), next_ += step;
  }
  const Positions& g_;
  Origin (*origins_)[step];
  Walk<step> walk_;
  Column column_;
  const T *from_a_, *from_b_;
  int left_, next_, end_;
};

template <class T>
__global__ void __launch_bounds__(threads, 1)
    weight_gradients(const __grid_constant__ Positions g, const T* __restrict__ x, const T* __restrict__ dy,
                     const GradientParts out) {
#if CONVOY_WGMMA
  extern __shared__ char memory[];
  __shared__ Origin origins[2][step];
  __shared__ float2 bias_of[consumers];
  const uint32_t ring = (shared_address(memory) + 1023) & ~1023u;
  const int first_k = int(blockIdx.x) * tile_k, first_n = int(blockIdx.y) * tile_n;
  const int begin = int(int64_t(g.positions) * blockIdx.z / gridDim.z),
            end = int(int64_t(g.positions) * (blockIdx.z + 1) / gridDim.z);
  const int steps = (end - begin + step - 1) / step;

  if (threadIdx.x < warpgroup) {
    give_registers<72>();
    Producer<T> producer(g, x, dy, origins, first_k, first_n, begin, end);
    int slot = 0;
    for (int s = 0; s < steps; ++s, slot = Slots::after(slot)) {
      if (s >= stages) arrive_and_wait(Slots::empty(slot), threads);
      producer.bring(s, ring + uint32_t(slot * stage_bytes));
      commit_copies();
      if (s == 0) continue;
      wait_copies<1>();
      show_to_products();
      arrive(Slots::full(Slots::before(slot)), threads);
    }
    wait_copies<0>();
    show_to_products();
    arrive(Slots::full(Slots::before(slot)), threads);
    return;
  }

  take_registers<216>();
  const int consumer = warpgroup_number() - 1, thread = int(threadIdx.x) - warpgroup;
  const int warp = thread % warpgroup / 32, lane = thread % 32;
  const TurnedRows rows(ring + consumer * strip_bytes, strip_bytes), columns(ring + a_bytes, strip_bytes);
  constexpr int pairs = tile_k / 2, bias_rows = consumers / pairs;
  const bool adds_bias = blockIdx.y == 0;
  float acc[128] = {};
  float2 bias = make_float2(0, 0);
  int slot = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s, slot = Slots::after(slot)) {
    arrive_and_wait(Slots::full(slot), threads);
    products_begin();
#pragma unroll
    for (int i = 0; i < step / 16; ++i)
      multiply_turned<T>(acc, rows + (slot * (stage_bytes / 128) + 16 * i),
                         columns + (slot * (stage_bytes / 128) + 16 * i));
    commit_products();
    if (adds_bias)
#pragma unroll 4
      for (int i = 0; i < step / bias_rows; ++i) {
        const uint32_t two =
            load_4(ring + uint32_t(slot * stage_bytes) +
                   strip_slot<step>(thread / pairs + i * bias_rows, thread % pairs / 4) + uint32_t(thread % 4 * 4));
        const float2 v = widened(*reinterpret_cast<const Two<T>*>(&two));
        bias.x += v.x, bias.y += v.y;
      }
    wait_products<1>();
    if (s > 0) arrive(Slots::empty(Slots::before(slot)), threads);
  }
  wait_products<0>();

  float* to = out.weights + int64_t(blockIdx.z) * out.stride;
  const int k = first_k + 64 * consumer + 16 * warp + lane / 4, n = first_n + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < tile_n / 8; ++j)
#pragma unroll
    for (int low = 0; low < 2; ++low)
      if (k + 8 * low < g.k && n + 8 * j < g.columns)
        *reinterpret_cast<float2*>(to + int64_t(k + 8 * low) * g.columns + n + 8 * j) =
            make_float2(acc[4 * j + 2 * low], acc[4 * j + 2 * low + 1]);
  if (!adds_bias) return;
  leave_bias<pairs>(bias, bias_of, thread, among_consumers, first_k, g.k, out);
#endif
}

}  // namespace
}  // namespace conv_wgmma_positions

void queue_wgmma_positions(DType type, const Positions& g, int splits, const void* x, const void* dy,
                           const GradientParts& out) {
  using namespace conv_wgmma_positions;
  const dim3 blocks(static_cast<unsigned>((g.k + tile_k - 1) / tile_k),
                    static_cast<unsigned>((g.columns + tile_n - 1) / tile_n), static_cast<unsigned>(splits));
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    allow_shared_bytes(reinterpret_cast<const void*>(weight_gradients<T>), shared_bytes);
    weight_gradients<<<blocks, threads, shared_bytes, stream()>>>(g, static_cast<const T*>(x),
                                                                  static_cast<const T*>(dy), out);
  });
  check_launch("conv_wgmma_positions");
}

}  // namespace convoy::cuda
