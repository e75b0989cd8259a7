// Weight gradients of any geometry without groups on tensor cores: dw[k][tap][c] sums dy[position][k] * x[position at
// tap][c] over all positions, one product of matrices whose inner dimension is the positions and whose columns are taps
// and input channels together, so that few channels fill a tile as well. A block takes 32 positions at a time, several
// such steps under way in shared memory, and transposes both operands on their way into registers (ldmatrix.trans).
// Positions are shared out until the device is full; the parts are added by another kernel, in their order. Blocks of
// the first columns also add up the bias's gradient.
//
// What comes from the second-level cache bounds it: 24 KiB for 2 MFLOP in tiles of 128 x 256, 16 KiB for 1 MFLOP in
// those of 128 x 128.
#include <algorithm>
#include <optional>

#include "core/round_up.h"
#include "kernels/conv/conv_cuda_passes.h"
#include "kernels/conv/positions.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_mma_positions {
namespace {

using namespace cuda;

constexpr int threads = 256, step = 32;
constexpr int64_t most_part_bytes = int64_t{256} << 20;

/// Shared memory: of every stage rows of 128 bytes, 64 channels of a position, `step` rows behind each other
/// (strip_slot).
constexpr int strip_bytes = step * 128;

/// What a block makes: rows (output channels) x columns, by warps of which so many share the rows.
template <int rows, int columns, int warps_across_rows>
struct Tile {
  static constexpr int k = rows, n = columns, warps_k = warps_across_rows, warps_n = threads / 32 / warps_k;
  static constexpr int warp_k = k / warps_k, warp_n = n / warps_n;
  static constexpr int a_bytes = k / 64 * strip_bytes, stage_bytes = a_bytes + n / 64 * strip_bytes;
  static constexpr int blocks_at_once = n > 128 ? 1 : 2, stages = n > 128 ? 6 : 4;
  static constexpr int bytes = stages * stage_bytes;
};
using Wide = Tile<128, 256, 2>;

template <class T, class Tile>
__global__ void __launch_bounds__(threads, Tile::blocks_at_once)
    weight_gradients(const Positions g, const T* __restrict__ x, const T* __restrict__ dy, const GradientParts out) {
#if CONVOY_MMA
  constexpr int stages = Tile::stages;
  extern __shared__ __align__(128) char memory[];
  __shared__ Origin origins[2][step];
  const uint32_t ring = shared_address(memory);
  const int first_k = int(blockIdx.x) * Tile::k, first_n = int(blockIdx.y) * Tile::n;
  const int begin = int(int64_t(g.positions) * blockIdx.z / gridDim.z),
            end = int(int64_t(g.positions) * (blockIdx.z + 1) / gridDim.z);
  const int steps = (end - begin + step - 1) / step;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;

  Walk<step> walk(g, begin + thread % step);
  const auto find_origins = [&](int s) {
    if (thread >= step) return;
    origins[s & 1][thread] = walk.origin(g, begin + s * step + thread < end);
    walk.advance(g);
  };
  // A thread copies the same eight channels of every step, of rows that are multiples of eight apart.
  constexpr int slots_a = Tile::k / 8, rows_a = threads / slots_a, slots_b = Tile::n / 8, rows_b = threads / slots_b;
  const int row_a = thread / slots_a, row_b = thread / slots_b;
  const bool row_exists = first_k + 8 * (thread % slots_a) < g.k;
  const T* from_a = dy + int64_t(begin + row_a) * g.k + first_k + 8 * (thread % slots_a);
  const Column column(g, first_n + 8 * (thread % slots_b));
  const T* from_b = x + column.offset;
  const uint32_t to_a = ring + strip_slot<step>(row_a, thread % slots_a),
                 to_b = ring + Tile::a_bytes + strip_slot<step>(row_b, thread % slots_b);
  int left = row_exists ? end - begin - row_a : 0;  // positions that this thread still has gradients of
  uint32_t next_stage = 0;
  const auto fetch = [&](int s) {
    if (s < steps) {
#pragma unroll
      for (int i = 0; i < step / rows_a; ++i)
        copy_16(to_a + next_stage + i * rows_a * 128, from_a + int64_t(i * rows_a) * g.k, i * rows_a < left);
      from_a += int64_t(step) * g.k, left -= step;
#pragma unroll
      for (int i = 0; i < step / rows_b; ++i) {
        const Origin o = origins[s & 1][row_b + i * rows_b];
        copy_16(to_b + next_stage + i * rows_b * 128, from_b + int64_t(o.pixel) * g.c, column.meets(g, o));
      }
      next_stage = next_stage + Tile::stage_bytes == Tile::bytes ? 0 : next_stage + Tile::stage_bytes;
    }
    commit_copies();
  };

  const int own_k = warp % Tile::warps_k * Tile::warp_k, own_n = warp / Tile::warps_k * Tile::warp_n;
  uint32_t of_a[Tile::warp_k / 16], of_b[Tile::warp_n / 16];
#pragma unroll
  for (int i = 0; i < Tile::warp_k / 16; ++i)
    of_a[i] = ring + strip_slot<step>((lane & 7) + 8 * (lane >> 4), (own_k + 16 * i) / 8 + (lane >> 3 & 1));
#pragma unroll
  for (int j = 0; j < Tile::warp_n / 16; ++j)
    of_b[j] =
        ring + Tile::a_bytes + strip_slot<step>((lane & 7) + 8 * (lane >> 3 & 1), (own_n + 16 * j) / 8 + (lane >> 4));
  constexpr int pairs = Tile::k / 2, bias_rows = threads / pairs;
  const bool adds_bias = blockIdx.y == 0;

  float acc[Tile::warp_k / 16][Tile::warp_n / 8][4] = {};
  float bias[2] = {};
  for (int s = 0; s < stages - 1; ++s) {
    find_origins(s);
    __syncthreads();
    fetch(s);
  }
  find_origins(stages - 1);
  uint32_t stage = 0;
  for (int s = 0; s < steps; ++s) {
    wait_copies<stages - 2>();
    __syncthreads();  // this step is there, and nobody reads the one whose place the next copies take
    fetch(s + stages - 1);
    find_origins(s + stages);
#pragma unroll
    for (int half = 0; half < step / 16; ++half) {
      uint32_t a[Tile::warp_k / 16][4];
#pragma unroll
      for (int i = 0; i < Tile::warp_k / 16; ++i) load_transposed(a[i], of_a[i] + stage + half * 16 * 128);
#pragma unroll
      for (int j = 0; j < Tile::warp_n / 16; ++j) {
        uint32_t b[4];
        load_transposed(b, of_b[j] + stage + half * 16 * 128);
#pragma unroll
        for (int i = 0; i < Tile::warp_k / 16; ++i) {
          multiply_add<T>(acc[i][2 * j], a[i], b[0], b[1]);
          multiply_add<T>(acc[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
    if (adds_bias)
#pragma unroll
      for (int i = 0; i < step / bias_rows; ++i) {
        const uint32_t two =
            load_4(ring + stage + strip_slot<step>(thread / pairs + i * bias_rows, thread % pairs / 4) +
                   uint32_t(thread % 4 * 4));
        const float2 v = widened(*reinterpret_cast<const Two<T>*>(&two));
        bias[0] += v.x, bias[1] += v.y;
      }
    stage = stage + Tile::stage_bytes == Tile::bytes ? 0 : stage + Tile::stage_bytes;
  }

  wait_copies<0>();
  __syncthreads();
  float* to = out.weights + int64_t(blockIdx.z) * out.stride;
#pragma unroll
  for (int i = 0; i < Tile::warp_k / 16; ++i)
#pragma unroll
    for (int j = 0; j < Tile::warp_n / 8; ++j)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int k = first_k + own_k + 16 * i + lane / 4 + 8 * low, n = first_n + own_n + 8 * j + 2 * (lane % 4);
        if (k < g.k && n < g.columns)
          *reinterpret_cast<float2*>(to + int64_t(k) * g.columns + n) =
              make_float2(acc[i][j][2 * low], acc[i][j][2 * low + 1]);
      }
  if (!adds_bias) return;
  auto* rest = reinterpret_cast<float2*>(memory);
  rest[thread] = make_float2(bias[0], bias[1]);
  __syncthreads();
  if (thread >= pairs || first_k + 2 * thread >= g.k) return;
  for (int other = thread + pairs; other < threads; other += pairs) bias[0] += rest[other].x, bias[1] += rest[other].y;
  float* sums = out.bias + int64_t(blockIdx.z) * out.stride + first_k + 2 * thread;
  sums[0] = bias[0], sums[1] = bias[1];
#endif
}

template <class T, class Tile>
void launch(const Positions& g, int splits, const Tensor& x, const Tensor& dy, const GradientParts& out) {
  const auto kernel = weight_gradients<T, Tile>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), Tile::bytes);
  const dim3 blocks(static_cast<unsigned>((g.k + Tile::k - 1) / Tile::k),
                    static_cast<unsigned>((g.columns + Tile::n - 1) / Tile::n), static_cast<unsigned>(splits));
  kernel<<<blocks, threads, Tile::bytes, stream()>>>(g, data<const T>(x), data<const T>(dy), out);
  check_launch("conv_mma_positions");
}

class WeightsOfPositions final : public Prepared {
 public:
  WeightsOfPositions(const Problem& p, bool hopper) : hopper_(hopper) {
    static_cast<ConvGeometry&>(g_) = conv_geometry(p);
    g_.positions = int(p.in[1].shape.rows());
    g_.columns = g_.kernel[0] * g_.kernel[1] * g_.kernel[2] * g_.c;
    tile_k_ = g_.k > 64 || hopper ? 128 : 64;
    const auto tiles = [&](int n) { return (g_.columns + n - 1) / n; };
    // Wide tiles where they cover what there is as closely as others do.
    const bool wide = tile_k_ == 128 && 2 * tiles(256) <= tiles(128) && shared_memory() >= int(Wide::bytes);
    tile_n_ = wide || hopper ? 256 : g_.columns > 64 ? 128 : 64;
    const int64_t blocks = int64_t((g_.k + tile_k_ - 1) / tile_k_) * tiles(tile_n_), room = tile_n_ > 128 ? 1 : 2;
    numbers_ = int64_t(g_.columns) * g_.k + g_.k;
    const int64_t most = std::min<int64_t>({g_.positions / (16 * step), most_part_bytes / (4 * numbers_), 64});
    splits_ = best_splits(blocks, room * multiprocessors(), std::max<int64_t>(1, most));
    if (!p.in[0].dense()) x_ = TensorDesc(p.in[0].shape, p.in[0].dtype);
    if (!p.in[1].dense()) dy_ = TensorDesc(p.in[1].shape, p.in[1].dtype);
  }

  std::string detail() const override {
    return std::to_string(tile_k_) + "x" + std::to_string(tile_n_) + ", " + std::to_string(splits_) + " shares";
  }
  int64_t workspace_bytes() const override {
    return part_bytes() + (x_ ? x_->bytes() : 0) + (dy_ ? round_up(dy_->bytes(), 256) : 0);
  }

  void run(const KernelArgs& a) const override {
    std::byte* room = a.workspace + part_bytes();
    const auto dense = [&](const Tensor& t, const std::optional<TensorDesc>& copy) {
      if (!copy) return t;
      const Tensor to(*copy, room);
      room += round_up(copy->bytes(), 256);
      queue_place(t, to, {});
      return to;
    };
    const Tensor dy = dense(a.in[1], dy_), x = dense(a.in[0], x_);
    float *weights = data<float>(a.out[0]), *bias = data<float>(a.out[1]);
    const int64_t of_weights = int64_t(g_.columns) * g_.k;
    auto* parts = reinterpret_cast<float*>(a.workspace);
    const GradientParts out =
        splits_ == 1 ? GradientParts{weights, bias, 0} : GradientParts{parts, parts + of_weights, numbers_};
    if (hopper_)
      queue_wgmma_positions(x.dtype(), g_, splits_, x.bytes(), dy.bytes(), out);
    else
      queue(x, dy, out);
    if (splits_ > 1) add_parts(splits_, numbers_, parts, ToTwoVectors{weights, bias, of_weights});
  }

 private:
  void queue(const Tensor& x, const Tensor& dy, const GradientParts& out) const {
    dispatch_16(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      if (tile_n_ == 256)
        launch<T, Wide>(g_, splits_, x, dy, out);
      else if (tile_k_ == 128)
        (tile_n_ == 128 ? launch<T, Tile<128, 128, 2>> : launch<T, Tile<128, 64, 4>>)(g_, splits_, x, dy, out);
      else
        (tile_n_ == 128 ? launch<T, Tile<64, 128, 2>> : launch<T, Tile<64, 64, 2>>)(g_, splits_, x, dy, out);
    });
  }
  /// Shares of the positions that take least time: rounds of as many blocks as run at once, and the parts that are
  /// written and read again.
  int best_splits(int64_t blocks, int64_t at_once, int64_t most) const {
    const double block_flops = (hopper_ ? 400e12 : 230e12) / double(at_once),
                 part_bytes = 3e12;  // a second, on an H200
    double least = 0;
    int best = 1;
    for (int64_t splits = 1; splits <= most; ++splits) {
      const double rounds = double((blocks * splits + at_once - 1) / at_once);
      const double seconds = rounds * 2 * tile_k_ * tile_n_ * double(g_.positions) / double(splits) / block_flops +
                             (splits > 1 ? 8 * double(splits * numbers_) / part_bytes : 0);
      if (splits == 1 || seconds < least) least = seconds, best = int(splits);
    }
    return best;
  }
  int64_t part_bytes() const { return splits_ > 1 ? round_up(4 * splits_ * numbers_, 256) : 0; }
  bool hopper_;
  Positions g_;
  int tile_k_, tile_n_, splits_;
  int64_t numbers_;                   ///< weights and biases
  std::optional<TensorDesc> x_, dy_;  ///< dense copies in the workspace
};

Support supports(const Problem& p) {
  if (const Support support = runs_mma(); !support.ok) return support;
  if (const Support even = even_convolution(p); !even.ok) return even;
  if (p.in[0].dtype == DType::f32) return Support::no("bf16 and f16 only");
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.groups != 1) return Support::no("groups 1 only");
  if (s.x.c() % 8 || s.y.c() % 8) return Support::no("multiples of eight channels");
  if (s.x.rows() > 1 << 30 || s.y.rows() > 1 << 30 || s.w.elements() > 1 << 30)
    return Support::no("more than 2^30 positions or weights");
  if (s.w.elements() / s.w.n() > 1 << 22) return Support::no("more than 2^22 taps times channels");
  if (shared_memory() < Tile<128, 128, 2>::bytes) return Support::no("too little shared memory");
  return Support::yes();
}

/// Tiles of 128 x 256 that are filled for the most part.
Support supports_wgmma(const Problem& p) {
  if (const Support support = runs_wgmma(); !support.ok) return support;
  if (const Support support = supports(p); !support.ok) return support;
  const ConvShapes s = *conv_shapes(p);
  const int64_t k = s.y.c(), columns = s.w.elements() / s.w.n(), tiles = (k + 127) / 128 * ((columns + 255) / 256);
  if (3 * tiles * 128 * 256 > 4 * k * columns) return Support::no("fills less than three quarters of its tiles");
  return Support::yes();
}

template <bool hopper>
std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<WeightsOfPositions>(p, hopper);
}

}  // namespace
}  // namespace conv_mma_positions

std::vector<KernelPtr> conv_mma_positions_kernels() {
  using namespace conv_mma_positions;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_wgmma", OpKind::conv_backward_weights, supports_wgmma, prepare<true>));
  list.push_back(kernel("cuda_mma", OpKind::conv_backward_weights, supports, prepare<false>));
  return list;
}

}  // namespace convoy
