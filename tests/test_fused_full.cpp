// T2 for fused convolutions at the size of the CosmoFlow network: every kernel against the plain ops that the fused one
// stands for, which test_problem_files "[layers]" checks at full size themselves.
#include "kernels/simd/cpu.h"
#include "core/passes/passes.h"
#include "core/select.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

/// What the plain ops give, each by the first kernel that sums as the definition does.
void execute_definition(const Problem& p, Run& run) {
  Selection plain;
  plain.excluded = {"winograd"};
  walk_definition(
      p, run.in, run.out, [](const TensorDesc& d) { return Tensor::zeros(d); },
      [&](const Problem& q, std::span<const Tensor> in, std::span<const Tensor> out) {
        const Choice choice = choose_kernel(kernel_list(), q, "definition", plain);
        REQUIRE(choice.kernel->name() != reference_name);
        execute_on(*choice.kernel, q, in, out);
      });
}

/// Small integers: all sums are exact but Winograd's, whose error stays below 1e-3 there, below 2e-3 with six outputs a
/// tile; then results that round to other neighbours of a narrow type may differ, and arg-maxes of nearly equal values.
void check_against(const Run& wanted, const Run& run, double bound) {
  for (size_t k = 0; k < wanted.out.size(); ++k) {
    if (bound == 0) {
      CHECK(same_bits(run.out[k], wanted.out[k]));
      continue;
    }
    if (run.out[k].dtype() == DType::u8) continue;
    const std::vector<double> expected = values(wanted.out[k]);
    const double unit = run.out[k].dtype() == DType::f32 ? 0 : 2 * epsilon_of(run.out[k].dtype());
    int64_t wrong = 0;
    for_each_value(run.out[k], [&](size_t i, double found) {
      wrong += !(std::abs(found - expected[i]) <=
                 bound * std::max(1.0, std::abs(expected[i])) + unit * std::abs(expected[i]));
    });
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("fused convolutions at full size give what their plain ops give", "[kernels][full]") {
  if (sanitized || !cpu_features().avx2) {
    WARN("skipped: needs AVX2 and an ordinary build");
    return;
  }
  for (DType type : storage_types)
    for (const auto& [extent, inputs, outputs] : {std::array<int64_t, 3>{128, 4, 32}, {64, 32, 64}}) {
      ConvPoolAttrs a;
      a.conv.pad_low = a.conv.pad_high = {1, 1, 1};
      a.pool.activation.slope = 0.25;
      const int64_t cells = extent / 2;
      const TensorDesc x({1, extent, extent, extent, inputs}, type), w({outputs, 3, 3, 3, inputs}, type),
          bias(Shape::vector(outputs), accumulation_type(type)), y({1, cells, cells, cells, outputs}, type),
          arg(y.shape, DType::u8);
      ConvPoolAttrs to_data = a, to_weights = a;
      to_data.pool.pool.result_size = to_weights.pool.pool.result_size = {extent, extent, extent};
      to_data.conv.result_size = {extent, extent, extent}, to_weights.conv.result_size = {3, 3, 3};
      for (const Problem& p : {problem({OpKind::conv_pool_forward, a}, {x, w, bias}),
                               problem({OpKind::conv_pool_backward_data, to_data}, {y, y, arg, w}),
                               problem({OpKind::conv_pool_backward_weights, to_weights}, {x, y, y, arg})}) {
        if (p.op.kind == OpKind::conv_pool_backward_data && inputs == 4) continue;  // nobody wants the image's gradient
        Inputs drawn;
        Run wanted = drawn.fresh(p, Fill::integers, 1);
        execute_definition(p, wanted);
        int kernels = 0;
        for (const auto& kernel : kernel_list()) {
          if (kernel->name() == reference_name || on_device(*kernel) || !kernel->supports(p).ok) continue;
          INFO(kernel->name() << " " << p.text());
          Run run = drawn.fresh(p, Fill::integers, 1);
          execute(*kernel, p, run);
          const bool exact = !kernel->name().starts_with("winograd") && !sums_in_f16(*kernel);
          check_against(wanted, run, exact ? 0 : kernel->name().starts_with("winograd6") ? 2e-3 : 1e-3);
          ++kernels;
        }
        CHECK(kernels > 0);
      }
    }
}
