// Weight gradients of 3 x 3 x 3 convolutions on tensor cores, from the gradient of the pooled map: dw[k][tap][c] sums
// dy[position][k] * x[position + tap][c] over all positions, a product whose inner dimension is the positions. A block
// owns 64 output and 32 input channels and the nine taps of one depth: 18432 sums, 72 registers of each thread for
// every half of the positions. It goes through its share of the tiles of 256 positions; of each it copies the inputs
// around and the pooled gradient (with output and arg-max, an eighth of the positions) into shared memory while the
// tile before is multiplied, spreads the gradient out there, and transposes both on their way into registers
// (ldmatrix.trans). The parts of all shares are added by another kernel, in their order.
//
// Per 16 positions a warp loads 2 + 9 fragments for 36 products.
#include "kernels/conv/conv_mma_kernels.h"

namespace convoy::cuda {
namespace conv_mma_weights {
namespace {

constexpr int threads = 256, block_k = 64, block_c = 32, stages = 3;

template <int columns>
struct Layout {
  using B = Tile<columns>;
  static constexpr int height = B::height + 2, width = B::width + 2, rows = B::depth * height * width;
  static constexpr int windows_h = B::height / 2, windows_w = B::width / 2, windows = 32;
  static constexpr int x_bytes = rows * 64, gradient_bytes = windows * block_k * 2, arg_bytes = windows * block_k;
  static constexpr int stage_bytes = x_bytes + 2 * gradient_bytes + arg_bytes;
  static constexpr int spread_bytes = B::positions * 128;
  static constexpr int bytes = stages * stage_bytes + 2 * spread_bytes;
};

/// Sums of the second half of the positions wait here for those of the first: 144 floats of each of 128 threads.
constexpr int reduction_bytes = 144 * 128 * 4;

template <class T, int columns>
__device__ void copy_stage(const MmaConv& p, int tile, int kd, int first_k, int first_c, const T* x,
                           const MmaSource& dy, uint32_t to) {
  using L = Layout<columns>;
  const TileOrigin<columns> o(p, tile);
  for (int i = threadIdx.x; i < L::rows * 4; i += threads) {
    const int slot = i & 3, row = i >> 2;
    const int w = o.w + row % L::width - p.pad[2], h = o.h + row / L::width % L::height - p.pad[1],
              d = o.d + row / (L::width * L::height) + kd - p.pad[0];
    const bool valid = d >= 0 && h >= 0 && w >= 0 && d < p.d && h < p.h && w < p.w;
    const T* from = valid ? x + (((int64_t(o.n) * p.d + d) * p.h + h) * p.w + w) * p.c + first_c + slot * 8 : x;
    copy_16(to + slot_64(row, slot), from, valid);
  }
  // A thread for each eight channels of a window, which it will also spread.
  const int slot = threadIdx.x % 8, window = threadIdx.x / 8;
  const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
  const int d = o.d / 2 + window / (L::windows_w * L::windows_h), h = o.h / 2 + window / L::windows_w % L::windows_h,
            w = o.w / 2 + window % L::windows_w;
  const bool valid = d < pd && h < ph && w < pw;
  const int64_t at = valid ? (((int64_t(o.n) * pd + d) * ph + h) * pw + w) * p.k + first_k + slot * 8 : 0;
  const uint32_t gradient = to + L::x_bytes, output = gradient + L::gradient_bytes, arg = output + L::gradient_bytes;
  copy_16(gradient + threadIdx.x * 16, static_cast<const T*>(dy.gradient) + at, valid);
  copy_16(output + threadIdx.x * 16, static_cast<const T*>(dy.output) + at, valid);
  copy_8(arg + threadIdx.x * 8, dy.arg + at, valid);
}

/// Positions in rows of 128 bytes.
template <class T, int columns>
__device__ void spread(const MmaConv& p, uint32_t stage, uint32_t to) {
  using L = Layout<columns>;
  using B = Tile<columns>;
  const int slot = threadIdx.x % 8, window = threadIdx.x / 8;
  const uint32_t gradient = stage + L::x_bytes, output = gradient + L::gradient_bytes, arg = output + L::gradient_bytes;
  const Spread<T> value(load_16(gradient + threadIdx.x * 16), load_16(output + threadIdx.x * 16),
                        load_8(arg + threadIdx.x * 8), p.slope);
  const int d = 2 * (window / (L::windows_w * L::windows_h)), h = 2 * (window / L::windows_w % L::windows_h),
            w = 2 * (window % L::windows_w);
  for (int code = 0; code < 8; ++code) {
    const int row = ((d + (code >> 2)) * B::height + h + (code >> 1 & 1)) * B::width + w + (code & 1);
    store_16(to + slot_128(row, slot), value.take(code));
  }
}

template <class T, int columns>
__global__ void __launch_bounds__(threads, 1)
    weights(const MmaConv p, const T* __restrict__ x, MmaSource dy, float* __restrict__ parts) {
#if CONVOY_MMA
  using L = Layout<columns>;
  using B = Tile<columns>;
  extern __shared__ __align__(128) char memory[];
  const uint32_t ring = shared_address(memory), spread_out = ring + stages * L::stage_bytes;
  const int blocks_c = p.c / block_c;
  const int first_c = int(blockIdx.x) % blocks_c * block_c, first_k = int(blockIdx.x) / blocks_c * block_k;
  const int kd = int(blockIdx.y), tiles = p.all_tiles(), split = int(blockIdx.z), splits = int(gridDim.z);
  const int begin = int(int64_t(tiles) * split / splits), end = int(int64_t(tiles) * (split + 1) / splits);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int half_k = warp & 1, half_c = warp >> 1 & 1, half_of_positions = warp >> 2;

  float acc[9][2][2][4] = {};
  const auto fetch = [&](int tile) {
    if (tile < end)
      copy_stage<T, columns>(p, tile, kd, first_k, first_c, x, dy, ring + uint32_t(tile % stages) * L::stage_bytes);
    commit_copies();
  };
  fetch(begin), fetch(begin + 1);
  wait_copies<1>();
  __syncthreads();
  spread<T, columns>(p, ring + uint32_t(begin % stages) * L::stage_bytes, spread_out + begin % 2 * L::spread_bytes);
  for (int tile = begin; tile < end; ++tile) {
    wait_copies<0>();
    __syncthreads();  // the next tile is there, this one is spread out, and nobody reads the last one any more
    fetch(tile + 2);
    // Other warps' products hide what spreading waits for.
    if (tile + 1 < end)
      spread<T, columns>(p, ring + uint32_t((tile + 1) % stages) * L::stage_bytes,
                         spread_out + (tile + 1) % 2 * L::spread_bytes);
    const uint32_t stage = ring + uint32_t(tile % stages) * L::stage_bytes;
    const uint32_t left = spread_out + tile % 2 * L::spread_bytes;
    for (int step = 8 * half_of_positions; step < 8 * half_of_positions + 8; ++step) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_transposed(
            a[i], left + slot_128(16 * step + (lane & 7) + 8 * (lane >> 4), 4 * half_k + 2 * i + (lane >> 3 & 1)));
      // This lane's position of the right operand: rows of 16 or two of 8.
      const int at = 16 * step + (lane & 7) + 8 * (lane >> 3 & 1);
      const int row = (at / (B::height * B::width) * L::height + at / B::width % B::height) * L::width + at % B::width;
      const int slot = 2 * half_c + (lane >> 4);
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
        uint32_t b[4];
        load_transposed(b, stage + slot_64(row + tap / 3 * L::width + tap % 3, slot));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add<T>(acc[tap][i][0], a[i], b[0], b[1]);
          multiply_add<T>(acc[tap][i][1], a[i], b[2], b[3]);
        }
      }
    }
  }

