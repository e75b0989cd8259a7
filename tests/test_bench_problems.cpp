// Problem files against the networks that they are of, and what texts of problems are refused for.
#include <fstream>
#include <set>

#include "bench/problem_strings.h"
#include "core/conv_shapes.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::bench;

namespace {

std::vector<ConvString> file_strings(const std::string& name) {
  std::ifstream file(std::string(CONVOY_SOURCE_DIR) + "/bench/problems/" + name + ".txt");
  REQUIRE(file);
  std::vector<ConvString> list;
  std::string line;
  while (std::getline(file, line))
    if (!line.empty() && line[0] != '#') list.push_back(parse_conv_string(line));
  return list;
}

/// Shapes, strides, dilation, padding and groups of the convolution at the heart of a problem, whatever its pass.
std::string geometry(const Problem& p) {
  const auto s = conv_shapes(p);
  return to_text({OpKind::conv_forward, s->attrs}) + " " + s->x.str() + " " + s->w.str();
}

std::set<std::string> geometries(const Tape& tape) {
  std::set<std::string> all;
  for (const Node& node : tape.nodes()) {
    const Problem p{node.op, tape.descs(node.in), tape.descs(node.out), DeviceKind::cpu, 1};
    if (conv_shapes(p)) all.insert(geometry(p));
  }
  return all;
}

Tape network(const std::string& name) {
  if (name == "cosmoflow") return training_tape(CosmoflowOptions{});
  ClimateOptions o;
  o.model.model = name == "deepcam"   ? ClimateModel::deepcam
                  : name == "deeplab" ? ClimateModel::deeplab
                                      : ClimateModel::tiramisu;
  return training_tape(o);
}

}  // namespace

TEST_CASE("the problem files hold every convolution of the networks once, and no other", "[bench]") {
  for (const char* name : {"cosmoflow", "deeplab", "deepcam", "tiramisu"}) {
    std::set<std::string> listed, names;
    for (const ConvString& c : file_strings(name)) {
      INFO(name << " " << c.name);
      CHECK(listed.insert(geometry(c.problem(Pass::forward, DType::f32))).second);
      CHECK(names.insert(c.name).second);
      for (Pass pass : {Pass::backward_data, Pass::backward_weights})
        CHECK(listed.count(geometry(c.problem(pass, DType::f32))));
    }
    const std::set<std::string> recorded = geometries(network(name));
    for (const std::string& text : recorded) {
      INFO(name << " lacks " << text);
      CHECK(listed.count(text));
    }
    for (const std::string& text : listed) {
      INFO(name << " has no " << text);
      CHECK(recorded.count(text));
    }
  }
}

TEST_CASE("every shipped problem file counts the published work", "[bench]") {
  const auto forward_gflop = [](const std::string& name) {
    double total = 0;
    for (const ConvString& c : file_strings(name)) total += double(c.problem(Pass::forward, DType::f32).flops()) * 1e-9;
    return total;
  };
  CHECK(forward_gflop("cosmoflow") == Approx(68.85).epsilon(0.001));  // five convolutions, each once
  // Each distinct layer once: the two full-resolution layers alone are 1565.5 + 1043.7 GFLOP.
  CHECK(forward_gflop("deeplab") > 2609);
  CHECK(forward_gflop("deepcam") > 150);
  CHECK(forward_gflop("tiramisu") > 500);
}

TEST_CASE("texts of problems bring their updated states, or have them added", "[bench]") {
  const std::string w = "f32:8x1x3x3x4", step = "f64:1x1x1x1x8", scale = "f64:1x1x1x1x4", flag = "f32:1x1x1x1x1";
  const std::string common = " in=" + w + "|" + step + "|" + scale + "|" + flag + "|" + w + "|" + w;
  for (const auto& [text, states] : {std::pair<std::string, size_t>{"sgd_update{}" + common, 2},
                                     {"adam_update{}" + common + "|" + w, 3},
                                     {"loss_scale_update{} in=" + flag + "|" + scale, 1}}) {
    const Problem p = Problem::parse(text);
    INFO(text);
    REQUIRE(p.out.size() == states);
    CHECK(p.out.back() == p.in.back());
    CHECK(Problem::parse(p.text()).text() == p.text());
    CHECK_THROWS_WITH(Problem::parse(text + " out="),
                      Catch::Contains("expected out=") && Catch::Contains("found out="));
  }
}

