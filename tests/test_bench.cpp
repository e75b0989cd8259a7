// Problem strings of the benches: benchdnn notation, oneDNN verbose lines, and what they become.
#include <fstream>

#include "bench/ceilings.h"
#include "bench/check.h"
#include "bench/problem_strings.h"
#include "bench/rank_test.h"
#include "bench/valid_flops.h"
#include "core/error.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::bench;

TEST_CASE("benchdnn strings become problems", "[bench]") {
  const ConvString root = parse_conv_string("conv ic16ih768iw1152oc64kh7sh2ph3 n\"root\"");
  CHECK(root.name == "root");
  const Problem p = root.problem(Pass::forward, DType::f32);
  CHECK(p.op.kind == OpKind::conv_forward);
  CHECK(p.in[0].shape == Shape(1, 1, 768, 1152, 16));
  CHECK(p.in[1].shape == Shape(64, 1, 7, 7, 16));
  CHECK(p.out[0].shape == Shape(1, 1, 384, 576, 64));

  const ConvString cube = parse_conv_string("mb2ic4id128oc32kd3pd1");
  CHECK(cube.problem(Pass::backward_weights, DType::bf16).out[0].shape == Shape(32, 3, 3, 3, 4));
  CHECK(cube.dst == Shape(2, 128, 128, 128, 32));

  // benchdnn counts dilation from zero.
  const Problem dilated = parse_conv_string("ic8ih96iw144oc16kh3dh35ph36").problem(Pass::backward_data, DType::f32);
  CHECK(dilated.op.as<ConvAttrs>().dilation == Int3{1, 36, 36});
  CHECK(dilated.out[0].shape == Shape(1, 1, 96, 144, 8));
  CHECK(valid_tap_flops(dilated) == 2 * (96 + 2 * 60) * (144 + 2 * 108) * 8 * 16);

  const Problem grouped = parse_conv_string("g64ic64ih38iw57oc64kh3sh2ph1").problem(Pass::forward, DType::f32);
  CHECK(grouped.in[1].shape == Shape(64, 1, 3, 3, 1));
  CHECK(grouped.out[0].shape == Shape(1, 1, 19, 29, 64));
  CHECK(valid_tap_flops(grouped) == 2 * (18 + 19 + 19) * (28 + 29 + 28) * 64);
}

TEST_CASE("transposed convolutions are backward_data used forward", "[bench]") {
  for (int64_t pad : {0, 1}) {
    const ConvString up = parse_conv_string("deconv ic256ih96iw144oc128oh192ow288kh3sh2ph" + std::to_string(pad));
    const Problem p = up.problem(Pass::forward, DType::f32);
    CHECK(p.op.kind == OpKind::conv_backward_data);
    CHECK(p.in[0].shape == Shape(1, 1, 96, 144, 256));
    CHECK(p.out[0].shape == Shape(1, 1, 192, 288, 128));
    CHECK(up.problem(Pass::backward_data, DType::f32).op.kind == OpKind::conv_forward);
    CHECK(up.problem(Pass::backward_weights, DType::f32).out[0].shape == Shape(256, 1, 3, 3, 128));
  }
  const ConvString small = parse_conv_string("deconv ic4ih3oc2oh6kh3sh2ph1");
  for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights})
    CHECK(valid_tap_flops(small.problem(pass, DType::f32)) == 2 * (2 + 3 + 3) * (2 + 3 + 3) * 4 * 2);
}