  wait_copies<0>();
  __syncthreads();
  float* waiting = reinterpret_cast<float*>(memory) + threadIdx.x % 128;
  if (half_of_positions == 1)
#pragma unroll
    for (int i = 0; i < 144; ++i) waiting[i * 128] = acc[i / 16][i / 8 % 2][i / 4 % 2][i % 4];
  __syncthreads();
  if (half_of_positions == 1) return;
#pragma unroll
  for (int i = 0; i < 144; ++i) acc[i / 16][i / 8 % 2][i / 4 % 2][i % 4] += waiting[i * 128];
  float* out = parts + int64_t(split) * p.k * 27 * p.c;
  const int k = first_k + 32 * half_k + lane / 4, c = first_c + 16 * half_c + 2 * (lane % 4);
#pragma unroll
  for (int tap = 0; tap < 9; ++tap)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int low = 0; low < 2; ++low)
          *reinterpret_cast<float2*>(out + (int64_t(k + 16 * i + 8 * low) * 27 + 9 * kd + tap) * p.c + c + 8 * j) =
              make_float2(acc[tap][i][j][2 * low], acc[tap][i][j][2 * low + 1]);
#endif
}

template <class T, int columns>
void launch(const MmaConv& p, int splits, const void* x, const MmaSource& dy, float* parts) {
  constexpr int bytes = std::max(Layout<columns>::bytes, reduction_bytes);
  allow_shared_bytes(reinterpret_cast<const void*>(weights<T, columns>), bytes);
  const dim3 grid(static_cast<unsigned>(p.k / block_k * (p.c / block_c)), 3, static_cast<unsigned>(splits));
  weights<T, columns><<<grid, threads, bytes, stream()>>>(p, static_cast<const T*>(x), dy, parts);
  check_launch("conv_mma_weights");
}

}  // namespace
}  // namespace conv_mma_weights

int mma_weights_shared_bytes() {
  using namespace conv_mma_weights;
  return std::max(Layout<16>::bytes, reduction_bytes);
}

void queue_mma_weights(DType type, const MmaConv& p, int columns, int splits, const void* x, const MmaSource& dy,
                       float* parts) {
  using namespace conv_mma_weights;
  dispatch_16(type, [&](auto zero) {
    using T = decltype(zero);
    (columns == 16 ? launch<T, 16> : launch<T, 8>)(p, splits, x, dy, parts);
  });
}

}  // namespace convoy::cuda
