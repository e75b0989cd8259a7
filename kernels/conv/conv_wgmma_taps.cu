// Weight gradients of images on Hopper's warpgroup products: neighbouring taps of 64 input channels are products of one
// copy of the input, which each of them reads some positions further, with the same gradients; with a stride of 2
// across, of one copy of the even columns and one of the odd ones. So what comes from the second-level cache, which
// bounds products of single taps (conv_wgmma_positions.cu), is a fraction of theirs, and few output channels, columns
// here, cost what they are.
//
// The copy engine fills a ring of stages: some positions of one row of outputs, and of the rows of inputs that the
// block's taps see. Two warpgroups multiply; a unit of work is one tap of 64 input channels (rows) times all of the
// block's output channels, and each holds the sums of `each` of them. Positions are shared out until the device is
// full; the parts are added by another kernel, in their order. (Two blocks of a cluster that bring half of the inputs
// for both were 1.4 times slower.)
//
// Positions of a stage beyond a row's end have a gradient of zero: an input that is not finite may reach a tap more.
//
// Shared memory bounds products of few columns: 64 x 32 x 16 take 16 clocks of the tensor cores and read 3 KiB, in 24.
#include "kernels/conv/bias_pairs.h"
#include "kernels/conv/taps.h"
#include "kernels/device/bulk.h"
#include "kernels/device/early.h"

namespace convoy::cuda {
namespace conv_wgmma_taps {
namespace {

constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
static_assert(taps_shared_bytes + taps_turn_bytes + 4096 <= hopper_shared_bytes);

template <class T, int wide, int each>
__global__ void __launch_bounds__(threads, 1)
    weight_gradients(const __grid_constant__ Taps t, const __grid_constant__ CUtensorMap even,
                     const __grid_constant__ CUtensorMap odd, const __grid_constant__ CUtensorMap dy,
                     const GradientParts out) {
#if CONVOY_WGMMA
  constexpr int strips = (wide + 63) / 64;
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2 * most_taps_stages];
  __shared__ float2 bias_of[consumers];
  const uint32_t ring = (shared_address(memory) + taps_turn_bytes - 1) & ~uint32_t(taps_turn_bytes - 1);
  const auto full = [&](int slot) { return shared_address(barriers + slot); };
  const auto empty = [&](int slot) { return shared_address(barriers + most_taps_stages + slot); };
  const ConvGeometry& g = t.g;
  const int first_k = int(blockIdx.x) * wide;
  int tile = int(blockIdx.y);
  const int first_c64 = tile % t.cut.blocks_c64 * t.cut.c64;
  tile /= t.cut.blocks_c64;
  const int first_kw = tile % t.cut.blocks_kw * t.cut.kw, first_kh = tile / t.cut.blocks_kw * t.cut.kh;
  const int begin = int(int64_t(t.chunks) * blockIdx.z / gridDim.z),
            end = int(int64_t(t.chunks) * (blockIdx.z + 1) / gridDim.z);
  const int dy_at = t.cut.kh * t.cut.c64 * t.lattices * t.x_bytes;
  const TapColumns first_tap(g, first_kw);
  // Where a stage has them, of 64 channels of a row: the only lattice, or the one of this parity.
  const auto copy_of = [&](int h, int c, int parity) {
    return (h * t.cut.c64 + c) * t.lattices + (t.lattices == 2 ? parity : 0);
  };

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < t.stages; ++slot)
      barrier_begin(full(slot), 1), barrier_begin(empty(slot), consumers / 32);
    barriers_begun();
  }
  __syncthreads();
  await_kernel_ahead();

  if (threadIdx.x < warpgroup) {
    give_registers<40>();
    if (threadIdx.x > 0) return;
    const int rows = min(t.cut.kh, g.kernel[1] - first_kh), c64 = min(t.cut.c64, (g.c + 63) / 64 - first_c64);
    const int bytes = rows * c64 * t.lattices * (t.chunk + t.halo) * taps_row_bytes + strips * t.chunk * taps_row_bytes;
    for (int i = begin, slot = 0, round = 0; i < end; ++i) {
      if (round > 0) barrier_wait(empty(slot), (round - 1) & 1);
      barrier_expect(full(slot), bytes);
      const uint32_t stage = ring + uint32_t(slot * t.bytes);
      const int column = i % t.across * t.chunk, line = i / t.across, row = line % g.y[1], image = line / g.y[1];
      for (int h = 0; h < rows; ++h)
        for (int c = 0; c < c64; ++c)
          for (int lattice = 0; lattice < t.lattices; ++lattice) {
            const int parity = t.lattices == 2 ? lattice : first_tap.parity, copy = copy_of(h, c, parity);
            copy_piece(stage + uint32_t(copy * t.x_bytes), parity ? odd : even, full(slot), 64 * (first_c64 + c),
                       column + first_tap.shift, row * g.stride[1] + (first_kh + h) * g.dilation[1] - g.pad[1], image);
          }
      for (int strip = 0; strip < strips; ++strip)
        copy_piece(stage + uint32_t(dy_at + strip * t.chunk * taps_row_bytes), dy, full(slot), first_k + 64 * strip,
                   column, row, image);
      if (++slot == t.stages) slot = 0, ++round;
    }
    return;
  }

