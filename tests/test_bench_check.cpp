// The benches' own checks: small versions of problems, wrong kernels among right ones, which candidates win.
#include <thread>

#include "bench/agreement.h"
#include "bench/candidate.h"
#include "bench/check.h"
#include "bench/layer_row.h"
#include "bench/problem_strings.h"
#include "bench/valid_flops.h"
#include "core/conv_shapes.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/kernel_problems.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

/// A kernel that takes every problem of a kind and does what a function says, right or wrong.
template <class Run>
FunctionKernel kernel_of(std::string_view name, OpKind kind, Run) {
  static_assert(std::is_empty_v<Run>, "a kernel keeps nothing");
  return FunctionKernel(
      name, kind, [](const Problem&) { return Support::yes(); },
      [](const Problem&) -> std::unique_ptr<Prepared> { return std::make_unique<PreparedFunction>(Run{}); });
}

Check checked(const Kernel& kernel, const Problem& p) {
  return Checker(kernel_list(), p)(kernel);
}

const Kernel& reference_of(const Problem& p) {
  for (const auto& kernel : kernel_list())
    if (kernel->name() == reference_name && kernel->supports(p).ok) return *kernel;
  throw std::runtime_error("no reference for " + p.text());
}

/// The reference on dense tensors, and what the problem needs of it.
void run_reference(Op op, const KernelArgs& args) {
  Problem p{op, {}, {}, DeviceKind::cpu, 1};
  for (const Tensor& t : args.in) p.in.push_back(t.desc());
  for (const Tensor& t : args.out) p.out.push_back(t.desc());
  reference_of(p).prepare(p)->run(args);
}

}  // namespace

TEST_CASE("kernels are checked on small versions of every convolution", "[bench]") {
  // Fused with activation and pool, and with the tiles that Winograd wants.
  const TensorDesc x({1, 64, 64, 64, 16}, DType::f32), w({32, 3, 3, 3, 16}, DType::f32),
      bias(Shape::vector(32), DType::f32);
  const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}};
  const Op pooled{OpKind::conv_pool_forward, ConvPoolAttrs{same, {{.slope = 0.25}, {}}}};
  const Problem fused = testing::problem(pooled, {x, w, bias}), plain = testing::problem(pooled, {x, w});
  const Problem wide = parse_conv_string("mb1ic48ih96iw80oc304kh5ph2").problem(Pass::backward_data, DType::bf16);
  CHECK(reduced(fused, {4, 1000})->in[0].shape == Shape(1, 4, 4, 4, 16));
  CHECK(reduced(fused, {4, 1000, 40})->in[0].shape == Shape(1, 4, 4, 40, 16));
  CHECK(reduced(wide, {50, 32})->in[0].shape == Shape(1, 1, 50, 50, 32));
  CHECK(reduced(plain, {4, 1000})->in.size() == 2);
  CHECK_FALSE(reduced(testing::problem({OpKind::add, NoAttrs{}}, {x, x}), {4, 1000}));
  ConvAttrs leaky = same;
  leaky.slope = 0.3;
  const Problem active = testing::problem({OpKind::conv_activation_forward, leaky}, {x, w, bias});
  CHECK(valid_tap_flops(active) < active.flops());
  for (const Problem& p : {fused, plain, active, wide}) {
    int ran = 0, winograd = 0;
    Checker checker(kernel_list(), p);
    for (const auto& kernel : kernel_list()) {
      if (!kernel->supports(p).ok || kernel->name() == reference_name) continue;
      INFO(kernel->name() << " " << p.text());
      CHECK(checker(*kernel) == Check::right);
      ++ran, winograd += kernel->name().starts_with("winograd");
    }
    if (cpu_features().avx2) CHECK((ran > 1 && winograd > 0));
  }
  const FunctionKernel zeros = kernel_of("zeros", OpKind::conv_backward_data, [](const KernelArgs& args) {
    for_each_index(args.out[0].shape(), [&](auto... at) { args.out[0].set(at..., 0); });
  });
  CHECK(checked(zeros, wide) == Check::wrong);
}

