// 3 x 3 x 3 convolutions of stride 1 on Hopper's warpgroup products (kernels/device/wgmma.h). The weights of 64 output
// channels are the left operand and come to registers in the order that the instruction wants; positions are the right
// operand and stay in shared memory: 16 channels of all positions that a block's outputs see, once for all 27 taps. A
// tap is another address there. A warpgroup owns 64 channels of 4 x 8 x 8 positions: 128 sums a thread, among them all
// eight of a window of the pool. Two of a block's three warpgroups multiply, side by side in channels or, where there
// are 64, in height. The third copies some rows of taps ahead of them: weights through a ring of such rows, and, a part
// with each row, the next 16 channels of the positions, or it spreads these out from a pooled gradient. Named barriers
// say which rows are there and which are done with; a block goes from tile to tile without a pause.
//
// 32 output channels, too few for 64 rows, are taken at two depths at once: four taps in depth, of which each half of
// the rows multiplies three, the fourth with zeros (three quarters of the rate instead of half). A value that is not
// finite so reaches a depth more than its taps: zero times infinity is not zero.
//
// Per 64 x 64 x 16 products, 32 clocks of the tensor cores, shared memory gives 2 KiB of positions and a quarter of
// 2 KiB of weights: 20 of 32 clocks.
#include "kernels/conv/channel_neighbours.h"
#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/wgmma.h"

namespace convoy::cuda {
namespace conv_wgmma_direct {
namespace {

constexpr int consumers = 2 * warpgroup, threads = consumers + warpgroup;
constexpr int stages = 6, chunk = 16, width = wgmma_width;
/// Rows of taps that are under way before the copying warpgroup waits for the first of them.
constexpr int lag = 3;
/// Weights of 64 channels, one tap, 16 input channels.
constexpr int tap_bytes = 64 * chunk * 2;

using Slots = Ring<stages>;

/// What a block covers: `across` (2 or 1) warpgroups side by side in channels, the others in height; `deep`: 32
/// channels at two depths.
template <int across, bool deep, bool spreads>
struct Block {
  static constexpr int taps_d = deep ? 4 : 3, rows = 3 * taps_d;
  static constexpr int height = 8 * (2 / across), slice = deep ? 2 : 1;
  static constexpr int halo_d = 4 * slice + 2, halo_h = height + 2, halo_w = width + 2;
  static constexpr int positions = halo_d * halo_h * halo_w;
  /// Eight channels of all positions; the two planes lie in different banks, for copies of neighbours or for windows.
  static constexpr int plane_bytes = (positions * 16 + 127) / 128 * 128 + (spreads ? 16 : 64);
  static constexpr int halo_bytes = (2 * plane_bytes + 127) / 128 * 128;
  static constexpr int row_bytes = across * 3 * tap_bytes;
  /// Copies of 16 bytes that a thread makes of 16 channels, and windows of a pool that it spreads out, in so many
  /// parts: the first rows of taps of some channels may still read the buffer of the next.
  static constexpr int copies = (positions * 2 + warpgroup - 1) / warpgroup, parts = rows - (stages - 1);
  static constexpr int windows_d = halo_d / 2 + 1, windows_h = halo_h / 2 + 1, windows_w = halo_w / 2 + 1;
  static constexpr int window_turns = (windows_d * windows_h * windows_w * 2 + warpgroup - 1) / warpgroup;
  static_assert(window_turns <= parts);
  static constexpr int table_bytes = spreads ? 0 : copies * warpgroup * 4;
  static constexpr int bytes = 2 * halo_bytes + stages * row_bytes + table_bytes;
};

/// What is to be multiplied one after the other: 16 channels of a tile for some output channels, of one share of the
/// input channels.
template <class B>
struct Chunks {
  const MmaConv& p;
  int item, items, splits, at = 0, end = 0;
  int tile, block, split;
  int n, d, h, w;  ///< first position

  __device__ Chunks(const MmaConv& p, int blocks, int splits)
      : p(p), item(int(blockIdx.x)), items(p.all_tiles() * blocks * splits), splits(splits) {
    begin_item();
  }
  __device__ bool valid() const { return item < items; }
  /// Whether another item begins.
  __device__ bool next() {
    if (++at < end) return false;
    next_item();
    return true;
  }
  __device__ void next_item() {
    item += int(gridDim.x);
    begin_item();
  }

