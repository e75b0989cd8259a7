// Convolutions of images to at most 32 channels on Hopper: how the work of conv_wgmma_rows.cu is cut.
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/hopper_images.h"
#include "kernels/conv/rows.h"

namespace convoy {
namespace {

using namespace cuda;

/// What the kernel is told, and how long it takes by a model.
struct Plan {
  Rows rows{};
  double seconds = std::numeric_limits<double>::infinity();
};

/// The shares that take least time: rounds of as many blocks as run at once, and the parts that are written and read
/// again. No stages where shared memory does not hold three.
Plan best_plan(const Problem& p) {
  constexpr double clock = 1.4e9 /* as far as products keep up */, copies = 32 /* bytes a clock and block */,
                   begin_and_end = 3e-6, parts = 3e12 /* bytes a second */, another_launch = 3e-6;
  constexpr int64_t most_part_bytes = int64_t{256} << 20;
  Plan plan;
  Rows& r = plan.rows;
  r.g = conv_geometry(p);
  const ConvGeometry& g = r.g;
  r.tiles_w = pieces(g.y[2], rows_wide), r.tiles_h = pieces(g.y[1], rows_high);
  r.chunks = pieces(g.c, 64);
  r.slope = float(p.op.as<ConvAttrs>().slope), r.pitch = p.out[0].pixel_pitch();
  const int64_t positions = rows_wide + int64_t(g.kernel[2] - 1) * g.dilation[2];
  if (g.kernel[1] > most_rows_taps || positions > 256 || r.weight_bytes() > rows_shared_bytes) return plan;
  r.x_bytes = int(round_up(positions * rows_line_bytes, 1024));
  r.stages = std::min(most_rows_stages, (rows_shared_bytes - r.weight_bytes()) / r.x_bytes);
  if (r.stages < 3) return plan;

  const int64_t tiles = g.n * r.tiles_h * r.tiles_w;
  const int units = 2 * (g.kernel[1] + 1) * g.kernel[2];  // of a chunk, for both warpgroups
  const double products = double(units) * 4 * rows_wide / 2,
               bytes = double(g.kernel[1] + rows_high - 1) * r.x_bytes + r.weight_bytes();
  const double of_chunk = std::max(products, bytes / copies) / clock;
  for (int splits = 1; splits <= r.chunks; ++splits) {
    const int64_t of_parts = 4 * rows_channels * r.positions() * splits;
    if (splits > 1 && of_parts > most_part_bytes) break;
    const double seconds =
        pieces(tiles * splits, multiprocessors()) * (pieces(r.chunks, splits) * of_chunk + begin_and_end) +
        (splits > 1 ? 2 * double(of_parts) / parts + another_launch : 0);
    if (seconds < plan.seconds) plan.seconds = seconds, r.splits = splits, r.items = tiles * splits;
  }
  return plan;
}

/// The share of what is multiplied that is asked for.
double filled(const Rows& r) {
  const ConvGeometry& g = r.g;
  const double asked = double(r.positions()) * g.kernel[1] * g.c * g.k,
               done = double(g.n) * r.tiles_h * rows_high * r.tiles_w * rows_wide * (g.kernel[1] + 1) *
                      double(round_up(g.c, 16)) * rows_channels;
  return asked / done;
}

class ToFewChannels final : public Prepared {
 public:
  explicit ToFewChannels(const Problem& p) : type_(p.in[0].dtype), rows_(best_plan(p).rows) {}
  std::string detail() const override {
    return std::to_string(rows_high) + "x" + std::to_string(rows_wide) + " positions" +
           (rows_.splits > 1 ? ", " + std::to_string(rows_.splits) + " shares of the input" : "");
  }
  int64_t workspace_bytes() const override {
    return rows_.splits > 1 ? 4 * rows_channels * rows_.positions() * rows_.splits : 0;
  }
  std::vector<PackRequest> packed_weights() const override {
    const int k = rows_.g.k, taps = taps_of(rows_.g), c = rows_.g.c;
    return {{1, "taps", int64_t(2) * k * taps * c,
             [=](const Tensor& weight, std::byte* packed) { queue_rows_pack(k, taps, c, weight.bytes(), packed); }}};
  }

  void run(const KernelArgs& a) const override {
    const ConvGeometry& g = rows_.g;
    const Tensor& x = a.in[0];
    if (reinterpret_cast<uintptr_t>(x.bytes()) % 16 != 0 || reinterpret_cast<uintptr_t>(a.out[0].bytes()) % 4 != 0)
      fail_runtime(
          "cuda_rows: a slice does not begin at a multiple of 16 bytes, or an output's of 4; choose another kernel for "
          "this layer");
    const CUtensorMap x_map = tensor_map({type_, x.bytes(), g.c, g.x[2], g.x[1], g.n, x.desc().pixel_pitch(),
                                          rows_wide + (g.kernel[2] - 1) * g.dilation[2]}),
                      w_map = tensor_map({type_, a.packed[0], g.c, g.k, taps_of(g), 1, g.c, rows_channels});
    queue_wgmma_rows(type_, rows_, x_map, w_map,
                     {a.out[0].bytes(), a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr,
                      rows_.splits > 1 ? reinterpret_cast<float*>(a.workspace) : nullptr});
  }

 private:
  static int taps_of(const ConvGeometry& g) { return g.kernel[1] * g.kernel[2]; }
  DType type_;
  Rows rows_;
};

Support supports(const Problem& p) {
  if (const Support images = hopper_images(p); !images.ok) return images;
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.dilation[1] != 1) return Support::no("no dilation in height");
  if (s.y.c() > rows_channels || s.y.c() % 2 != 0 || p.out[0].pixel_pitch() % 2 != 0)
    return Support::no("an even number of at most 32 output channels");
  if (s.w.h() < 3) return Support::no("three rows of taps at least");
  const Plan plan = best_plan(p);
  if (plan.rows.items == 0) return Support::no("more taps, or further apart, than shared memory holds");
  if (filled(plan.rows) < 0.4) return Support::no("would fill less than two fifths of its products");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<ToFewChannels>(p);
}

}  // namespace

std::vector<KernelPtr> conv_rows_cuda_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_activation_forward})
    list.push_back(kernel("cuda_rows", kind, supports, prepare));
  return list;
}

}  // namespace convoy