TEST_CASE("Winograd is checked on small images, of which it takes those with many channels", "[bench]") {
  const Problem square = parse_conv_string("mb1ic128ih28oc128kh3ph1").problem(Pass::forward, DType::f32);
  const Problem uneven = parse_conv_string("mb1ic64ih16iw24oc256kh3ph1").problem(Pass::backward_data, DType::f32);
  const Problem deep = parse_conv_string("mb1ic256ih16iw24oc256kh3ph1").problem(Pass::forward, DType::f32);
  const Problem several = parse_conv_string("mb4ic128ih14oc128kh3ph1").problem(Pass::forward, DType::f32);
  for (const Problem& p : {square, uneven, deep, several}) {
    int winograd = 0;
    Checker checker(kernel_list(), p);
    for (const auto& kernel : kernel_list()) {
      if (!kernel->name().starts_with("winograd") || !kernel->supports(p).ok) continue;
      INFO(kernel->name() << " " << p.text());
      CHECK(checker(*kernel) == Check::right);
      ++winograd;
    }
    if (cpu_features().avx2) CHECK(winograd > 0);
  }
}

TEST_CASE("small versions are legal, or there is none", "[bench]") {
  // A pool that four positions are too few for.
  const TensorDesc x({1, 64, 64, 64, 16}, DType::f32), w({32, 3, 3, 3, 16}, DType::f32);
  const PoolAttrs large{.kernel = {4, 4, 4}, .stride = {4, 4, 4}};
  for (const ConvAttrs& conv : {ConvAttrs{}, ConvAttrs{.stride = {3, 3, 3}}}) {
    const Problem p =
        testing::problem({OpKind::conv_pool_forward, ConvPoolAttrs{conv, {{.slope = 0.25}, large}}}, {x, w});
    const auto small = reduced(p, {4, 1000});
    REQUIRE(small);
    CHECK(small->in[0].shape.w() < 32);
    CHECK(Problem::parse(small->text()).text() == small->text());
  }
  for (DType type : {DType::f32, DType::bf16}) {
    for (const Problem& p : testing::conv_problems(type))
      for (const auto& r : {bench::Reduction{4, 1000}, {4, 32, 40}, {24, 32}}) {
        INFO(p.text());
        const auto small = reduced(p, r);
        REQUIRE(small);
        CHECK(Problem::parse(small->text()).text() == small->text());
      }
    for (const Problem& p : testing::other_problems(type)) {
      const bool convolution = reduced(p, {4, 1000}).has_value();
      INFO(p.text());
      const auto small = reduced_positions(p);
      CHECK(small.has_value() != convolution);
      if (small) CHECK(Problem::parse(small->text()).text() == small->text());
    }
  }
  const TensorDesc bucket(Shape::vector(64), DType::f32);
  CHECK_FALSE(reduced_positions(testing::problem({OpKind::all_reduce_start, AllReduceAttrs{}}, {bucket})));
}

TEST_CASE("slices keep their pitches in small versions", "[bench]") {
  const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}};
  TensorDesc x({1, 1, 96, 80, 48}, DType::f32);
  x.stride = TensorDesc::dense_strides({1, 1, 96, 80, 200});
  Problem p = testing::problem({OpKind::conv_forward, same}, {x, TensorDesc({64, 1, 3, 3, 48}, DType::f32)});
  p.out[0].stride = TensorDesc::dense_strides({1, 1, 96, 80, 129});
  const Problem small = *reduced(p, {4, 16});
  CHECK(small.in[0].shape == Shape(1, 1, 4, 4, 16));
  CHECK(small.in[0].stride == std::array<int64_t, 4>{3200, 3200, 800, 200});
  CHECK(small.out[0].pixel_pitch() == 129);
  CHECK(small.in[1].dense());
  const Problem sum = testing::problem({OpKind::add, NoAttrs{}}, {x, x});
  CHECK(reduced_positions(sum)->in[0].pixel_pitch() == 200);

  // A kernel that takes its input for dense.
  const FunctionKernel dense = kernel_of("dense", OpKind::conv_forward, [](const KernelArgs& args) {
    const std::vector<Tensor> in{Tensor(TensorDesc(args.in[0].shape(), DType::f32), args.in[0].bytes()), args.in[1]};
    const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}};
    run_reference({OpKind::conv_forward, same}, {in, args.out, {}, nullptr});
  });
  CHECK(checked(dense, p) == Check::wrong);
  p.in[0] = TensorDesc(x.shape, DType::f32);
  CHECK(checked(dense, p) == Check::right);
}

TEST_CASE("what goes wrong behind the first columns is found", "[bench]") {
  const Problem p = parse_conv_string("mb1ic32ih96iw96oc32kh3ph1").problem(Pass::backward_data, DType::f32);
  const FunctionKernel narrow = kernel_of("narrow", OpKind::conv_backward_data, [](const KernelArgs& args) {
    const Shape& s = args.out[0].shape();
    const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = spatial(s)};
    run_reference({OpKind::conv_backward_data, same}, args);
    if (s.w() > 32) args.out[0].set(0, 0, 1, 33, 5, 1e6);
  });
  CHECK(checked(narrow, p) == Check::wrong);
}

