// Weight gradients of images with stride 1 on Hopper: how the work of conv_wgmma_taps.cu is cut.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/hopper_images.h"
#include "kernels/conv/taps.h"
#include "kernels/device/sums.h"

namespace convoy {
namespace {

using namespace cuda;

/// Clocks of a unit's sixteen positions: of the tensor cores, or of shared memory.
double unit_clocks(const TapsKind& kind) {
  return std::max(kind.wide / 2.0, 16 + kind.wide / 4.0);
}
/// Positions of a stage.
constexpr int chunks[] = {96, 80, 64, 48};

/// The fewest blocks whose units are enough for all taps and channels; of several, those that copy least.
TapsCut best_cut(const ConvGeometry& g, int units) {
  const int c64 = pieces(g.c, 64);
  std::optional<TapsCut> best;
  const auto copies = [](const TapsCut& c) { return c.blocks() * c.kh * c.c64; };
  for (int kw = std::min(units, g.kernel[2]); kw > 0; --kw)
    for (int kh = std::min(units / kw, g.kernel[1]); kh > 0; --kh)
      for (int c = std::min(units / (kw * kh), c64); c > 0; --c) {
        const TapsCut cut{kh, kw, c, pieces(g.kernel[1], kh), pieces(g.kernel[2], kw), pieces(c64, c)};
        if (!best || cut.blocks() < best->blocks() || (cut.blocks() == best->blocks() && copies(cut) < copies(*best)))
          best = cut;
      }
  return *best;
}

/// A kernel, what it is told, shares of the positions, and how long that takes.
struct Plan {
  TapsKind kind;
  Taps taps;
  int splits = 1;
  double seconds = std::numeric_limits<double>::infinity();

  int tiles() const { return pieces(taps.g.k, kind.wide) * taps.cut.blocks(); }
  /// Weights and biases.
  int64_t numbers() const { return int64_t(taps.columns) * taps.g.k + taps.g.k; }
  /// The share of what is multiplied that is asked for.
  double filled() const {
    const double asked = double(taps.columns) * taps.g.k * double(taps.g.n) * taps.g.y[1] * taps.g.y[2];
    return asked / (double(tiles()) * 2 * kind.each * 64 * kind.wide * double(taps.chunks) * taps.chunk);
  }
};

/// The shares that take least time: rounds of as many blocks as run at once, their beginning and end, and the parts
/// that are written and read again.
void choose_splits(Plan& p) {
  constexpr double clock = 1.4e9 /* as far as products keep up */, copies = 32 /* bytes a clock and block */,
                   begin_and_end = 3e-6, parts = 3e12 /* bytes a second */, another_launch = 3e-6;
  constexpr int64_t most_part_bytes = int64_t{256} << 20;
  const Taps& t = p.taps;
  // A stage costs its barriers besides.
  const double of_chunk =
      std::max(t.chunk / 16 * 2 * p.kind.each * unit_clocks(p.kind) + 100, t.bytes / copies) / clock;
  const int64_t most = std::min<int64_t>({t.chunks / 4, most_part_bytes / (4 * p.numbers()), 132});
  for (int splits = 1; splits <= std::max<int64_t>(1, most); ++splits) {
    const double seconds =
        pieces(int64_t(p.tiles()) * splits, multiprocessors()) * (pieces(t.chunks, splits) * of_chunk + begin_and_end) +
        (splits > 1 ? 8 * double(splits * p.numbers()) / parts + another_launch : 0);
    if (seconds < p.seconds) p.seconds = seconds, p.splits = splits;
  }
}

/// The fastest one; none where all would fill less than a third of their products, or shared memory does not hold three
/// stages.
Plan best_plan(const Problem& p) {
  Plan best;
  ConvGeometry g = conv_geometry(p);
  if (g.kernel[1] == 1 && g.kernel[2] == 1 && g.pad[1] == 0 && g.pad[2] == 0 &&
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
      const int64_t halo = int64_t(t.cut.kw - 1) * g.dilation[2];
      if (chunk + halo > 256) continue;
      t.halo = int(halo);
      t.x_bytes = int(round_up((chunk + t.halo) * taps_row_bytes, taps_turn_bytes));
      t.bytes = t.cut.kh * t.cut.c64 * t.x_bytes + (kind.wide + 63) / 64 * chunk * taps_row_bytes;
      t.stages = std::min(most_taps_stages, taps_shared_bytes / t.bytes);
      if (t.stages < 3 || plan.filled() < 0.3) continue;
      choose_splits(plan);
      if (plan.seconds < best.seconds) best = plan;
    }
  return best;
}

class WeightsOfTaps final : public Prepared {
 public:
  explicit WeightsOfTaps(const Problem& p) : plan_(best_plan(p)) {}
  std::string detail() const override {
    const TapsCut& c = plan_.taps.cut;
    return std::to_string(c.kh) + "x" + std::to_string(c.kw) + " taps of " + std::to_string(64 * c.c64) + "x" +
           std::to_string(plan_.kind.wide) + ", " + std::to_string(plan_.splits) + " shares";
  }
  int64_t workspace_bytes() const override { return plan_.splits > 1 ? 4 * plan_.splits * plan_.numbers() : 0; }

  void run(const KernelArgs& a) const override {
    float *weights = data<float>(a.out[0]), *bias = data<float>(a.out[1]);
    const int64_t numbers = plan_.numbers(), of_weights = numbers - plan_.taps.g.k;
    auto* parts = reinterpret_cast<float*>(a.workspace);
    const GradientParts out =
        plan_.splits == 1 ? GradientParts{weights, bias, 0} : GradientParts{parts, parts + of_weights, numbers};
    const Taps& t = plan_.taps;
    const auto map = [&](const Tensor& tensor, const int(&extent)[3], int positions) {
      if (reinterpret_cast<uintptr_t>(tensor.bytes()) % 16 != 0)
        fail_runtime(
            "cuda_taps: a slice does not begin at a multiple of 16 bytes; choose another kernel for this layer");
      return tensor_map({tensor.dtype(), tensor.bytes(), tensor.shape().c(), extent[2], extent[1], t.g.n,
                         tensor.desc().pixel_pitch(), positions});
    };
    const CUtensorMap x = map(a.in[0], t.g.x, t.chunk + t.halo), dy = map(a.in[1], t.g.y, t.chunk);
    queue_wgmma_taps(a.in[0].dtype(), plan_.kind, t, plan_.splits, x, dy, out);
    if (plan_.splits > 1) add_parts(plan_.splits, numbers, parts, ToTwoVectors{weights, bias, of_weights});
  }

 private:
  Plan plan_;
};

Support supports(const Problem& p) {
  if (const Support images = hopper_images(p); !images.ok) return images;
  if (p.in[1].shape.c() % 8 != 0 || p.in[1].pixel_pitch() % 8 != 0) return Support::no("multiples of eight channels");
  if (std::isinf(best_plan(p).seconds))
    return Support::no("would fill less than a third of its products, or dilation beyond its shared memory");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<WeightsOfTaps>(p);
}

}  // namespace

std::vector<KernelPtr> conv_taps_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_taps", OpKind::conv_backward_weights, supports, prepare));
  return list;
}

}  // namespace convoy
