// Problem strings of the benches: benchdnn notation, oneDNN verbose lines, and what they become; flags; the rank test.
#include "bench/arguments.h"
#include "bench/changed_ceilings.h"
#include "bench/problem_strings.h"
#include "bench/rank_test.h"
#include "bench/valid_flops.h"
#include "bench/vector_sizes.h"
#include "core/error.h"
#include "core/executor.h"
#include "kernels/roofline/roofs.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::bench;

TEST_CASE("benchdnn strings become problems", "[bench]") {
  const ConvString root = parse_conv_string("conv mb1ic16ih768iw1152oc64kh7sh2ph3 n\"root\"");
  CHECK(root.name == "root");
  const Problem p = root.problem(Pass::forward, DType::f32);
  CHECK(p.op.kind == OpKind::conv_forward);
  CHECK(p.in[0].shape == Shape(1, 1, 768, 1152, 16));
  CHECK(p.in[1].shape == Shape(64, 1, 7, 7, 16));
  CHECK(p.out[0].shape == Shape(1, 1, 384, 576, 64));

  const ConvString cube = parse_conv_string("mb2ic4id128oc32kd3pd1");
  CHECK(cube.problem(Pass::backward_weights, DType::bf16).out[0].shape == Shape(32, 3, 3, 3, 4));
  CHECK(cube.dst == Shape(2, 128, 128, 128, 32));
  CHECK(parse_conv_string("ic4id128oc32kd3pd1").dst == cube.dst);  // its default

  // benchdnn counts dilation from zero.
  const Problem dilated = parse_conv_string("mb1ic8ih96iw144oc16kh3dh35ph36").problem(Pass::backward_data, DType::f32);
  CHECK(dilated.op.as<ConvAttrs>().dilation == Int3{1, 36, 36});
  CHECK(dilated.out[0].shape == Shape(1, 1, 96, 144, 8));
  CHECK(valid_tap_flops(dilated) == 2 * (96 + 2 * 60) * (144 + 2 * 108) * 8 * 16);

  const Problem grouped = parse_conv_string("mb1g64ic64ih38iw57oc64kh3sh2ph1").problem(Pass::forward, DType::f32);
  CHECK(grouped.in[1].shape == Shape(64, 1, 3, 3, 1));
  CHECK(grouped.out[0].shape == Shape(1, 1, 19, 29, 64));
  CHECK(valid_tap_flops(grouped) == 2 * (18 + 19 + 19) * (28 + 29 + 28) * 64);
}

TEST_CASE("transposed convolutions are backward_data used forward", "[bench]") {
  for (int64_t pad : {0, 1}) {
    const ConvString up = parse_conv_string("deconv mb1ic256ih96iw144oc128oh192ow288kh3sh2ph" + std::to_string(pad));
    const Problem p = up.problem(Pass::forward, DType::f32);
    CHECK(p.op.kind == OpKind::conv_backward_data);
    CHECK(p.in[0].shape == Shape(1, 1, 96, 144, 256));
    CHECK(p.out[0].shape == Shape(1, 1, 192, 288, 128));
    CHECK(up.problem(Pass::backward_data, DType::f32).op.kind == OpKind::conv_forward);
    CHECK(up.problem(Pass::backward_weights, DType::f32).out[0].shape == Shape(256, 1, 3, 3, 128));
  }
  const ConvString small = parse_conv_string("deconv mb1ic4ih3oc2oh6kh3sh2ph1");
  for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights})
    CHECK(valid_tap_flops(small.problem(pass, DType::f32)) == 2 * (2 + 3 + 3) * (2 + 3 + 3) * 4 * 2);
}

