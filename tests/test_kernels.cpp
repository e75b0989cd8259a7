// Every kernel of the list over the models' problems and nasty shapes, and what the tiers do not ask.
#include <cstdlib>
#include <map>

#include "core/conv_shapes.h"
#include "core/select.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/amx.h"
#include "kernels/simd/cpu.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"
#include "tests/random_problems.h"

using namespace convoy;
using namespace convoy::testing;

TEST_CASE("every kernel on the problems of a small CosmoFlow step", "[kernels][model]") {
  CosmoflowConfig model;
  model.size = 16;
  for (DType type : {DType::f32, DType::bf16, DType::f16}) check_all(model_problems(type, model, 2));
}

TEST_CASE("every kernel on nasty convolutions", "[kernels]") {
  const auto runs = [](std::string_view name) {
    const std::vector<const Kernel*>& all = kernels_under_test();
    return std::any_of(all.begin(), all.end(), [&](const Kernel* kernel) { return kernel->name() == name; });
  };
  if (!amx_granted() && !only_some_kernels())
    WARN("AMX is not granted here: direct_amx is "
         << (runs("emulated_amx") ? "checked on emulated tiles only"
                                  : "checked in portable code only: the rest wants AVX-512 with BW, VL and BF16"));
  if (!cpu_features().fast_bf16_dot && !only_some_kernels())
    WARN("no full-rate VDPBF16PS here: direct_bf16 and pointwise_bf16 are not checked");
  if (!cpu_features().avx512_fp16 && !only_some_kernels())
    WARN("no AVX512-FP16 here: direct_fp16 is "
         << (runs("emulated_fp16") && cpu_features().avx512 ? "checked on an emulated unit only"
                                                            : "not checked: its emulation wants AVX-512"));
  for (DType type : storage_types) check_all(conv_problems(type));
}

TEST_CASE("own kernels on random problems", "[kernels][random]") {
  // Others, and more of them: CONVOY_RANDOM_SEED=7 CONVOY_RANDOM_PROBLEMS=20000 test_kernels "[random]"
  const char *seed = std::getenv("CONVOY_RANDOM_SEED"), *count = std::getenv("CONVOY_RANDOM_PROBLEMS");
  check_all(random_problems(seed ? std::stoull(seed) : 1, count ? std::stoll(count) : 200), Checked::own);
}

TEST_CASE("every kernel takes a problem of these tests", "[kernels]") {
  std::vector<Problem> problems;
  CosmoflowConfig model;
  model.size = 16;
  for (DType type : storage_types)
    for (const auto& list : {model_problems(type, model, 2), conv_problems(type), other_problems(type)})
      problems.insert(problems.end(), list.begin(), list.end());
  const CpuFeatures& cpu = cpu_features();
  std::map<std::string, int> skipped;  // kernels, by what they want
  for (const Kernel* kernel : kernels_under_test()) {
    const std::string name(kernel->name());
    if (name == "communicator") continue;  // test_averaging
    const auto is = [&](const char* set) { return name.ends_with(set); };
    const bool emulated = name.starts_with("emulated");
    const bool wide = is("avx512") || emulated || name == "onednn_winograd";  // the library has that for AVX-512 alone
    const bool anywhere = name.starts_with("portable");
    const auto [granted, wants] = anywhere      ? std::pair{true, ""}
                                  : wide        ? std::pair{cpu.avx512, "AVX-512"}
                                  : is("_amx")  ? std::pair{amx_granted(), "AMX"}
                                  : is("_fp16") ? std::pair{cpu.avx512_fp16, "AVX512-FP16"}
                                  : is("_bf16") ? std::pair{cpu.fast_bf16_dot, "full-rate VDPBF16PS"}
                                  : is("avx2")  ? std::pair{cpu.avx2, "AVX2"}
                                                : std::pair{true, ""};
    const bool taken =
        std::any_of(problems.begin(), problems.end(), [&](const Problem& p) { return kernel->supports(p).ok; });
    INFO(name);
    if (granted) CHECK(taken);
    if (!granted) ++skipped[wants];
  }
  for (const auto& [wants, kernels] : skipped)
    WARN("not checked here: " << kernels << " kernels for want of " << wants);
}