TEST_CASE("kernels of all other ops are checked", "[bench]") {
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Problem& p : testing::other_problems(type)) {
      if (conv_shapes(p) || p.in[0].shape.elements() > 1'000'000) continue;  // sizes that only tests of memory need
      Checker checker(kernel_list(), p);
      for (const auto& kernel : kernel_list()) {
        if (!kernel->supports(p).ok) continue;
        INFO(kernel->name() << " " << p.text());
        CHECK(checker(*kernel) == Check::right);
      }
    }
}

TEST_CASE("dense layers of many features are checked on fewer", "[bench]") {
  const TensorDesc x({64, 16, 16, 16, 512}, DType::f32), w({128, 1, 1, 1, 2'097'152}, DType::f32),
      y({64, 1, 1, 1, 128}, DType::f32);
  const Problem forward = testing::problem({OpKind::dense_forward, NoAttrs{}}, {x, w});
  const Problem small = *reduced_positions(forward);
  CHECK(small.in[0].shape == Shape(8, 4, 4, 4, 512));
  CHECK(small.in[1].shape == Shape(48, 1, 1, 1, 32768));
  const Op data{OpKind::dense_backward_data, ConvAttrs{.result_size = {16, 16, 16}}};
  CHECK(reduced_positions(testing::problem(data, {y, w}))->out[0].shape == small.in[0].shape);
  CHECK(reduced_positions(testing::problem({OpKind::dense_backward_weights, NoAttrs{}}, {x, y}))->out[0].shape ==
        small.in[1].shape);
}

TEST_CASE("wrong kernels of other ops are found", "[bench]") {
  const TensorDesc x({4, 1, 20, 20, 24}, DType::f32), scale(Shape::vector(4), DType::f64),
      step(Shape::vector(8), DType::f64), flag(Shape::vector(1), DType::f32);
  const FunctionKernel first =
      kernel_of("first", OpKind::add, [](const KernelArgs& args) { args.out[0].copy_from(args.in[0]); });
  CHECK(checked(first, testing::problem({OpKind::add, NoAttrs{}}, {x, x})) == Check::wrong);
  const FunctionKernel optimist =
      kernel_of("optimist", OpKind::all_finite, [](const KernelArgs& args) { args.out[0].set(0, 0, 0, 0, 0, 1); });
  CHECK(checked(optimist, testing::problem({OpKind::all_finite, NoAttrs{}}, {x, x})) == Check::wrong);
  const FunctionKernel idle = kernel_of("idle", OpKind::sgd_update, [](const KernelArgs&) {});
  CHECK(checked(idle, testing::problem({OpKind::sgd_update, SgdAttrs{}}, {x, step, scale, flag, x, x})) ==
        Check::wrong);
  // Off by more than its sums may round.
  const FunctionKernel rough = kernel_of("rough", OpKind::dense_forward, [](const KernelArgs& args) {
    run_reference({OpKind::dense_forward, NoAttrs{}}, args);
    args.out[0].set(0, 0, 0, 0, 0, args.out[0].at(0, 0, 0, 0, 0) * 1.01 + 0.01);
  });
  CHECK(checked(rough, testing::problem({OpKind::dense_forward, NoAttrs{}},
                                        {x, TensorDesc({9, 1, 1, 1, 9600}, DType::f32)})) == Check::wrong);
  // What travels between ranks has no small version, so it stays unchecked.
  const FunctionKernel alone = kernel_of("alone", OpKind::all_reduce_start, [](const KernelArgs&) {});
  CHECK(checked(alone, testing::problem({OpKind::all_reduce_start, AllReduceAttrs{}},
                                        {TensorDesc(Shape::vector(64), DType::f32)})) == Check::none);
}