TEST_CASE("padding behind follows from the outputs", "[bench]") {
  const auto behind = [](const std::string& text) { return parse_conv_string(text).attrs.pad_high; };
  // As much as in front where that gives the outputs, as the models have it; else what the outputs need.
  CHECK(behind("conv mb1ic16ih768iw1152oc32kh3sh2ph1") == Int3{0, 1, 1});
  CHECK(behind("conv mb1ic16ih768iw1152oc32oh384ow576kh3sh2ph1") == Int3{0, 1, 1});
  CHECK(behind("conv mb1ic16ih40oc16oh20kh3sh2ph0") == Int3{0, 1, 1});
  CHECK(behind("conv mb1ic16ih40iw41oc16oh40ow41kh3ph2") == Int3{0, 0, 0});
  CHECK(behind("deconv mb1ic256ih48iw72oc256oh96ow144kh3sh2ph1") == Int3{0, 1, 1});
  CHECK(behind("deconv mb1ic256ih48iw72oc256oh96ow144kh3sh2ph0") == Int3{0, 1, 1});
  // Padding that is not given is half of what the outputs need, rounded down in front.
  const auto front = [](const std::string& text) { return parse_conv_string(text).attrs.pad_low; };
  CHECK(front("conv ic16ih40oc16oh40kh3") == Int3{0, 1, 1});
  CHECK(behind("conv ic16ih40oc16oh40kh3") == Int3{0, 1, 1});
  CHECK(front("conv ic16ih40oc16oh40kh3pd0") == Int3{0, 1, 1});
  CHECK(front("conv ic16ih40oc16oh20kh3sh2") == Int3{0, 0, 0});
  CHECK(front("conv ic16ih96oc16oh96kh3dh35") == Int3{0, 36, 36});
  CHECK(front("deconv ic16ih20oc16oh37kh3sh2") == Int3{0, 2, 2});
  // Outputs of one axis alone: the others follow from the rest.
  const ConvString part = parse_conv_string("conv mb1ic4id16ih20iw24oc8ow24kd3pd1");
  CHECK(part.dst == Shape(1, 16, 20, 24, 8));
  // Outputs that no padding behind gives were another problem.
  CHECK_THROWS_WITH(parse_conv_string("conv mb1ic16ih40oc16oh20kh3ph1"),
                    Catch::Contains("oh: expected 39 to 41, found 20") && Catch::Contains("ic16ih40oc16oh20"));
  CHECK_THROWS_WITH(parse_conv_string("conv mb1ic16ih40iw40oc16oh40ow99kh3ph1"),
                    Catch::Contains("ow: expected 39 to 41"));
  CHECK_THROWS_WITH(parse_conv_string("deconv mb1ic16ih40oc16oh90kh3sh2ph1"), Catch::Contains("oh: expected 78 to 81"));
  CHECK_THROWS_WITH(parse_conv_string("conv mb1ic16ih40oc16kh3ph1od7"),
                    Catch::Contains("od: expected an input or kernel"));
  CHECK_THROWS_WITH(parse_conv_string("conv mb1ic16ih40ih41oc16kh3"),
                    Catch::Contains("ih: expected once, found twice"));
}

TEST_CASE("products of extents stay numbers", "[bench]") {
  const auto problem = [](const ConvString& c) { return c.problem(Pass::forward, DType::f32); };
  CHECK_THROWS_WITH(problem(parse_conv_string("conv mb16ic16777216ih1048576oc16kh1")),
                    Catch::Contains("expected at most 274877906944 elements") && Catch::Contains("16777216"));
  ConvString batch = parse_conv_string("conv mb1ic16ih40oc16kh3ph1");
  batch.src[0] = batch.dst[0] = int64_t{1} << 44;
  CHECK_THROWS_WITH(problem(batch), Catch::Contains("expected at most 274877906944 elements"));
  CHECK_THROWS_WITH(
      problem(parse_conv_string("conv mb1ic1ih16777216iw16384oc1kh16777215kw16383ph8388607pw8191 n\"large\"")),
      Catch::Contains("expected fewer than 2^62 operations") && Catch::Contains("large"));
}

