// Winograd convolutions whose tiles all threads take together, one phase after the other: the bits of blocks.
#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

constexpr int many = 64;  // threads

/// Few tiles of many channels, as in CosmoFlow's last layers; columns of outputs that are not whole; several samples.
std::vector<Problem> few_tiles(DType type) {
  constexpr Int3 ones{1, 1, 1}, pairs{2, 2, 2}, flat{0, 1, 1};
  struct Layer {
    Shape x;
    int64_t outputs;
  };
  const auto desc = [type](const Shape& shape) { return TensorDesc(shape, type); };
  std::vector<Problem> list;
  const std::vector<Layer> layers{{{1, 8, 8, 8, 272}, 240}, {{2, 8, 8, 8, 144}, 144}, {{1, 16, 16, 16, 128}, 208}};
  for (const Layer& layer : layers) {
    if (type != DType::f32 && &layer != &layers[0]) break;  // the same loops
    const Shape &x = layer.x, w{layer.outputs, 3, 3, 3, x.c()}, y{x.n(), x.d(), x.h(), x.w(), layer.outputs},
                cells{x.n(), x.d() / 2, x.h() / 2, x.w() / 2, layer.outputs};
    const TensorDesc bias(Shape::vector(layer.outputs), DType::f32), arg(cells, DType::u8);
    const ConvAttrs conv{.pad_low = ones, .pad_high = ones},
        back{.pad_low = ones, .pad_high = ones, .result_size = spatial(x)};
    ConvAttrs leaky = conv;
    leaky.slope = 0.25;
    const PoolAttrs halves{.kernel = pairs, .stride = pairs, .result_size = spatial(x)};
    const ActivationPoolAttrs pool{{.slope = 0.01}, halves};
    list.push_back(problem({OpKind::conv_forward, conv}, {strided(desc(x), x.c() + 32), desc(w), bias}));
    list.push_back(problem({OpKind::conv_activation_forward, leaky}, {desc(x), desc(w), bias}));
    list.push_back(problem({OpKind::conv_pool_forward, ConvPoolAttrs{conv, pool}}, {desc(x), desc(w), bias}));
    list.push_back(problem({OpKind::conv_backward_data, back}, {desc(y), desc(w)}));
    list.push_back(problem({OpKind::conv_backward_data_add, back}, {desc(y), desc(w), strided(desc(x), x.c() + 16)}));
    list.push_back(problem({OpKind::conv_pool_backward_data, ConvPoolAttrs{back, pool}},
                           {desc(cells), desc(cells), arg, desc(w)}));
  }
  if (type != DType::f32) return list;
  for (const int64_t dilation : {1, 2}) {
    const Int3 pad{0, dilation, dilation};
    const ConvAttrs image{.dilation = {1, dilation, dilation}, .pad_low = pad, .pad_high = pad};
    list.push_back(problem({OpKind::conv_forward, image}, {desc({1, 1, 36, 60, 272}), desc({272, 1, 3, 3, 272})}));
  }
  const ConvAttrs down{.stride = {1, 2, 2}, .pad_low = flat, .pad_high = flat};
  ConvAttrs up = down;
  up.result_size = {1, 48, 48};
  list.push_back(problem({OpKind::conv_forward, down}, {desc({1, 1, 48, 48, 272}), desc({272, 1, 3, 3, 272})}));
  list.push_back(problem({OpKind::conv_backward_data, up}, {desc({1, 1, 24, 24, 272}), desc({272, 1, 3, 3, 272})}));
  return list;
}

}  // namespace

TEST_CASE("Winograd tiles in phases give the bits of blocks", "[kernels]") {
  for (DType type : {DType::f32, DType::bf16})
    for (const Problem& p : few_tiles(type)) {
      INFO(p.text());
      Problem alone = p, together = p;
      alone.threads = 1, together.threads = many;
      bool any = false;
      for (const Kernel* kernel : kernels_under_test()) {
        if (!kernel->name().starts_with("winograd") || !kernel->supports(p).ok) continue;
        INFO(kernel->name());
        CHECK_THAT(kernel->prepare(alone)->detail(), Catch::Contains("tiles a block"));
        if (kernel->prepare(together)->detail().find("tiles in phases") == std::string::npos) continue;
        any = true;
        Run first = make_run(p, Fill::normal, 7), second = make_run(p, Fill::normal, 7);
        execute(*kernel, alone, first), execute(*kernel, together, second);
        for (size_t i = 0; i < first.out.size(); ++i) CHECK(same_bits(first.out[i], second.out[i]));
      }
      if (cpu_features().avx2 && !only_some_kernels()) CHECK(any);
    }
}