 private:
  __device__ void begin_item() {
    const int tiles = p.all_tiles(), chunks = p.c / chunk;
    tile = item % tiles;
    const int rest = item / tiles;
    split = rest % splits, block = rest / splits;
    at = chunks * split / splits, end = chunks * (split + 1) / splits;
    int t = tile;
    w = t % p.tiles[2] * width, t /= p.tiles[2];
    h = t % p.tiles[1] * B::height, t /= p.tiles[1];
    d = t % p.tiles[0] * 4 * B::slice, n = t / p.tiles[0];
  }
};

/// How the copying warpgroup brings 16 channels of all positions that a block sees.
template <class T, class B>
class Copies {
 public:
  __device__ Copies(const MmaConv& p, const T* x, uint32_t table) : p_(p), x_(x), table_(table + threadIdx.x * 4) {}
  /// Which positions of the sample this thread copies, -1 where padding is; entries that no other thread reads.
  __device__ void begin_item(const Chunks<B>& c) {
    for (int i = 0; i < B::copies; ++i) {
      const int at = (i * warpgroup + int(threadIdx.x)) / 2;
      const int d = c.d + at / (B::halo_w * B::halo_h) - p_.pad[0], h = c.h + at / B::halo_w % B::halo_h - p_.pad[1],
                w = c.w + at % B::halo_w - p_.pad[2];
      const bool valid = d >= 0 && h >= 0 && w >= 0 && d < p_.d && h < p_.h && w < p_.w;
      store_4(table_ + i * warpgroup * 4, valid ? uint32_t((d * p_.h + h) * p_.w + w) : ~0u);
    }
  }
  __device__ void whole(const Chunks<B>& c, uint32_t to) const { copy(c, to, 0, B::copies); }
  __device__ void foresee(const Chunks<B>&, int) {}
  __device__ void part(const Chunks<B>& c, uint32_t to, int part) const {
    constexpr int each = (B::copies + B::parts - 1) / B::parts;
    copy(c, to, part * each, min(B::copies, (part + 1) * each));
  }

 private:
  __device__ void copy(const Chunks<B>& c, uint32_t to, int begin, int end) const {
    const int plane = threadIdx.x & 1;
    const T* from = x_ + int64_t(c.n) * p_.d * p_.h * p_.w * p_.c + c.at * chunk + plane * 8;
    to += plane * B::plane_bytes;
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      const int at = (i * warpgroup + int(threadIdx.x)) / 2;
      const uint32_t position = load_4(table_ + i * warpgroup * 4);
      const bool valid = position != ~0u;
      if (at < B::positions) copy_16(to + at * 16, from + int64_t(position) * p_.c, valid);
    }
  }

  const MmaConv& p_;
  const T* x_;
  uint32_t table_;
};

/// The same from a pooled gradient: eight channels of a window of the pool in each part, loaded a part ahead.
template <class T, class B>
class Spreads {
 public:
  __device__ Spreads(const MmaConv& p, const MmaSource& from) : p_(p), from_(from) {}
  __device__ void begin_item(const Chunks<B>&) {}
  /// Two windows at a time, whose loads run side by side.
  __device__ void whole(const Chunks<B>& c, uint32_t to) {
    Spreads other(*this);
    for (int i = 0; i < B::window_turns; i += 2)
      foresee(c, i), other.foresee(c, i + 1), part(c, to, i), other.part(c, to, i + 1);
  }
  __device__ void foresee(const Chunks<B>& c, int part) {
    const int i = part * warpgroup + int(threadIdx.x), at = i / 2, plane = i & 1;
    exists_ = at < B::windows_d * B::windows_h * B::windows_w;
    const int d0 = c.d - p_.pad[0], h0 = c.h - p_.pad[1], w0 = c.w - p_.pad[2];
    const int pd = (d0 >> 1) + at / (B::windows_w * B::windows_h), ph = (h0 >> 1) + at / B::windows_w % B::windows_h,
              pw = (w0 >> 1) + at % B::windows_w;
    d_ = 2 * pd - d0, h_ = 2 * ph - h0, w_ = 2 * pw - w0;
    window_.load(
        from_, exists_ && pd >= 0 && ph >= 0 && pw >= 0 && pd < p_.d / 2 && ph < p_.h / 2 && pw < p_.w / 2,
        (((int64_t(c.n) * (p_.d / 2) + pd) * (p_.h / 2) + ph) * (p_.w / 2) + pw) * p_.c + c.at * chunk + plane * 8);
  }
  __device__ void part(const Chunks<B>&, uint32_t to, int part) const {
    if (part >= B::window_turns || !exists_) return;
    const Spread<T> values(window_.gradient, window_.output, window_.arg, p_.slope);
    to += (threadIdx.x & 1) * B::plane_bytes + ((d_ * B::halo_h + h_) * B::halo_w + w_) * 16;
#pragma unroll
    for (int code = 0; code < 8; ++code) {
      const int dd = code >> 2, hh = code >> 1 & 1, ww = code & 1;
      if (uint32_t(d_ + dd) < B::halo_d && uint32_t(h_ + hh) < B::halo_h && uint32_t(w_ + ww) < B::halo_w)
        store_16(to + ((dd * B::halo_h + hh) * B::halo_w + ww) * 16, values.take(code));
    }
  }

