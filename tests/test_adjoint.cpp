// T2 for convolutions of the kinds and sizes that the models have; of every layer of theirs: test_problem_files
// "[layers]".
#include "tests/adjoint.h"

using namespace convoy;
using namespace convoy::testing;

TEST_CASE("adjoint identity of layers as large as the models have them", "[kernels][full]") {
  struct Layer {
    Shape x;
    int64_t k;
    Int3 kernel;
    ConvAttrs a;
  };
  const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}, flat{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}};
  const Layer layers[] = {
      {{1, 64, 64, 64, 32}, 64, {3, 3, 3}, same},
      {{1, 16, 16, 16, 128}, 256, {3, 3, 3}, same},
      {{1, 1, 48, 72, 512}, 256, {1, 3, 3}, {.dilation = {1, 12, 12}, .pad_low = {0, 12, 12}, .pad_high = {0, 12, 12}}},
      {{1, 1, 96, 144, 16}, 64, {1, 7, 7}, {.stride = {1, 2, 2}, .pad_low = {0, 3, 3}, .pad_high = {0, 2, 2}}},
      {{1, 1, 96, 144, 304}, 256, {1, 3, 3}, flat},
      {{1, 1, 96, 144, 256}, 32, {1, 5, 5}, {.pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
      {{1, 1, 96, 144, 128}, 128, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_high = {0, 1, 1}}},
      {{1, 1, 48, 72, 728}, 728, {1, 1, 1}, {}},
      {{1, 1, 48, 72, 728}, 728, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 728}}};
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Layer& layer : layers) {
      if (type != DType::f32 && layer.x.d() == 64) continue;
      Adjoint adjoint(layer.x, layer.k, layer.kernel, layer.a, type);
      const auto names = adjoint.names();
      if (!only_some_kernels()) CHECK(!names.empty());
      for (const std::string& name : names)
        if (name != "widened") adjoint.check(name);
    }
}