TEST_CASE("verbose lines of oneDNN", "[bench]") {
  const std::string line =
      "dnnl_verbose,exec,cpu,convolution,jit:avx512_core,backward_data,src_bf16::blocked:acdb:f0 "
      "wei_bf16::blocked:abcd:f0,attr-scratchpad:user,alg:convolution_direct,"
      "mb1_ic16oc64_ih768oh384kh7sh2dh0ph3_iw1152ow576kw7sw2dw0pw3,12.5";
  REQUIRE(is_verbose_line(line));
  const VerboseLine v = parse_verbose_line(line);
  CHECK(v.pass == Pass::backward_data);
  CHECK(v.type == DType::bf16);
  CHECK(v.conv.problem(v.pass, v.type).out[0].shape == Shape(1, 1, 768, 1152, 16));
  CHECK_THROWS_WITH(parse_verbose_line("dnnl_verbose,exec,cpu,reorder,x"), Catch::Contains("convolution"));
  const std::string later =
      "onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core_bf16,forward_training,"
      "src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:Acdb64a::f0 bia:f32::blocked:a::f0 dst:bf16::blocked:acdb::f0,"
      "attr-scratchpad:user,alg:convolution_direct,mb1_ic16oc64_ih768oh384kh7sh2dh0ph3_iw1152ow576kw7sw2dw0pw3,12.5";
  CHECK(parse_verbose_line(later).type == DType::bf16);
  CHECK(parse_verbose_line(later).pass == Pass::forward);
  std::string bytes = later;
  bytes.replace(bytes.find("src:bf16"), 8, "src:u8");
  CHECK_THROWS_WITH(parse_verbose_line(bytes), Catch::Contains("found \"u8\""));
}

TEST_CASE("strings that say nothing are refused", "[bench]") {
  CHECK_THROWS_WITH(parse_conv_string("ic16ih8zz3"), Catch::Contains("zz3"));
  CHECK_THROWS_WITH(parse_conv_string("conv ic16ih8kh3"), Catch::Contains("no oc"));
  CHECK_THROWS_WITH(parse_conv_string("ic16oc8ih2kh7"), Catch::Contains("expected outputs along every axis"));
  CHECK_THROWS_WITH(parse_conv_string("ic16oc8ih2kh7sh8"), Catch::Contains("expected outputs along every axis"));
  CHECK_THROWS_WITH(parse_conv_string("ic16ih8oc16kh3sh0"), Catch::Contains("sh: expected 1 to"));
  CHECK_THROWS_WITH(parse_conv_string("g0ic16ih8oc16kh3"), Catch::Contains("g: expected 1 to"));
  CHECK_THROWS_WITH(parse_conv_string("g3ic16ih8oc16kh3"), Catch::Contains("channels that 3 groups divide"));
  CHECK_THROWS_WITH(parse_conv_string("ic16ih99999999oc16kh3"), Catch::Contains("found 99999999"));
  CHECK_THROWS_WITH(parse_passes("forwards"), Catch::Contains("forwards"));
}

TEST_CASE("every shipped problem file reads, and counts the published work", "[bench]") {
  const auto forward_gflop = [](const std::string& name) {
    std::ifstream file(std::string(CONVOY_SOURCE_DIR) + "/bench/problems/" + name + ".txt");
    REQUIRE(file);
    std::string line;
    double total = 0;
    while (std::getline(file, line))
      if (!line.empty() && line[0] != '#')
        total += double(parse_conv_string(line).problem(Pass::forward, DType::f32).flops()) * 1e-9;
    return total;
  };
  CHECK(forward_gflop("cosmoflow") == Approx(68.85).epsilon(0.001));  // five convolutions, each once
  // Each distinct layer once: the two full-resolution layers alone are 1565.5 + 1043.7 GFLOP.
  CHECK(forward_gflop("deeplab") > 2609);
  CHECK(forward_gflop("deepcam") > 150);
  CHECK(forward_gflop("tiramisu") > 500);
}

TEST_CASE("a machine that changes its speed during a run is told", "[bench]") {
  using bench::changed_ceilings;
  const std::vector<bench::Ceiling> start{{"f32_fma", 200, "GFLOP/s"}, {"triad", 25, "GB/s"}};
  CHECK(changed_ceilings(start, {{"f32_fma", 185, "GFLOP/s"}, {"triad", 27, "GB/s"}}).empty());
  CHECK(changed_ceilings(start, {{"f32_fma", 101.25, "GFLOP/s"}, {"triad", 25, "GB/s"}}) ==
        "f32_fma 200.0 GFLOP/s at the start, 101.2 at the end");
  CHECK(changed_ceilings(start, {{"f32_fma", 250, "GFLOP/s"}, {"triad", 10, "GB/s"}}) ==
        "f32_fma 200.0 GFLOP/s at the start, 250.0 at the end; triad 25.0 GB/s at the start, 10.0 at the end");
}

