// Convolutions of images to at most 32 channels on Hopper: how the work of conv_wgmma_rows.cu is cut.
#include <algorithm>

#include "core/error.h"
#include "kernels/conv/hopper_images.h"
#include "kernels/conv/rows.h"
#include "kernels/conv/shares.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_rows {
namespace {

using namespace cuda;

/// What the kernel is told; no items where shared memory does not hold three stages.
Rows best_rows(const Problem& p) {
  Rows r{};
  r.g = conv_geometry(p);
  const ConvGeometry& g = r.g;
  r.tiles_w = pieces(g.y[2], rows_wide), r.tiles_h = pieces(g.y[1], rows_high);
  r.chunks = pieces(g.c, 64);
  r.slope = float(p.op.as<ConvAttrs>().slope), r.pitch = p.out[0].pixel_pitch();
  const int64_t positions = rows_wide + int64_t(g.kernel[2] - 1) * g.dilation[2];
  if (g.kernel[1] > most_rows_taps || positions > 256 || r.weight_bytes() > rows_shared_bytes) return r;
  r.x_bytes = int(round_up(positions * rows_line_bytes, 1024));
  r.stages = std::min(most_rows_stages, (rows_shared_bytes - r.weight_bytes()) / r.x_bytes);
  if (r.stages < 3) return r;

  const int64_t tiles = g.n * r.tiles_h * r.tiles_w;
  const int units = 2 * (g.kernel[1] + 1) * g.kernel[2];  // of a chunk, for both warpgroups
  const SharedChunks chunks{r.chunks, double(units) * 4 * rows_wide / 2,
                            double(g.kernel[1] + rows_high - 1) * r.x_bytes + r.weight_bytes()};
  r.splits = best_shares(tiles, chunks, r.part_bytes(), r.chunks).count, r.items = tiles * r.splits;
  return r;
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
  explicit ToFewChannels(const Problem& p) : type_(p.in[0].dtype), rows_(best_rows(p)) {}
  std::string detail() const override {
    return std::to_string(rows_high) + "x" + std::to_string(rows_wide) + " positions" +
           (rows_.splits > 1 ? ", " + std::to_string(rows_.splits) + " shares of the input" : "");
  }
  int64_t workspace_bytes() const override { return rows_.splits > 1 ? rows_.part_bytes() * rows_.splits : 0; }
  std::vector<PackRequest> packed_weights() const override {
    const int k = rows_.g.k, taps = taps_of(rows_.g), c = rows_.g.c;
    return {{1, "taps", int64_t(2) * k * taps * c,
             [=](const Tensor& weight, std::byte* packed) { queue_rows_pack(k, taps, c, weight.bytes(), packed); }}};
  }

  void run(const KernelArgs& a) const override {
    const ConvGeometry& g = rows_.g;
    expect_even_place("cuda_rows", a.out[0], "an output", 4);
    const CUtensorMap x_map =
                          image_map("cuda_rows", a.in[0], g.x, g.n, {rows_wide + (g.kernel[2] - 1) * g.dilation[2]}),
                      w_map = tensor_map({type_, a.packed[0], g.c, g.k, taps_of(g), 1, g.c, {rows_channels}});
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
  if (const Support images = ungrouped_images(p); !images.ok) return images;
  if (const Support in = copied({&p.in[0]}); !in.ok) return in;
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.stride[1] != 1 || s.attrs.stride[2] != 1) return Support::no("stride 1 only");
  if (s.attrs.dilation[1] != 1) return Support::no("no dilation in height");
  if (s.y.c() > rows_channels || s.y.c() % 2 != 0 || p.out[0].pixel_pitch() % 2 != 0)
    return Support::no("an even number of at most 32 output channels");
  if (s.w.h() < 3) return Support::no("three rows of taps at least");
  const Rows rows = best_rows(p);
  if (rows.items == 0) return Support::no("more taps, or further apart, than shared memory holds");
  if (filled(rows) < 0.4) return Support::no("would fill less than two fifths of its products");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<ToFewChannels>(p);
}

}  // namespace
}  // namespace conv_rows

std::vector<KernelPtr> conv_rows_kernels() {
  using namespace conv_rows;
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_activation_forward})
    list.push_back(kernel("cuda_rows", kind, supports, prepare));
  return list;
}

}  // namespace convoy