TEST_CASE("flags are given once unless they repeat", "[bench]") {
  const auto parse = [](std::vector<std::string> words) {
    std::vector<char*> argv{words[0].data()};
    for (std::string& word : words)
      if (&word != &words[0]) argv.push_back(word.data());
    return Arguments(static_cast<int>(argv.size()), argv.data(),
                     {{"problem", "", "a problem", true}, {"json", "", "a file"}, {"cold", "no", "a switch"}});
  };
  const Arguments twice = parse({"bench", "--problem", "a", "--json", "f", "--problem", "b", "--cold"});
  CHECK(twice.texts("problem") == std::vector<std::string>{"a", "b"});
  CHECK((twice.text("json") == "f" && twice.flag("cold") && twice.given("cold")));
  CHECK(parse({"bench"}).texts("problem").empty());
  CHECK_THROWS_WITH(parse({"bench", "--json", "f", "--json", "g"}),
                    Catch::Contains("--json: expected once, found twice"));
  CHECK_THROWS_WITH(parse({"bench", "--cold", "no", "--cold"}), Catch::Contains("--cold: expected once, found twice"));
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
  CHECK(v.post_ops.empty());
  for (const auto& [attribute, ops] :
       {std::pair<std::string, std::string>{"attr-post-ops:eltwise_relu:0.3+sum:1 attr-x:y", "eltwise_relu:0.3+sum:1"},
        {"attr-post-ops:'eltwise_relu;'", "eltwise_relu"}}) {
    std::string fused = line;
    fused.replace(fused.find("attr-scratchpad:user"), 20, attribute);
    CHECK(parse_verbose_line(fused).post_ops == ops);
  }
  CHECK_THROWS_WITH(parse_verbose_line("dnnl_verbose,exec,cpu,reorder,x"), Catch::Contains("convolution"));
  CHECK_THROWS_WITH(parse_verbose_line("dnnl_verbose,exec:blocked:src"), Catch::Contains("found \"\""));
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
  CHECK_THROWS_WITH(parse_conv_string("mb1ic16ih8zz3"), Catch::Contains("zz3"));
  CHECK_THROWS_WITH(parse_conv_string("conv mb1ic16ih8kh3"), Catch::Contains("no oc"));
  CHECK_THROWS_WITH(parse_conv_string("mb1ic16oc8ih2kh7"), Catch::Contains("expected outputs along every axis"));
  CHECK_THROWS_WITH(parse_conv_string("mb1ic16oc8ih2kh7sh8"), Catch::Contains("expected outputs along every axis"));
  CHECK_THROWS_WITH(parse_conv_string("mb1ic16ih8oc16kh3sh0"), Catch::Contains("sh: expected 1 to"));
  CHECK_THROWS_WITH(parse_conv_string("g0ic16ih8oc16kh3"), Catch::Contains("g: expected 1 to"));
  CHECK_THROWS_WITH(parse_conv_string("g3ic16ih8oc16kh3"), Catch::Contains("channels that 3 groups divide"));
  CHECK_THROWS_WITH(parse_conv_string("mb1ic16ih99999999oc16kh3"), Catch::Contains("found 99999999"));
  CHECK_THROWS_WITH(parse_passes("forwards"), Catch::Contains("forwards"));
}

TEST_CASE("the largest vector is summed whatever the factor", "[bench]") {
  using Sizes = std::vector<int64_t>;
  CHECK(vector_sizes(4, 268435456, 8).back() == 268435456);
  CHECK(vector_sizes(4, 1'000'000, 8) == Sizes{4, 32, 256, 2048, 16384, 131072, 1'000'000});
  CHECK(vector_sizes(4, 64, 4) == Sizes{4, 16, 64});
  CHECK(vector_sizes(5, 7, 1.01) == Sizes{4});
  CHECK(vector_sizes(4, 14, 1.5) == Sizes{4, 8, 12});
  CHECK(vector_sizes(1000, 1000, 8) == Sizes{1000});
}

TEST_CASE("a machine that changes its speed during a run is told", "[bench]") {
  using bench::changed_ceilings;
  const std::vector<Ceiling> start{{"f32_fma", 200, "GFLOP/s"}, {"triad", 25, "GB/s"}};
  CHECK(changed_ceilings(start, {{"f32_fma", 185, "GFLOP/s"}, {"triad", 27, "GB/s"}}).empty());
  CHECK(changed_ceilings(start, {{"f32_fma", 101.25, "GFLOP/s"}, {"triad", 25, "GB/s"}}) ==
        "f32_fma 200.0 GFLOP/s at the start, 101.2 at the end");
  CHECK(changed_ceilings(start, {{"f32_fma", 250, "GFLOP/s"}, {"triad", 10, "GB/s"}}) ==
        "f32_fma 200.0 GFLOP/s at the start, 250.0 at the end; triad 25.0 GB/s at the start, 10.0 at the end");
}