TEST_CASE("a kernel that was not checked wins over none that was", "[bench]") {
  const Problem p = testing::problem({OpKind::scale, ScaleAttrs{2}}, {TensorDesc({1, 1, 2, 2, 4}, DType::f32)});
  const auto nothing = [](const KernelArgs&) {};
  const FunctionKernel a = kernel_of("a", OpKind::scale, nothing), b = kernel_of("b", OpKind::scale, nothing),
                       c = kernel_of("c", OpKind::scale, nothing);
  std::vector<std::unique_ptr<Candidate>> list;
  for (const Kernel* kernel : {&a, &b, &c}) list.push_back(std::make_unique<Candidate>(*kernel, p));
  for (size_t i = 0; i < 3; ++i) list[i]->seconds = {double(i + 1)};
  CHECK(fastest_kernel(list)->name() == "a");
  CHECK(passed_over(list, *list[1]) == nullptr);
  list[1]->checked = list[2]->checked = true;
  CHECK(fastest_kernel(list)->name() == "b");
  CHECK(passed_over(list, *list[1]) == list[0].get());
  list[0]->checked = true;
  CHECK(passed_over(list, *list[1]) == nullptr);
  list[0]->checked = false, list[0]->seconds = {2.5};
  CHECK(passed_over(list, *list[1]) == nullptr);
  list[1]->wrong = true;
  CHECK(fastest_kernel(list)->name() == "c");
  CHECK(passed_over(list, *list[2]) == list[0].get());
  list[0]->wrong = list[2]->wrong = true;
  CHECK(fastest_kernel(list) == nullptr);
  CHECK(passed_over(list, *list[2]) == nullptr);
}

TEST_CASE("kernels that disagree at full size are wrong", "[bench]") {
  const Problem p = testing::problem({OpKind::scale, ScaleAttrs{2}}, {TensorDesc({1, 1, 4, 40, 4}, DType::f32)});
  const auto twice = [](const KernelArgs& args) {
    for (int64_t i = 0; i < args.out[0].shape().elements(); ++i)
      args.out[0].data<float>()[i] = 2 * args.in[0].data<float>()[i];
  };
  // Right but for the last element, as where the end of a large tensor is left out.
  const auto all_but_one = [](const KernelArgs& args) {
    const int64_t last = args.out[0].shape().elements() - 1;
    for (int64_t i = 0; i < last; ++i) args.out[0].data<float>()[i] = 2 * args.in[0].data<float>()[i];
    args.out[0].data<float>()[last] = NAN;
  };
  const FunctionKernel right = kernel_of("right", OpKind::scale, twice),
                       broken = kernel_of("broken", OpKind::scale, all_but_one);
  const auto marked = [&](std::vector<const Kernel*> kernels, std::vector<bool> checked) {
    std::vector<std::unique_ptr<Candidate>> list;
    for (size_t i = 0; i < kernels.size(); ++i) {
      list.push_back(std::make_unique<Candidate>(*kernels[i], p));
      list[i]->checked = checked[i];
      list[i]->run();
    }
    mark_disagreement(list, false);
    std::string text;
    for (const auto& c : list) text += c->wrong ? 'x' : '.';
    return text;
  };
  CHECK(marked({&right}, {true}) == ".");
  CHECK(marked({&right, &right}, {true, true}) == "..");
  CHECK(marked({&broken, &right, &right}, {true, true, true}) == "x..");
  CHECK(marked({&right, &broken, &right, &right}, {true, true, true, false}) == ".x..");
  CHECK(marked({&broken, &right}, {false, true}) == "x.");
  CHECK(marked({&broken, &right}, {true, true}) == "xx");
  CHECK(marked({&broken, &broken, &right, &right}, {true, true, true, true}) == "xxxx");
  // Others may vote that are no candidates.
  std::vector<std::unique_ptr<Candidate>> alone, referees;
  alone.push_back(std::make_unique<Candidate>(broken, p));
  for (int i = 0; i < 2; ++i) referees.push_back(std::make_unique<Candidate>(right, p));
  for (const auto* list : {&alone, &referees})
    for (const auto& c : *list) c->run();
  mark_disagreement(alone, false, referees);
  CHECK(alone[0]->wrong);
  // Roundings are no disagreement, a value that another channel has is one; of bytes a few may differ.
  const Tensor a = Tensor::zeros(TensorDesc(Shape::vector(100), DType::f32)), b = Tensor::zeros(a.desc());
  for (int64_t i = 0; i < 100; ++i) a.set(0, 0, 0, 0, i, double(i % 7) - 3), b.set(0, 0, 0, 0, i, double(i % 7) - 3);
  b.set(0, 0, 0, 0, 50, a.at(0, 0, 0, 0, 50) + 0.01);
  CHECK(agree_on_host(a, b, false));
  b.set(0, 0, 0, 0, 50, a.at(0, 0, 0, 0, 50) + 0.1);
  CHECK(!agree_on_host(a, b, false));
  CHECK(agree_on_host(a, b, true));
  const Tensor winners = Tensor::zeros(TensorDesc(Shape::vector(100), DType::u8)),
               others = Tensor::zeros(winners.desc());
  for (int64_t i = 0; i < 3; ++i) others.set(0, 0, 0, 0, i, 1);
  CHECK(agree_on_host(winners, others, false));
  others.set(0, 0, 0, 0, 3, 1);
  CHECK(!agree_on_host(winners, others, false));
}