TEST_CASE("f16 sums are widened before they stall or drift", "[kernels]") {
  // 63 added up 32 times is exact in f16; 64 times or more, in one run, it is not. Random terms: errors stay near those
  // of f16 storage.
  const ConvAttrs same{.result_size = {1, 1, 1}};
  const TensorDesc x({1, 1, 2, 128, 384}, DType::f16), w({384, 1, 1, 1, 384}, DType::f16);
  ConvAttrs data = same;
  data.result_size = {1, 2, 128};
  const Problem forward = problem({OpKind::conv_forward, same}, {x, w});
  int ran = 0;
  for (const Problem& p : {forward, problem({OpKind::conv_backward_data, data}, {forward.out[0], w}),
                           problem({OpKind::conv_backward_weights, same}, {x, forward.out[0]})}) {
    Truth truth(p);
    for (const Kernel* kernel : kernels_under_test()) {
      if (!sums_in_f16(*kernel) || !kernel->supports(p).ok) continue;
      INFO(kernel->name() << " " << p.text());
      Run ones = make_run(p, Fill::integers, 1);
      for (Tensor& t : ones.in)
        for (f16& v : t.span<f16>()) v = f16(&t == &ones.in[0] ? 63.0f : 1.0f);
      Run wanted = make_run(p, Fill::integers, 1);
      copy_inputs(ones, wanted);
      execute(*kernel, p, ones);
      execute(reference_for(p), p, wanted);
      CHECK(same_bits(ones.out[0], wanted.out[0]));

      Run ours = make_run(p, Fill::normal, 11);
      execute(*kernel, p, ours);
      double error = 0, size = 0;
      for_each_index(p.out[0].shape, [&](auto... at) {
        const double exact = truth.exact(false).out[0].at(at...), difference = ours.out[0].at(at...) - exact;
        error += difference * difference, size += exact * exact;
      });
      CHECK(std::sqrt(error / size) < 1.2e-3);
      ++ran;
    }
  }
  const bool emulated = std::any_of(kernel_list().begin(), kernel_list().end(),
                                    [](const auto& kernel) { return kernel->name() == "direct_avx512"; });
  if (cpu_features().avx512 && emulated && !only_some_kernels())
    CHECK(ran > 0);
  else if (ran == 0)
    WARN("not checked here: no kernel sums in f16, and no AVX-512 to emulate one");
}

TEST_CASE("equal forms of a weight hold equal bytes", "[kernels]") {
  // A plan makes one pack for all that ask for the same form; where a layer has as many outputs as inputs, the wanted
  // layouts of a transposed convolution and of its own gradient are easily alike.
  int compared = 0;
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [extent, stride, channels] :
         {std::tuple<int64_t, int64_t, int64_t>{2, 1, 8}, {3, 2, 16}, {2, 2, 16}, {1, 1, 32}, {3, 1, 64}}) {
      const TensorDesc small({1, 1, 12, 12, channels}, type), w({channels, 1, extent, extent, channels}, type),
          bias(Shape::vector(channels), DType::f32);
      ConvAttrs a{.stride = {1, stride, stride}};
      a.result_size = {1, 11 * stride + extent, 11 * stride + extent};
      const Problem up = problem({OpKind::conv_backward_data, a}, {small, w, bias});
      ConvAttrs back = a;
      back.result_size = {0, 0, 0};
      const std::vector<Problem> sharing{up, problem({OpKind::conv_backward_data, a}, {small, w}),
                                         problem({OpKind::conv_forward, back}, {up.out[0], w})};
      Run weights = make_run(sharing.back(), Fill::normal, 5);
      // Of a name there is a kernel for every op: what they share is told by both.
      std::map<std::string, std::vector<std::byte>> bytes_of;
      for (const Kernel* kernel : kernels_under_test())
        for (const Problem& p : sharing) {
          if (!kernel->supports(p).ok) continue;
          for (const PackRequest& request : kernel->prepare(p)->packed_weights()) {
            if (request.input != 1) continue;
            std::vector<std::byte> packed(static_cast<size_t>(request.bytes));
            request.pack(weights.in[1], packed.data());
            const auto [known, first] = bytes_of.emplace(std::string(kernel->name()) + ":" + request.form, packed);
            INFO(kernel->name() << " " << p.text() << " " << request.form);
            CHECK((first || known->second == packed));
            compared += !first;
          }
        }
    }
  if (cpu_features().avx2 && !only_some_kernels()) CHECK(compared > 0);
}