TEST_CASE("work lies under the lower of its roofs", "[bench]") {
  const Roofs roofs{{"f32_fma", 200}, {"bf16_dot", 400}, {"amx_bf16", 3000}, {"triad", 25}};
  const auto bound = [&](const char* type, double flops, double bytes) { return bound_of(roofs, type, flops, bytes); };
  CHECK(bound("f32", 4e9, 25e6).name == "f32_fma");
  CHECK(bound("f32", 4e9, 25e6).seconds == Approx(0.02));
  CHECK(bound("bf16", 3e12, 25e6).name == "amx_bf16");
  CHECK(bound("bf16", 3e12, 25e6).seconds == Approx(1));
  CHECK(bound("f16", 4e9, 0).seconds == Approx(0.02));
  CHECK(bound("f32", 4e8, 25e8).name == "triad");
  CHECK(bound("f32", 4e8, 25e8).seconds == Approx(0.1));
  CHECK(bound("f32", 0, 0).name.empty());
  CHECK(bound_of({{"copy", 4000}}, "f32", 4e8, 4e9).name == "copy");
  CHECK(bound_of({}, "f32", 4e8, 4e9).seconds == 0);
}

TEST_CASE("a node keeps the times of its last runs", "[bench]") {
  NodeTime time;
  CHECK(time.latest().empty());
  for (int i = 0; i < 3; ++i) time.add(i);
  CHECK(time.latest() == std::vector<double>{0, 1, 2});
  for (int i = 3; i < 60; ++i) time.add(i);
  std::vector<double> latest = time.latest();
  std::sort(latest.begin(), latest.end());
  REQUIRE(latest.size() == NodeTime::kept);
  CHECK(latest.front() == 35);
  CHECK(latest.back() == 59);
  CHECK(time.seconds == 59 * 60 / 2);
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
  // Equal values, counted exactly: of the 70 choices of four two lie as far out, to either side.
  CHECK(rank_test({1, 1, 1, 1.3}, {1.3, 2.1, 2.2, 2.3}) == Approx(4.0 / 70));
  CHECK(rank_test({1.3, 2.1, 2.2, 2.3}, {1, 1, 1, 1.3}) == Approx(4.0 / 70));
  CHECK(rank_test({1, 1, 1, 1}, {2, 2, 2, 2}) == Approx(2.0 / 70));
  CHECK(rank_test({1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}) == Approx(2.0 / 252));
  // 15 of the 35 choices of three hold the lowest value.
  CHECK(rank_test({1, 2, 2}, {2, 2, 2, 2}) == Approx(2 * 3.0 / 7));
  // The example of Benjamini and Hochberg 1995, section 3.2: four of fifteen are called at 0.05.
  const std::vector<double> p{0.0459, 0.0001, 0.3240, 0.0004, 0.0344, 0.0019, 0.0278, 0.0095,
                              0.0201, 0.0298, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000};
  const std::vector<double> q = false_discovery(p);
  CHECK(std::count_if(q.begin(), q.end(), [](double value) { return value < 0.05; }) == 4);
  CHECK(q[1] == Approx(0.0001 * 15));
  CHECK(q[7] == Approx(0.0095 * 15 / 4));
  CHECK(q[14] == 1);
  CHECK(false_discovery({0.04, 0.03}) == std::vector<double>{0.04, 0.04});
  // Beyond the exact sizes the normal approximation, never below what the sizes can tell.
  std::vector<double> many(40, 1.0), more(40, 2.0);
  CHECK(rank_test(many, more) < 1e-6);
  CHECK(rank_test({1, 1, 1}, more) == least_p(3, 40));
  std::vector<double> steps(26), shifted(26);
  std::iota(steps.begin(), steps.end(), 0.0), std::iota(shifted.begin(), shifted.end(), 8.5);
  CHECK(rank_test(steps, shifted) == Approx(0.000734).epsilon(0.01));
}