TEST_CASE("a definition agrees with kernels that write into a slice", "[bench]") {
  const TensorDesc x({1, 1, 12, 14, 16}, DType::f32);
  Problem p = testing::problem(
      {OpKind::conv_activation_forward, ConvAttrs{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .slope = 0.25}},
      {x, TensorDesc({32, 1, 3, 3, 16}, DType::f32), TensorDesc(Shape::vector(32), DType::f32)});
  p.out[0] = testing::strided(p.out[0], 96);
  std::vector<std::unique_ptr<Candidate>> list;
  for (const auto& kernel : kernel_list())
    if (kernel->supports(p).ok) list.push_back(std::make_unique<Candidate>(*kernel, p));
  const size_t kernels = list.size();
  if (auto definition = Candidate::definition(kernel_list(), p)) list.push_back(std::move(definition));
  for (const auto& c : list) c->run();
  mark_disagreement(list, false);
  for (const auto& c : list) {
    INFO(c->name());
    CHECK_FALSE(c->wrong);
  }
  CHECK(kernels >= (cpu_features().avx2 ? 2 : 1));
}

TEST_CASE("a definition takes the library's faster layout for each convolution", "[bench]") {
  const Problem p =
      testing::problem({OpKind::conv_activation_forward, ConvAttrs{.slope = 0.25}},
                       {TensorDesc({1, 1, 4, 4, 4}, DType::f32), TensorDesc({8, 1, 1, 1, 4}, DType::f32)});
  const auto quick = [](const KernelArgs&) {};
  const auto slow = [](const KernelArgs&) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  for (bool blocked_is_slow : {false, true}) {
    KernelList list;
    const auto add = [&](const FunctionKernel& kernel) { list.push_back(std::make_unique<FunctionKernel>(kernel)); };
    add(kernel_of("own", OpKind::conv_forward, quick));
    add(blocked_is_slow ? kernel_of("onednn", OpKind::conv_forward, quick)
                        : kernel_of("onednn", OpKind::conv_forward, slow));
    add(blocked_is_slow ? kernel_of("onednn_blocked", OpKind::conv_forward, slow)
                        : kernel_of("onednn_blocked", OpKind::conv_forward, quick));
    add(kernel_of("own", OpKind::activation, quick));
    const auto definition = Candidate::definition(list, p);
    REQUIRE(definition);
    CHECK(definition->name() == "onednn_definition");
    CHECK(definition->detail() == (blocked_is_slow ? "onednn+own" : "onednn_blocked+own"));
  }
}

TEST_CASE("figures that cannot be told are empty", "[bench]") {
  const Problem p = testing::problem({OpKind::scale, ScaleAttrs{2}}, {TensorDesc({1, 1, 2, 2, 4}, DType::f32)});
  const NamedProblem named{"double, twice", "forward", p};
  const FunctionKernel kernel = kernel_of("mine", OpKind::scale, [](const KernelArgs&) {});
  Candidate c(kernel, p);
  c.seconds = {1e-3, 2e-3};
  const LayerRow bare(named, c, {}, 0);
  CHECK_THAT(bare.json(), Catch::Contains("\"ceiling_share\":null") && Catch::Contains("\"onednn_ratio\":null") &&
                              Catch::Contains("\"bandwidth_share\":null") && Catch::Contains("\"correct\":null"));
  CHECK_THAT(bare.csv(), Catch::StartsWith("\"double, twice\",forward,f32,mine,,1,"));
  CHECK_THAT(bare.csv(), Catch::Contains(",1.6e-05,,,,,,1.6e-05,128,0.125,1,scale{"));
  CHECK_THAT(bare.terminal(), Catch::Contains(" 0.125 ") && Catch::EndsWith("-  not checked"));
  const LayerRow full(named, c, {{"f32_fma", 1.6e-4}, {"triad", 1}}, 3e-3);
  CHECK_THAT(full.json(), Catch::Contains("\"ceiling_share\":0.1,") && Catch::Contains("\"onednn_ratio\":3,") &&
                              Catch::Contains("\"bandwidth_share\":0.000128"));
  CHECK_THAT(full.csv(), Catch::Contains(",0.1,f32_fma,0.000128,3,,"));
}