 private:
  const MmaConv& p_;
  const MmaSource& from_;
  PooledEight window_;
  int d_, h_, w_;  ///< of the window's first position, from the first that the block sees
  bool exists_;
};

/// The copying warpgroup.
template <class B, class Source>
__device__ void produce(const MmaConv& p, int blocks, int splits, Source source, const uint4* w, uint32_t halo,
                        uint32_t ring) {
  Chunks<B> now(p, blocks, splits), ahead(p, blocks, splits);
  const int across = B::row_bytes / (3 * tap_bytes), chunks = p.c / chunk;
  if (!now.valid()) return;
  source.begin_item(ahead);
  source.whole(ahead, halo);
  if (ahead.next()) source.begin_item(ahead);
  int row = 0, slot = 0, ready = (stages - lag) % stages, buffer = 1;
  for (; now.valid(); now.next()) {
    const uint4* weights =
        w + (int64_t(now.block) * across * chunks + now.at) * (B::rows * 3 * warpgroup) + threadIdx.x;
    for (int tap_row = 0; tap_row < B::rows; ++tap_row, ++row) {
      if (row >= stages) arrive_and_wait(Slots::empty(slot), threads);
#pragma unroll
      for (int i = 0; i < 3 * across; ++i)
        copy_16(ring + uint32_t(slot) * B::row_bytes + (i * warpgroup + threadIdx.x) * 16,
                weights + int64_t(i / 3) * chunks * (B::rows * 3 * warpgroup) + (tap_row * 3 + i % 3) * warpgroup,
                true);
      // Where the row `stages` back is done with, so are the channels before these.
      if (ahead.valid() && tap_row >= stages - 1)
        source.part(ahead, halo + uint32_t(buffer) * B::halo_bytes, tap_row - (stages - 1));
      if (ahead.valid() && tap_row >= stages - 2) source.foresee(ahead, tap_row - (stages - 2));
      commit_copies();
      if (row >= lag) {
        wait_copies<lag>();
        show_to_products();
        arrive(Slots::full(ready), threads);
      }
      slot = Slots::after(slot), ready = Slots::after(ready);
    }
    buffer ^= 1;
    if (ahead.valid() && ahead.next() && ahead.valid()) source.begin_item(ahead);
  }
  wait_copies<0>();
  show_to_products();
  for (int i = 0; i < lag; ++i) {
    arrive(Slots::full(ready), threads);
    ready = Slots::after(ready);
  }
}

/// Ends an item: sums of sixteen rows from `channel` on to a warp, in height from `below` on.
template <class T, bool deep, Ending ending, class B>
__device__ __forceinline__ void finish(const MmaConv& p, const Chunks<B>& now, const float (&acc)[4][32], int channel,
                                       int below, int warp, int lane, const MmaResult& to, float* parts) {
  const Neighbours neighbours(lane);
  const int column = (deep ? channel % 32 : channel) + neighbours.first;
  const int d0 = now.d + (deep ? warp / 2 : 0), h0 = now.h + below, w0 = now.w + 2 * (lane % 4);
  // Sums of channels g and g + 8 at depth i, row j of eight, of two positions across.
  const auto sums = [&](int i, int j, int across_w) {
    return make_float2(acc[i][4 * j + across_w], acc[i][4 * j + 2 + across_w]);
  };
  if constexpr (ending == Ending::pool) {
    const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Two<T> value;
        uint16_t arg;
        pool_window<T>([&](int code) { return sums(2 * i + (code >> 2), 2 * j + (code >> 1 & 1), code & 1); }, p.slope,
                       &value, &arg);
        uint32_t pair = *reinterpret_cast<const uint32_t*>(&value), bytes = arg;
        neighbours.exchange(pair, bytes);
        const int d = d0 / 2 + i, h = h0 / 2 + j, v = w0 / 2;
        if (d >= pd || h >= ph || v >= pw) continue;
        const int64_t at = (((int64_t(now.n) * pd + d) * ph + h) * pw + v) * p.k + column;
        // Channels start at g or g + 7: pairs of T's are aligned where g is even.
        *reinterpret_cast<uint32_t*>(static_cast<T*>(to.y) + at) = pair;
        *reinterpret_cast<uint16_t*>(to.arg + at) = static_cast<uint16_t>(bytes);
      }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int across_w = 0; across_w < 2; ++across_w) {
          const float2 sum = sums(i, j, across_w);
          const int d = d0 + i * (deep ? 2 : 1), h = h0 + j, v = w0 + across_w;
          const bool inside = d < p.od && h < p.oh && v < p.ow;
          const int64_t at = (((int64_t(now.n) * p.od + d) * p.oh + h) * p.ow + v) * p.k + column;
          if constexpr (ending == Ending::part) {
            const float2 pair = neighbours.exchange(sum);
            if (inside)
              *reinterpret_cast<float2*>(parts + int64_t(now.split) * p.n * p.od * p.oh * p.ow * p.k + at) = pair;
          } else {
            const Two<T> value = rounded_two<T>(sum);
            uint32_t pair = *reinterpret_cast<const uint32_t*>(&value), none = 0;
            neighbours.exchange(pair, none);
            if (inside) *reinterpret_cast<uint32_t*>(static_cast<T*>(to.y) + at) = pair;
          }
        }
  }
}