TEST_CASE("times are told apart by rank", "[bench]") {
  const std::vector<double> low{1, 2, 3, 4, 5}, high{6, 7, 8, 9, 10}, among{1.5, 2.5, 2.7, 3.5, 4.5};
  CHECK(rank_test(low, high) == Approx(2.0 / 252));
  CHECK(rank_test(high, low) == Approx(2.0 / 252));
  CHECK(rank_test(low, among) > 0.8);
  CHECK(rank_test({1, 2}, high) == 1);
  CHECK(rank_test({1, 2, 3, 4}, {5, 6, 7, 8}) == Approx(2.0 / 70));
  CHECK(least_p(5, 5) == Approx(2.0 / 252));
  CHECK(least_p(4, 6) < 0.01);
  CHECK(least_p(4, 4) > 0.01);
  CHECK(rank_test({5, 5, 5, 5, 5}, {5, 5, 5, 5, 5}) == 1);
  // Beyond the exact sizes, and with ties: the normal approximation.
  std::vector<double> many(40, 1.0), more(40, 2.0);
  CHECK(rank_test(many, more) < 1e-6);
}

TEST_CASE("kernels are checked on small versions of every convolution", "[bench]") {
  // Fused with activation and pool, and with the tiles that Winograd wants.
  const TensorDesc x({1, 64, 64, 64, 16}, DType::f32), w({32, 3, 3, 3, 16}, DType::f32),
      bias(Shape::vector(32), DType::f32);
  const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}};
  const Op pooled{OpKind::conv_pool_forward, ConvPoolAttrs{same, {{.slope = 0.25}, {}}}};
  Problem fused{pooled, {x, w, bias}, infer(pooled, std::vector{x, w, bias}), DeviceKind::cpu, 2};
  const Problem wide = parse_conv_string("ic48ih96iw80oc304kh5ph2").problem(Pass::backward_data, DType::bf16);
  CHECK(reduced(fused, {4, 1000})->in[0].shape == Shape(1, 4, 4, 4, 16));
  CHECK(reduced(wide, {50, 32})->in[0].shape == Shape(1, 1, 50, 50, 32));
  CHECK_FALSE(reduced({{OpKind::add, NoAttrs{}}, {x, x}, {x}, DeviceKind::cpu, 1}, {4, 1000}));
  ConvAttrs leaky = same;
  leaky.slope = 0.3;
  const Op activated{OpKind::conv_activation_forward, leaky};
  const Problem active{activated, {x, w, bias}, infer(activated, std::vector{x, w, bias}), DeviceKind::cpu, 2};
  CHECK(valid_tap_flops(active) < active.flops());
  Problem plain = fused;  // without a bias
  plain.in.pop_back();
  CHECK(reduced(plain, {4, 1000})->in.size() == 2);
  for (const Problem& p : {fused, plain, active, wide}) {
    int ran = 0, winograd = 0;
    for (const auto& kernel : kernel_list()) {
      if (!kernel->supports(p).ok || kernel->name() == reference_name) continue;
      INFO(kernel->name() << " " << p.text());
      CHECK(check(kernel_list(), *kernel, p) == Check::right);
      ++ran, winograd += kernel->name().starts_with("winograd");
    }
    if (cpu_features().avx2) CHECK((ran > 1 && winograd > 0));
  }
  const FunctionKernel zeros(
      "zeros", OpKind::conv_backward_data, [](const Problem&) { return Support::yes(); },
      [](const Problem&) -> std::unique_ptr<Prepared> {
        return std::make_unique<PreparedFunction>(
            [](const KernelArgs& args) {
              for_each_index(args.out[0].shape(), [&](auto... at) { args.out[0].set(at..., 0); });
            },
            0);
      });
  CHECK(check(kernel_list(), zeros, wide) == Check::wrong);
}