TEST_CASE("texts that no kernel may be given are refused", "[bench]") {
  const std::string conv = "conv_forward{pad_low=0,1,1;pad_high=0,1,1} in=f32:1x1x8x8x4|f32:16x1x3x3x4";
  CHECK(Problem::parse(conv).out[0].shape == Shape(1, 1, 8, 8, 16));
  // The output may be a slice, of the op's own shape and type.
  CHECK(Problem::parse(conv + " out=f32:1x1x8x8x16@2048,2048,256,32").out[0].stride[3] == 32);
  const std::string zero = "expected extents of 1 or more, found result_size ";
  const std::pair<std::string, std::string> refused[]{
      {conv + " out=", "expected out=f32:1x1x8x8x16, found out="},
      {conv + " out=f32:1x1x8x8x17", "found out=f32:1x1x8x8x17"},
      {conv + " out=bf16:1x1x8x8x16", "found out=bf16:1x1x8x8x16"},
      {conv + " out=f32:1x1x8x8x16|f32:1x1x8x8x16", "found out="},
      {conv + " out=f32:1x1x8x8x16@-6400,2048,256,32", "found -6400 along N"},
      {conv + " out=f32:1x1x8x8x16@2048,2048,256,8", "found 8 along W"},
      {conv + " out=f32:1x1x8x8x16@2048,2048,100,32", "found 100 along H"},
      {conv + " threads=0", "threads: expected 1 or more, found 0"},
      {"add{} in=f32:1x0x8x8x4|f32:1x0x8x8x4", "expected extents of 1 to"},
      {"add{} in=f32:1x1x8x8x-4|f32:1x1x8x8x-4", "expected extents of 1 to"},
      {"activation{} in=f32:1048576x1048576x1x1x4", "expected at most 274877906944 elements"},
      {"activation{} in=f32:1x1x2x2x4@99999999999999,99999999999999,99999999999999,4", "at most 274877906944"},
      {"conv_forward{stride=1,99999999999,1} in=f32:1x1x8x8x4|f32:16x1x3x3x4", "stride: expected 0 to 16777216"},
      {"conv_forward{groups=99999999999} in=f32:1x1x8x8x4|f32:16x1x3x3x4", "groups: expected"},
      {"conv_forward{} in=f32:1x1x4194304x1024x16|f32:4194304x1x1x1024x16", "expected"},
      {"conv_forward{pad_low=16777216,16777216,0;pad_high=0,0,16777216} in=f32:1x1x1x1x1|f32:1x1x1x1x1",
       "pad_high: expected results of fewer than 2^55 elements"},
      {"pad_channels{size=1099511627776} in=f32:1x1x524288x524288x1", "size: expected results of fewer than 2^55"},
      // Padding alone would make up for a result without positions.
      {"conv_backward_data{pad_low=1,0,0;result_size=0,1,1} in=f32:1x1x1x1x16|f32:16x1x1x1x16", zero + "0,1,1"},
      {"conv_backward_weights{result_size=0,1,1} in=f32:1x1x4x4x16|f32:1x2x4x4x16", zero + "0,1,1"},
      {"max_pool_backward{kernel=1,2,2;stride=1,2,2;pad_low=0,1,0;pad_high=0,1,0;result_size=1,0,2} "
       "in=f32:1x1x1x1x4|u8:1x1x1x1x4",
       zero + "1,0,2"},
      {"avg_pool_backward{kernel=1,2,2;pad_low=0,1,0;pad_high=0,1,0;result_size=1,0,2} in=f32:1x1x1x1x4", zero},
      {"dense_backward_data{result_size=0,1,1} in=f32:1x1x1x1x8|f32:8x1x1x1x4", zero + "0,1,1"},
      {"dense_forward{} in=f32:1x1x1x1x4|f32:8x1x2x1x4", "weights 8x1x2x1x4: expected a depth, height and width of 1"},
      {"dense_backward_data{result_size=1,1,1} in=f32:1x1x2x1x8|f32:8x1x1x1x4", "gradient 1x1x2x1x8: expected"},
      {"dense_backward_weights{} in=f32:1x1x1x1x4|f32:1x2x1x1x8", "gradient 1x2x1x1x8: expected"},
      {"sgd_update{} in=f32:1x1x1x1x4", "expects 6 inputs, found 1"}};
  for (const auto& [text, message] : refused) {
    INFO(text);
    CHECK_THROWS_WITH(Problem::parse(text), Catch::Contains(message));
  }
}