template <class T, int across, bool deep, bool spreads, Ending ending>
__global__ void __launch_bounds__(threads, 1)
    direct(const __grid_constant__ MmaConv p, const __grid_constant__ MmaSource from, const uint4* __restrict__ w,
           const float* __restrict__ bias, MmaResult to, int splits, float* __restrict__ parts) {
#if CONVOY_WGMMA
  using B = Block<across, deep, spreads>;
  extern __shared__ __align__(128) char memory[];
  const uint32_t halo = shared_address(memory), ring = halo + 2 * B::halo_bytes;
  const int blocks = deep ? 1 : p.k / (64 * across);
  if (threadIdx.x < warpgroup) {
    give_registers<72>();
    if constexpr (spreads)
      produce<B>(p, blocks, splits, Spreads<T, B>(p, from), w, halo, ring);
    else
      produce<B>(p, blocks, splits, Copies<T, B>(p, static_cast<const T*>(from.x), ring + stages * B::row_bytes), w,
                 halo, ring);
    return;
  }
  take_registers<216>();
  const int consumer = warpgroup_number() - 1, lane = threadIdx.x % 32, warp = threadIdx.x % warpgroup / 32;
  const int right = across == 2 ? consumer : 0, below = across == 2 ? 0 : 8 * consumer;
  const uint32_t mine = ring + right * 3 * tap_bytes + threadIdx.x % warpgroup * 16;
  const Columns columns(halo + below * B::halo_w * 16, B::plane_bytes, B::halo_w * 16);
  int slot = 0, buffer = 0;
  for (Chunks<B> now(p, blocks, splits); now.valid(); now.next_item()) {
    const int channel = (now.block * across + right) * 64 + 16 * warp;  // of the first of sixteen rows
    float2 b = make_float2(0, 0);
    if (ending != Ending::part && bias) {
      const float* at = bias + (deep ? channel % 32 : channel) + lane / 4;
      b = make_float2(at[0], at[8]);
    }
    float acc[4][32];
#pragma unroll
    for (int i = 0; i < 128; ++i) acc[i / 32][i % 32] = i & 2 ? b.y : b.x;
    int kd = 0, kh = 0;
    const auto multiply_row = [&](bool first, uint32_t(&a)[3][4]) {
      arrive_and_wait(Slots::full(slot), threads);
#pragma unroll
      for (int kw = 0; kw < 3; ++kw) {
        const uint4 v = load_16(mine + uint32_t(slot) * B::row_bytes + kw * tap_bytes);
        a[kw][0] = v.x, a[kw][1] = v.y, a[kw][2] = v.z, a[kw][3] = v.w;
      }
      products_begin();
      const Columns here = columns + (buffer * (B::halo_bytes / 16) + (kd * B::halo_h + kh) * B::halo_w);
#pragma unroll
      for (int kw = 0; kw < 3; ++kw)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply_positions<T>(acc[i], a[kw], here + (i * B::slice * B::halo_h * B::halo_w + kw));
      commit_products();
      wait_products<1>();
      if (!first) arrive(Slots::empty(Slots::before(slot)), threads);
      slot = Slots::after(slot);
      if (++kh == 3) kh = 0, ++kd;
      if (kd == B::taps_d) kd = 0, buffer ^= 1;
    };
    const int rows = (now.end - now.at) * B::rows;
    uint32_t a[2][3][4];
#pragma unroll 1
    for (int row = 0; row < rows; row += 2) {
      multiply_row(row == 0, a[0]);
      if (row + 1 < rows) multiply_row(false, a[1]);
    }
    wait_products<0>();
    arrive(Slots::empty(Slots::before(slot)), threads);
    finish<T, deep, ending>(p, now, acc, channel, below, warp, lane, to, parts);
  }
#endif
}

