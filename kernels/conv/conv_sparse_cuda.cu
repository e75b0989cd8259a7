// Weight gradients in f32 of 3 x 3 x 3 convolutions from the gradient of their pooled map, without the seven zeros in
// eight that un-pooling writes: of each window of 2x2x2 and channel k one position has a gradient, and
// dw[k][tap][c] += g * x[position + tap][c] over the taps. A lane is an output channel, a warp four input channels (or,
// where the input has only four, a share of the windows), so that each of 108 sums stays in a register of its lane for
// as long as its block has tiles; inputs lie in shared memory as [four channels][position], where the lanes' positions,
// at most seven apart, meet in few banks. A tile is 32 windows; copies of the next one run beside the sums.
//
// Bound by shared memory: 27 reads of 16 bytes for 108 products of each lane. Parts of all blocks are added in order.
#include "kernels/conv/pooled_cube.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_sparse_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256, block_k = 32, windows = 32, taps = 27;
constexpr int halo_depth = 6, halo_height = 6, halo_width = 18, positions = halo_depth * halo_height * halo_width;
constexpr int lane_stride = positions + 1;  // in 16 bytes: neighbouring fours of channels start in different banks

/// `groups` fours of input channels: 8, one to a warp, or 1, whose windows the warps share.
template <int groups>
struct Layout {
  static constexpr int stage_bytes = groups * lane_stride * 16;
  static constexpr int gradient_bytes = windows * block_k * 4, place_bytes = windows * block_k * 2;
  static constexpr int bytes = std::max(2 * stage_bytes + gradient_bytes + place_bytes, 4 * 32 * 4 * taps * 4);
};

template <int groups>
__device__ void copy_halo(const MmaConv& p, int tile, int first_c, const float* x, uint32_t to) {
  const TileOrigin<16> o(p, tile);
  for (int i = threadIdx.x; i < positions * groups; i += threads) {
    const int group = i % groups, at = i / groups;
    const int w = o.w + at % halo_width - p.pad[2], h = o.h + at / halo_width % halo_height - p.pad[1],
              d = o.d + at / (halo_width * halo_height) - p.pad[0];
    const bool valid = d >= 0 && h >= 0 && w >= 0 && d < p.d && h < p.h && w < p.w;
    const float* from = valid ? x + (((int64_t(o.n) * p.d + d) * p.h + h) * p.w + w) * p.c + first_c + 4 * group : x;
    copy_16(to + uint32_t(group * lane_stride + at) * 16, from, valid);
  }
}

/// The gradients of four windows' channels that a thread will hand to the block.
struct Ahead {
  float gradient[4];
  int place[4];
};

__device__ Ahead look_ahead(const MmaConv& p, int tile, int first_k, const float* dy, const float* y,
                            const uint8_t* arg) {
  const TileOrigin<16> o(p, tile);
  const int pd = p.od / 2, ph = p.oh / 2, pw = p.ow / 2;
  Ahead a;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int item = threadIdx.x + i * threads, window = item / block_k;
    const int d = window / 16, h = window / 8 % 2, w = window % 8;
    const bool valid = o.d / 2 + d < pd && o.h / 2 + h < ph && o.w / 2 + w < pw;
    a.gradient[i] = 0, a.place[i] = 0;
    if (!valid) continue;
    const int64_t at =
        (((int64_t(o.n) * pd + o.d / 2 + d) * ph + o.h / 2 + h) * pw + o.w / 2 + w) * p.k + first_k + item % block_k;
    const int code = arg[at];
    a.gradient[i] = y[at] > 0 ? dy[at] : p.slope * dy[at];
    a.place[i] = ((2 * d + (code >> 2)) * halo_height + 2 * h + (code >> 1 & 1)) * halo_width + 2 * w + (code & 1);
  }
  return a;
}