  take_registers<224>();
  const int consumer = warpgroup_number() - 1, thread = int(threadIdx.x) - warpgroup;
  const int warp = thread % warpgroup / 32, lane = thread % 32;
  // Units that a block has no tap for multiply the first one's input, and are left.
  const auto tap_of = [&](int e, int& kh, int& kw, int& c64) {
    int unit = consumer * each + e;
    c64 = unit % t.cut.c64, unit /= t.cut.c64, kw = unit % t.cut.kw, kh = unit / t.cut.kw;
    return kh < t.cut.kh;
  };
  int rows_of[each];
#pragma unroll
  for (int e = 0; e < each; ++e) {
    int kh, kw, c64;
    const bool there = tap_of(e, kh, kw, c64);
    const TapColumns columns(g, first_kw + kw);
    rows_of[e] =
        there ? copy_of(kh, c64, columns.parity) * (t.x_bytes / taps_row_bytes) + columns.shift - first_tap.shift : 0;
  }
  const TurnedRows x_rows(ring, 0), dy_rows(ring + uint32_t(dy_at), uint32_t(t.chunk * taps_row_bytes));
  constexpr int pairs = wide / 2, bias_rows = consumers / pairs;
  const bool adds_bias = blockIdx.y == 0;
  float acc[each][wide / 2] = {};
  float2 bias = make_float2(0, 0);
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    barrier_wait(full(slot), parity);
    const int stage_rows = slot * (t.bytes / taps_row_bytes);
    products_begin();
#pragma unroll 1
    for (int r = 0; r < t.chunk; r += 16) {
#pragma unroll
      for (int e = 0; e < each; ++e)
        multiply_turned<T>(acc[e], x_rows + (stage_rows + rows_of[e] + r), dy_rows + (stage_rows + r));
    }
    commit_products();
    if (adds_bias) {
      const uint32_t from = ring + uint32_t(slot * t.bytes + dy_at + thread % pairs / 32 * t.chunk * taps_row_bytes);
#pragma unroll 4
      for (int r = thread / pairs; r < t.chunk; r += bias_rows) {
        const uint32_t two = load_4(from + slot_128(r, thread % pairs % 32 / 4) + uint32_t(thread % 4 * 4));
        const float2 v = widened(*reinterpret_cast<const Two<T>*>(&two));
        bias.x += v.x, bias.y += v.y;
      }
    }
    wait_products<1>();
    __syncwarp();
    if (i > begin && lane == 0) barrier_arrive(empty(slot == 0 ? t.stages - 1 : slot - 1));
    if (++slot == t.stages) slot = 0, parity ^= 1;
  }
  wait_products<0>();

  float* to = out.weights + int64_t(blockIdx.z) * out.stride;
#pragma unroll
  for (int e = 0; e < each; ++e) {
    int kh, kw, c64;
    if (!tap_of(e, kh, kw, c64) || first_kh + kh >= g.kernel[1] || first_kw + kw >= g.kernel[2]) continue;
    const int tap = (first_kh + kh) * g.kernel[2] + first_kw + kw;
    const int c = 64 * (first_c64 + c64) + 16 * warp + lane / 4, k = first_k + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < wide / 8; ++j)
#pragma unroll
      for (int low = 0; low < 2; ++low)
#pragma unroll
        for (int b = 0; b < 2; ++b)
          if (c + 8 * low < g.c && k + 8 * j + b < g.k)
            to[int64_t(k + 8 * j + b) * t.columns + int64_t(tap) * g.c + c + 8 * low] = acc[e][4 * j + 2 * low + b];
  }
  if (!adds_bias) return;
  leave_bias<pairs>(bias, bias_of, thread, 1, first_k, g.k, out);
#endif
}

template <class T, int wide, int each>
void launch(const Taps& t, int splits, const CUtensorMap (&x)[2], const CUtensorMap& dy, const GradientParts& out) {
  const auto kernel = weight_gradients<T, wide, each>;
  const int bytes = t.stages * t.bytes + taps_turn_bytes;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), taps_shared_bytes + taps_turn_bytes);
  const dim3 blocks(static_cast<unsigned>(pieces(t.g.k, wide)), static_cast<unsigned>(t.cut.blocks()),
                    static_cast<unsigned>(splits));
  launch_early(kernel, blocks, dim3(threads), bytes, t, x[0], x[1], dy, out);
}

}  // namespace
}  // namespace conv_wgmma_taps

void queue_wgmma_taps(DType type, const TapsKind& kind, const Taps& taps, int splits, const CUtensorMap (&x)[2],
                      const CUtensorMap& dy, const GradientParts& out) {
  using namespace conv_wgmma_taps;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    (kind.each == 1     ? launch<T, 128, 1>
     : kind.wide == 128 ? launch<T, 128, 3>
     : kind.wide == 64  ? launch<T, 64, 5>
                        : launch<T, 32, 5>)(taps, splits, x, dy, out);
  });
}

}  // namespace convoy::cuda