TEST_CASE("every kernel on other ops at odd sizes", "[kernels]") {
  for (DType type : storage_types) check_all(other_problems(type));
}

TEST_CASE("oneDNN pools a volume to a depth of one", "[kernels]") {
  const auto library = [](const Kernel* kernel) { return kernel->name() == "onednn"; };
  std::vector<const Kernel*> kernels = kernels_under_test();
  std::erase_if(kernels, std::not_fn(library));
  for (const Problem& p : pools_to_a_plane(DType::f32)) {
    INFO(p.text());
    const auto takes = [&](const Kernel* kernel) { return kernel->supports(p).ok; };
    CHECK((kernels.empty() || std::any_of(kernels.begin(), kernels.end(), takes)));
  }
}

TEST_CASE("many threads give the bits of one", "[kernels]") {
  // Other problems in check_all.
  for (DType type : storage_types) check_many_threads(divided_problems(type));
}

TEST_CASE("direct convolutions of few rows divide their outputs between many threads", "[kernels]") {
  // ASPP's rows: those in the middle have taps inside the image above and below.
  const ConvAttrs dilated{.dilation = {1, 18, 18}, .pad_low = {0, 18, 18}, .pad_high = {0, 18, 18}};
  Problem few = problem({OpKind::conv_forward, dilated},
                        {TensorDesc({1, 1, 48, 72, 64}, DType::f32), TensorDesc({256, 1, 3, 3, 64}, DType::f32)});
  Problem many = few;
  few.threads = 2, many.threads = 64;
  bool any = false;
  for (const Kernel* kernel : kernels_under_test())
    if (kernel->name() == "direct_avx512" && kernel->supports(few).ok) {
      any = true;
      CHECK_THAT(kernel->prepare(few)->detail(), !Catch::Contains("channels a unit"));
      CHECK_THAT(kernel->prepare(many)->detail(), Catch::Contains("64 channels a unit"));
    }
  if (cpu_features().avx512 && !only_some_kernels()) CHECK(any);
}

TEST_CASE("tiles give the same bits with all positions of a part of the outputs first", "[kernels]") {
  // As in the input gradient of ASPP: the weights of 256 of 1024 outputs fit a cache that those of all do not fit.
  const ConvAttrs dilated{
      .dilation = {1, 6, 6}, .pad_low = {0, 6, 6}, .pad_high = {0, 6, 6}, .result_size = {1, 12, 36}};
  const Problem p = problem({OpKind::conv_backward_data, dilated}, {TensorDesc({1, 1, 12, 36, 256}, DType::bf16),
                                                                    TensorDesc({256, 1, 3, 3, 1024}, DType::bf16)});
  Problem alone = p;
  alone.threads = 1;
  Truth truth(p);
  bool any = false;
  for (const Kernel* kernel : kernels_under_test()) {
    if (!kernel->name().ends_with("_amx") || !kernel->supports(alone).ok) continue;
    any = true;
    CHECK_THAT(kernel->prepare(alone)->detail(), Catch::Contains("parts last"));
    // Threads get runs of units: parts of 256 and 48 outputs would be unequal work.
    Problem uneven =
        problem({OpKind::conv_backward_data, dilated}, {p.in[0], TensorDesc({256, 1, 3, 3, 560}, DType::bf16)});
    uneven.threads = 1;
    CHECK_THAT(kernel->prepare(uneven)->detail(), !Catch::Contains("parts last"));
    Run first = truth.fresh(Fill::normal, 7), second = truth.fresh(Fill::normal, 7);
    Problem many = p;
    many.threads = 48;  // a band each: no part of the weights is met again
    CHECK_THAT(kernel->prepare(many)->detail(), !Catch::Contains("parts last"));
    execute(*kernel, alone, first), execute(*kernel, many, second);
    CHECK(same_bits(first.out[0], second.out[0]));
  }
  if (!only_some_kernels()) CHECK(any);
}