template <int groups>
__global__ void __launch_bounds__(threads, 1)
    weights(const MmaConv p, const float* __restrict__ x, const float* __restrict__ dy, const float* __restrict__ y,
            const uint8_t* __restrict__ arg, float* __restrict__ parts) {
#if CONVOY_MMA
  using L = Layout<groups>;
  extern __shared__ __align__(128) char memory[];
  const uint32_t stages = shared_address(memory);
  auto* gradients = reinterpret_cast<float*>(memory + 2 * L::stage_bytes);
  auto* places = reinterpret_cast<uint16_t*>(gradients + windows * block_k);
  const int first_k = int(blockIdx.x) * block_k, first_c = int(blockIdx.y) * 4 * groups;
  const int tiles = p.all_tiles(), split = int(blockIdx.z), splits = int(gridDim.z);
  const int begin = int(int64_t(tiles) * split / splits), end = int(int64_t(tiles) * (split + 1) / splits);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = groups == 1 ? 0 : warp;
  float4 acc[taps] = {};
  copy_halo<groups>(p, begin, first_c, x, stages);
  commit_copies();
  Ahead ahead = look_ahead(p, begin, first_k, dy, y, arg);
  for (int tile = begin; tile < end; ++tile) {
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      gradients[threadIdx.x + i * threads] = ahead.gradient[i];
      places[threadIdx.x + i * threads] = static_cast<uint16_t>(ahead.place[i]);
    }
    if (tile + 1 < end) {
      copy_halo<groups>(p, tile + 1, first_c, x, stages + uint32_t((tile + 1 - begin) & 1) * L::stage_bytes);
      ahead = look_ahead(p, tile + 1, first_k, dy, y, arg);
    }
    commit_copies();
    __syncthreads();
    const auto* halo =
        reinterpret_cast<const float4*>(memory + ((tile - begin) & 1) * L::stage_bytes) + group * lane_stride;
    for (int window = groups == 1 ? warp : 0; window < windows; window += groups == 1 ? threads / 32 : 1) {
      const float g = gradients[window * block_k + lane];
      const float4* from = halo + places[window * block_k + lane];
#pragma unroll
      for (int tap = 0; tap < taps; ++tap) {
        const float4 v = from[(tap / 9 * halo_height + tap / 3 % 3) * halo_width + tap % 3];
        acc[tap].x += g * v.x, acc[tap].y += g * v.y, acc[tap].z += g * v.z, acc[tap].w += g * v.w;
      }
    }
  }
  wait_copies<0>();
  if constexpr (groups == 1) {
    auto* waiting = reinterpret_cast<float4*>(memory);
    for (int active = threads / 64; active; active /= 2) {  // the upper half of the warps gives its sums to the lower
      __syncthreads();
      if (warp >= active && warp < 2 * active)
#pragma unroll
        for (int tap = 0; tap < taps; ++tap) waiting[(tap * active + warp - active) * 32 + lane] = acc[tap];
      __syncthreads();
      if (warp < active)
#pragma unroll
        for (int tap = 0; tap < taps; ++tap) {
          const float4 v = waiting[(tap * active + warp) * 32 + lane];
          acc[tap].x += v.x, acc[tap].y += v.y, acc[tap].z += v.z, acc[tap].w += v.w;
        }
    }
    if (warp > 0) return;
  }
  float* out = parts + ((int64_t(split) * p.k + first_k + lane) * taps) * p.c + first_c + 4 * group;
#pragma unroll
  for (int tap = 0; tap < taps; ++tap) *reinterpret_cast<float4*>(out + tap * p.c) = acc[tap];
#endif
}

Support supports(const Problem& p) {
  if (const Support support = runs_mma(); !support.ok) return support;
  if (p.in[0].dtype != DType::f32) return Support::no("f32 only");
  if (const Support support = dense_floats(p); !support.ok) return support;
  const ConvShapes s = *conv_shapes(p);
  if (const Support support = supports_cube(p, s); !support.ok) return support;
  if ((s.x.c() != 4 && s.x.c() % 32) || s.y.c() % block_k)
    return Support::no("4 input channels or multiples of 32, multiples of 32 output channels");
  if (shared_memory() < (s.x.c() == 4 ? Layout<1>::bytes : Layout<8>::bytes))
    return Support::no("the device's blocks have too little shared memory");
  return Support::yes();
}

class Sparse final : public Prepared {
 public:
  explicit Sparse(const Problem& p) {
    const ConvShapes s = *conv_shapes(p);
    c_ = describe(s.x, s.y, s.attrs.pad_low, slope_of(p), mma_tile(16));
    const int blocks = c_.k / block_k * std::max(1, c_.c / 32);
    parts_ = {p.in[1].shape, p.out[0].shape.elements(),
              std::min(c_.all_tiles(), std::max(1, multiprocessors() / blocks))};
  }
  std::string detail() const override { return std::to_string(parts_.splits) + " shares of the positions"; }
  int64_t workspace_bytes() const override { return parts_.workspace_bytes(); }
  void run(const KernelArgs& a) const override {
    const dim3 grid(static_cast<unsigned>(c_.k / block_k), static_cast<unsigned>(std::max(1, c_.c / 32)),
                    static_cast<unsigned>(parts_.splits));
    const auto launch = [&](auto kernel, int bytes) {
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
      kernel<<<grid, threads, bytes, stream()>>>(c_, data<const float>(a.in[0]), data<const float>(a.in[1]),
                                                 data<const float>(a.in[2]), data<const uint8_t>(a.in[3]),
                                                 parts_.target(a).weights);
    };
    c_.c == 4 ? launch(weights<1>, Layout<1>::bytes) : launch(weights<8>, Layout<8>::bytes);
    check_launch("conv_sparse");
    parts_.finish<float>(a, c_.slope);
  }

 private:
  MmaConv c_{};
  WeightParts parts_{};
};

}  // namespace
}  // namespace conv_sparse_cuda

std::vector<KernelPtr> conv_sparse_cuda_kernels() {
  using namespace conv_sparse_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_sparse", OpKind::conv_pool_backward_weights, supports,
                        [](const Problem& p) -> std::unique_ptr<Prepared> { return std::make_unique<Sparse>(p); }));
  return list;
}

}  // namespace convoy