/// A thread for what a thread of the convolution will hold of one tap: rows lane/4 and lane/4 + 8 of its warp's
/// sixteen, input channels 2*(lane%4), the next, and both eight further.
template <class T>
__global__ void pack(WgmmaWeights s, const T* w, uint4* packed) {
  const int taps_d = s.deep() ? 4 : 3, rows = 3 * taps_d, chunks = s.c / chunk;
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= int64_t(s.deep() ? 1 : s.k / 64) * chunks * rows * 3 * warpgroup) return;
  const int thread = int(i % warpgroup), kw = int(i / warpgroup % 3), kh = int(i / (3 * warpgroup) % 3),
            kd = int(i / (9 * warpgroup) % taps_d);
  const int64_t block = i / (int64_t(rows) * 3 * warpgroup);
  const int first_c = int(block % chunks) * chunk, first_k = int(block / chunks) * 64;
  uint4 fragment;
  T* out = reinterpret_cast<T*>(&fragment);
  for (int e = 0; e < 8; ++e) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (e >> 1 & 1),
              c = first_c + thread % 4 * 2 + (e & 1) + 8 * (e >> 2);
    const int depth = s.deep() ? kd - row / 32 : kd, k = s.deep() ? row % 32 : first_k + row;
    if (depth < 0 || depth > 2)
      out[e] = from_float<T>(0);
    else if (s.turned)
      out[e] = w[(int64_t(c) * 27 + 26 - (depth * 9 + kh * 3 + kw)) * s.k + k];
    else
      out[e] = w[(int64_t(k) * 27 + depth * 9 + kh * 3 + kw) * s.c + c];
  }
  packed[i] = fragment;
}

template <class T, int across, bool deep, bool spreads, Ending ending>
void launch(const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w, const float* bias,
            const MmaResult& to) {
  using B = Block<across, deep, spreads>;
  static_assert(B::bytes <= hopper_shared_bytes);
  const auto function = direct<T, across, deep, spreads, ending>;
  allow_shared_bytes(reinterpret_cast<const void*>(function), B::bytes);
  const int items = p.all_tiles() * (deep ? 1 : p.k / (64 * across)) * cut.splits;
  function<<<static_cast<unsigned>(std::min(items, multiprocessors())), threads, B::bytes, stream()>>>(
      p, from, static_cast<const uint4*>(w), bias, to, cut.splits, cut.parts);
  check_launch("conv_wgmma_direct");
}

template <class T, int across, bool deep>
void launch_kind(const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w, const float* bias,
                 const MmaResult& to) {
  if constexpr (!deep) {
    if (cut.splits > 1)
      return from.arg ? launch<T, across, deep, true, Ending::part>(p, cut, from, w, bias, to)
                      : launch<T, across, deep, false, Ending::part>(p, cut, from, w, bias, to);
    if (to.arg) return launch<T, across, deep, false, Ending::pool>(p, cut, from, w, bias, to);
  }
  if (from.arg) {
    launch<T, across, deep, true, Ending::store>(p, cut, from, w, bias, to);
  } else {
    launch<T, across, deep, false, Ending::store>(p, cut, from, w, bias, to);
  }
}

}  // namespace
}  // namespace conv_wgmma_direct

void queue_wgmma_direct(DType type, const MmaConv& p, const MmaCut& cut, const MmaSource& from, const void* w,
                        const float* bias, const MmaResult& to) {
  using namespace conv_wgmma_direct;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    if (wgmma_deep(p.k))
      launch_kind<T, 1, true>(p, cut, from, w, bias, to);
    else if (cut.block_k == 64)
      launch_kind<T, 1, false>(p, cut, from, w, bias, to);
    else
      launch_kind<T, 2, false>(p, cut, from, w, bias, to);
  });
  if (cut.splits > 1) queue_mma_finish(type, p, cut, bias, to);
}

void queue_wgmma_pack(DType type, const WgmmaWeights& s, const void* w, void* packed) {
  using namespace conv_wgmma_direct;
  const int64_t work = wgmma_pack_bytes(s) / 16;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    pack<<<static_cast<unsigned>((work + 127) / 128), 128, 0, stream()>>>(s, static_cast<const T*>(w),
                                                                          static_cast<uint4*>(packed));
  });
  check_launch("conv_wgmma_pack");
}

}  // namespace convoy::cuda
