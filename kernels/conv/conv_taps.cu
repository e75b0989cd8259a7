// Weight gradients of images on Hopper, with a stride of at most 2 across: how the work of conv_wgmma_taps.cu is cut.
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/conv/hopper_images.h"
#include "kernels/conv/shares.h"
#include "kernels/conv/taps.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_taps {
namespace {

using namespace cuda;

/// Clocks of a unit's sixteen positions: of the tensor cores, or of shared memory.
double unit_clocks(const TapsKind& kind) {
  return std::max(kind.wide / 2.0, 16 + kind.wide / 4.0);
}
/// Positions of a stage.
constexpr int chunks[] = {96, 80, 64, 48};

/// 2 where taps of a block's row read even and odd columns.
int lattices(const ConvGeometry& g, const TapsCut& cut) {
  return g.stride[2] == 2 && cut.kw > 1 && g.dilation[2] % 2 == 1 ? 2 : 1;
}

/// The fewest blocks whose units are enough for all taps and channels; of several, those that copy least.
TapsCut best_cut(const ConvGeometry& g, int units) {
  const int c64 = pieces(g.c, 64);
  std::optional<TapsCut> best;
  const auto copies = [&](const TapsCut& c) { return c.blocks() * c.kh * c.c64 * lattices(g, c); };
  for (int kw = std::min(units, g.kernel[2]); kw > 0; --kw)
    for (int kh = std::min(units / kw, g.kernel[1]); kh > 0; --kh)
      for (int c = std::min(units / (kw * kh), c64); c > 0; --c) {
        const TapsCut cut{kh, kw, c, pieces(g.kernel[1], kh), pieces(g.kernel[2], kw), pieces(c64, c)};
        if (!best || cut.blocks() < best->blocks() || (cut.blocks() == best->blocks() && copies(cut) < copies(*best)))
          best = cut;
      }
  return *best;
}

/// A kernel, what it is told, and shares of the positions.
struct Plan {
  TapsKind kind;
  Taps taps;
  Shares shares;

  int tiles() const { return pieces(taps.g.k, kind.wide) * taps.cut.blocks(); }
  /// Weights and biases.
  int64_t numbers() const { return int64_t(taps.columns) * taps.g.k + taps.g.k; }
  /// The share of what is multiplied that is asked for.
  double filled() const {
    const double asked = double(taps.columns) * taps.g.k * double(taps.g.n) * taps.g.y[1] * taps.g.y[2];
    return asked / (double(tiles()) * 2 * kind.each * 64 * kind.wide * double(taps.chunks) * taps.chunk);
  }
};

/// The fastest one; none where all would fill less than a third of their products, or shared memory does not hold three
/// stages.
Plan best_plan(const Problem& p) {
  Plan best;
  ConvGeometry g = conv_geometry(p);
  if (g.kernel[1] == 1 && g.kernel[2] == 1 && g.pad[1] == 0 && g.pad[2] == 0 && g.stride[1] == 1 && g.stride[2] == 1 &&
      p.in[0].shape.rows() == p.in[1].shape.rows()) {
    // No neighbours, no padding: all positions are one row.
    g.y[2] = int(p.in[1].shape.rows()), g.y[1] = 1, g.n = 1;
    for (int i = 1; i < 3; ++i) g.x[i] = g.y[i];
  }
  for (const TapsKind& kind : taps_kinds)
    for (int chunk : chunks) {
      Plan plan{kind, {}};
      Taps& t = plan.taps;
      t.g = g, t.cut = best_cut(g, 2 * kind.each), t.columns = g.kernel[1] * g.kernel[2] * g.c;
      t.chunk = chunk, t.across = pieces(g.y[2], chunk), t.chunks = int(g.n * g.y[1] * t.across);
      t.lattices = lattices(g, t.cut);
      const int64_t halo = ceil_div(int64_t(t.cut.kw - 1) * g.dilation[2], g.stride[2]);
      if (chunk + halo > 256 || t.cut.blocks() > 65535) continue;
      t.halo = int(halo);
      t.x_bytes = int(round_up((chunk + t.halo) * taps_row_bytes, taps_turn_bytes));
      t.bytes = t.cut.kh * t.cut.c64 * t.lattices * t.x_bytes + (kind.wide + 63) / 64 * chunk * taps_row_bytes;
      t.stages = std::min(most_taps_stages, taps_shared_bytes / t.bytes);
      if (t.stages < 3 || plan.filled() < 0.3) continue;
      // A stage costs its barriers besides.
      const double products = t.chunk / 16 * 2 * kind.each * unit_clocks(kind) + 100;
      plan.shares = best_shares(plan.tiles(), {t.chunks, products, double(t.bytes)}, 4 * plan.numbers(),
                                std::min(t.chunks / 4, 132));
      if (plan.shares.seconds < best.shares.seconds) best = plan;
    }
  return best;
}

class WeightsOfTaps final : public Prepared {
 public:
  explicit WeightsOfTaps(const Problem& p) : plan_(best_plan(p)) {}
  std::string detail() const override {
    const TapsCut& c = plan_.taps.cut;
    return std::to_string(c.kh) + "x" + std::to_string(c.kw) + " taps of " + std::to_string(64 * c.c64) + "x" +
           std::to_string(plan_.kind.wide) + ", " + std::to_string(plan_.shares.count) + " shares";
  }
  int64_t workspace_bytes() const override {
    return plan_.shares.count > 1 ? 4 * plan_.shares.count * plan_.numbers() : 0;
  }

  void run(const KernelArgs& a) const override {
    float *weights = data<float>(a.out[0]), *bias = data<float>(a.out[1]);
    const int64_t numbers = plan_.numbers(), of_weights = numbers - plan_.taps.g.k;
    auto* parts = reinterpret_cast<float*>(a.workspace);
    const GradientParts out =
        plan_.shares.count == 1 ? GradientParts{weights, bias, 0} : GradientParts{parts, parts + of_weights, numbers};
    const Taps& t = plan_.taps;
    const int step = t.g.stride[2];
    const auto columns = [&](int first) {
      return image_map("cuda_taps", a.in[0], t.g.x, t.g.n, {t.chunk + t.halo, 1, true, first, step});
    };
    const CUtensorMap x[] = {columns(0), columns(step - 1)},
                      dy = image_map("cuda_taps", a.in[1], t.g.y, t.g.n, {t.chunk});
    queue_wgmma_taps(a.in[0].dtype(), plan_.kind, t, plan_.shares.count, x, dy, out);
    if (plan_.shares.count > 1) add_parts(plan_.shares.count, numbers, parts, ToTwoVectors{weights, bias, of_weights});
  }

 private:
  Plan plan_;
};

Support supports(const Problem& p) {
  if (const Support images = ungrouped_images(p); !images.ok) return images;
  if (const Support in = copied({&p.in[0], &p.in[1]}); !in.ok) return in;
  const ConvShapes s = *conv_shapes(p);
  if (s.attrs.stride[2] > 2) return Support::no("a stride of at most 2 across");
  if (s.attrs.stride[2] > s.x.w()) return Support::no("stride 2: two columns of inputs at least");
  if (std::isinf(best_plan(p).shares.seconds))
    return Support::no("would fill less than a third of its products, or dilation beyond its shared memory");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<WeightsOfTaps>(p);
}

}  // namespace
}  // namespace conv_taps

std::vector<KernelPtr> conv_taps_kernels() {
  using namespace conv_taps;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_taps", OpKind::conv_backward_weights, supports, prepare));
  return list;
}

}  // namespace convoy
