// Weight gradients on CUDA devices where no tensor core serves: f32 throughout, any geometry without groups, dense
// tensors and slices. For every tap a product of matrices, gradient channels by input channels, over all positions; a
// block has 64 x 64 of it, a thread 4 x 4, and positions are shared out until the device is full. Bound by FMA.
#include "core/round_up.h"
#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/device/channel_sums.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_tiled_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256, tile = 64, each = 4, step = 32;  ///< step: positions in shared memory at a time
constexpr int loads = step * tile / threads;                  ///< of a thread, from either tensor
constexpr int64_t most_part_bytes = int64_t{256} << 20;

/// The pixel of x that a tap reads at an output position; -1: outside.
__device__ int64_t input_of(const ConvGeometry& g, const int tap[3], int64_t position) {
  int64_t pixel = 0, at = position;
  int of[3];
  for (int axis = 2; axis >= 0; --axis) of[axis] = int(at % g.y[axis]), at /= g.y[axis];
  pixel = at;
  for (int axis = 0; axis < 3; ++axis) {
    const int i = of[axis] * g.stride[axis] - g.pad[axis] + tap[axis] * g.dilation[axis];
    if (i < 0 || i >= g.x[axis]) return -1;
    pixel = pixel * g.x[axis] + i;
  }
  return pixel;
}

/// What a thread has on the way from either tensor to shared memory.
struct Loaded {
  float x[loads], dy[loads];
};

template <class T>
__global__ void __launch_bounds__(threads) weight_gradients(ConvGeometry g, int64_t positions, int column_tiles,
                                                            Pixels<const T> x, Pixels<const T> dy, float* parts) {
  __shared__ __align__(16) float xs[2][step][tile], ds[2][step][tile];
  __shared__ int64_t inputs[2][step];
  const int first_k = int(blockIdx.x) / column_tiles * tile, first_c = int(blockIdx.x) % column_tiles * tile;
  const int t = int(blockIdx.y);
  const int tap[3] = {t / (g.kernel[1] * g.kernel[2]), t / g.kernel[2] % g.kernel[1], t % g.kernel[2]};
  const int64_t begin = positions * blockIdx.z / gridDim.z, end = positions * (blockIdx.z + 1) / gridDim.z;
  const int lane = int(threadIdx.x) % tile, row = int(threadIdx.x) / tile;
  const auto find_inputs = [&](int buffer, int64_t from) {
    if (int(threadIdx.x) < step)
      inputs[buffer][threadIdx.x] = from + threadIdx.x < end ? input_of(g, tap, from + threadIdx.x) : -1;
  };
  const auto load = [&](int buffer, int64_t from) {
    Loaded v;
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int r = row + i * (threads / tile);
      const int64_t pixel = inputs[buffer][r];
      v.x[i] = pixel >= 0 && first_c + lane < g.c ? to_float(x.data[pixel * x.pitch + first_c + lane]) : 0.0f;
      v.dy[i] = pixel >= 0 && first_k + lane < g.k ? to_float(dy.data[(from + r) * dy.pitch + first_k + lane]) : 0.0f;
    }
    return v;
  };
  const auto keep = [&](int buffer, const Loaded& v) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      xs[buffer][row + i * (threads / tile)][lane] = v.x[i];
      ds[buffer][row + i * (threads / tile)][lane] = v.dy[i];
    }
  };
  const int c = int(threadIdx.x) % 16 * each, k = int(threadIdx.x) / 16 * each;
  float sums[each][each] = {};
  find_inputs(0, begin);
  __syncthreads();
  Loaded next = load(0, begin);
  int buffer = 0;
  for (int64_t at = begin; at < end; at += step, buffer ^= 1) {
    keep(buffer, next);
    find_inputs(buffer ^ 1, at + step);
    __syncthreads();
    if (at + step < end) next = load(buffer ^ 1, at + step);
#pragma unroll 8
    for (int r = 0; r < step; ++r) {
      const float4 a = *reinterpret_cast<const float4*>(&ds[buffer][r][k]),
                   b = *reinterpret_cast<const float4*>(&xs[buffer][r][c]);
      const float from_k[each] = {a.x, a.y, a.z, a.w}, from_c[each] = {b.x, b.y, b.z, b.w};
      for (int i = 0; i < each; ++i)
        for (int j = 0; j < each; ++j) sums[i][j] = fmaf(from_k[i], from_c[j], sums[i][j]);
    }
  }
  const int taps = int(gridDim.y);
  float* out = parts + int64_t(blockIdx.z) * g.k * taps * g.c;
  for (int i = 0; i < each; ++i)
    for (int j = 0; j < each; ++j)
      if (first_k + k + i < g.k && first_c + c + j < g.c)
        out[(int64_t(first_k + k + i) * taps + t) * g.c + first_c + c + j] = sums[i][j];
}

struct Setup {
  ConvGeometry g;
  int row_tiles, column_tiles, taps, parts;
  int64_t positions, weights;
  explicit Setup(const Problem& p) : g(conv_geometry(p)), positions(p.in[1].shape.rows()) {
    row_tiles = (g.k + tile - 1) / tile, column_tiles = (g.c + tile - 1) / tile;
    taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
    weights = p.out[0].shape.elements();
    const int64_t blocks = int64_t(row_tiles) * column_tiles * taps, wanted = 8 * int64_t(multiprocessors()) / blocks,
                  most = std::min(positions / (8 * step), most_part_bytes / (4 * weights));
    parts = static_cast<int>(std::clamp<int64_t>(std::min(wanted, most), 1, 1024));
  }
  int64_t part_bytes() const { return parts > 1 ? round_up(4 * parts * weights, 256) : 0; }
};

std::unique_ptr<Prepared> prepare(const Problem& p) {
  const Setup s(p);
  const Shape y = p.in[1].shape;
  return prepared(
      [s](const KernelArgs& a) {
        auto* sums = s.parts > 1 ? reinterpret_cast<float*>(a.workspace) : data<float>(a.out[0]);
        const dim3 blocks(static_cast<unsigned>(s.row_tiles * s.column_tiles), static_cast<unsigned>(s.taps),
                          static_cast<unsigned>(s.parts));
        dispatch(a.in[0].dtype(), [&](auto zero) {
          using T = decltype(zero);
          weight_gradients<<<blocks, threads, 0, stream()>>>(s.g, s.positions, s.column_tiles, pixels<const T>(a.in[0]),
                                                             pixels<const T>(a.in[1]), sums);
        });
        check_launch("conv_backward_weights");
        if (s.parts > 1) add_parts(s.parts, s.weights, sums, ToVector{data<float>(a.out[0])});
        queue_channel_sum(a.in[1], a.workspace + s.part_bytes(), data<float>(a.out[1]));
      },
      s.part_bytes() + channel_sum_bytes(y.rows(), y.c(), 1));
}

Support supports(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.groups != 1) return Support::no("groups 1 only");
  if (s.w.d() * s.w.h() * s.w.w() > 65535) return Support::no("more than 65535 taps");
  if (const Support bias = few_channels_to_sum(p.in[1]); !bias.ok) return bias;
  return even_convolution(p);
}

}  // namespace
}  // namespace conv_tiled_cuda

std::vector<KernelPtr> conv_tiled_cuda_kernels() {
  using namespace conv_tiled_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_tiled", OpKind::conv_backward_weights, supports, prepare));
  return list;
}

}  // namespace convoy