namespace {

/// The kernel that a step runs for a 3x3 convolution forward of images whose padding is the dilation.
std::string forward_kernel(int64_t batch, int64_t height, int64_t width, int64_t dilation) {
  const ConvAttrs a{
      .dilation = {1, dilation, dilation}, .pad_low = {0, dilation, dilation}, .pad_high = {0, dilation, dilation}};
  const TensorDesc x({batch, 1, height, width, 256}, DType::f32), w({256, 1, 3, 3, 256}, DType::f32);
  Problem p{{OpKind::conv_forward, a}, {x, w}, {}};
  p.out = infer(p.op, p.in);
  p.threads = 2;
  int64_t pairs = 0;
  for (int64_t i = 0; i < height * 9; ++i)
    for (int64_t j = 0; j < width; ++j) {
      const int64_t h = i / 9 + (i % 9 / 3 - 1) * dilation, c = j + (i % 3 - 1) * dilation;
      pairs += h >= 0 && h < height && c >= 0 && c < width;
    }
  CHECK(pairs_inside(*conv_shapes(p)) == batch * pairs);
  CHECK(share_inside(*conv_shapes(p)) == Approx(double(pairs) / double(height * width * 9)));
  return std::string(choose_kernel(kernel_list(), p, "conv", {}).kernel->name());
}

}  // namespace

TEST_CASE("how far a dilation reaches outside decides between tiles and direct sums", "[kernels][selection]") {
  if (!cpu_features().avx2) return;
  CHECK(forward_kernel(2, 8, 12, 6).starts_with("direct_avx"));
  CHECK(forward_kernel(1, 24, 36, 12).starts_with("direct_avx"));
  CHECK(forward_kernel(2, 14, 20, 6).starts_with("winograd_avx"));
  CHECK(forward_kernel(1, 48, 72, 6).starts_with("winograd4"));
  CHECK(forward_kernel(1, 48, 72, 12).starts_with("winograd4"));
}

TEST_CASE("no reference kernel in a CosmoFlow training step", "[kernels][support]") {
  if (!cpu_features().avx2 || kernel_list().size() < 60) {
    WARN("skipped: needs AVX2 and oneDNN");
    return;
  }
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    for (OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adam}) {
      CosmoflowOptions o;
      o.compute = compute;
      o.training.optimizer = optimizer;
      o.training.l2 = 0.01;
      o.plan.threads = 2;
      const ProgramPlans plans = plan_program(o, kernel_list());
      CHECK(plans.step.reference_nodes() == std::vector<std::string>{});
      CHECK(plans.evaluate.reference_nodes() == std::vector<std::string>{});
      o.model = CosmoflowConfig::lbann();
      o.model.batch_norm = optimizer == OptimizerKind::sgd;
      const ProgramPlans pooled_by_means = plan_program(o, kernel_list());
      CHECK(pooled_by_means.step.reference_nodes() == std::vector<std::string>{});
      CHECK(pooled_by_means.evaluate.reference_nodes() == std::vector<std::string>{});
    }
}
