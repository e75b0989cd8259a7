// T0, T1 and T3 over every convolution of bench/problems at reduced spatial size with all its channels, and at
// a larger one with few.
#include <algorithm>
#include <fstream>
#include <map>

#include "bench/problem_strings.h"
#include "bench/reduce.h"
#include "kernels/simd/cpu.h"
#include "tests/adjoint.h"
#include "tests/catch.hpp"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::bench;
using namespace convoy::testing;

namespace {

/// Distinct problems of a file: three passes in f32, and all types where channels are few enough for the reference.
/// Kernels that want many tiles get them with few channels.
std::vector<Problem> file_problems(const std::string& name) {
  std::ifstream file(std::string(CONVOY_SOURCE_DIR) + "/bench/problems/" + name + ".txt");
  REQUIRE(file);
  std::map<std::string, Problem> unique;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    const ConvString conv = parse_conv_string(line);
    for (DType type : storage_types)
      for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
        const bool large = conv.weights.elements() > 300'000;
        const int64_t positions = !large ? 4 : type == DType::f16 ? 1 : 2;  // along an axis
        Problem p = *reduced(conv.problem(pass, type), {positions, int64_t{1} << 40});
        Problem many = *reduced(conv.problem(pass, type), {conv.src.d() > 1 ? 24 : 48, 16});
        p.threads = many.threads = 2;
        unique.emplace(p.text(), p);
        if (conv.attrs.groups != 1 || conv.weights.h() > 5 || conv.weights.w() == 1) continue;
        unique.emplace(many.text(), many);
        // 3x3 weight gradients take tiles of six outputs from 64 channels on.
        const bool three = conv.weights.w() == 3 && std::min(conv.weights.n(), conv.weights.c()) >= 64;
        if (pass == Pass::backward_weights && type == DType::f32 && conv.src.d() == 1 && three) {
          Problem wide = *reduced(conv.problem(pass, type), {24, 64});
          wide.threads = 2;
          unique.emplace(wide.text(), wide);
        }
      }
  }
  std::vector<Problem> list;
  for (auto& [text, p] : unique) list.push_back(p);
  return list;
}

}  // namespace

TEST_CASE("the problem files reach the kernels that want many tiles", "[kernels][files]") {
  if (!cpu_features().avx2) return;
  for (const char* name : {"cosmoflow", "deeplab", "deepcam", "tiramisu"}) {
    std::map<OpKind, int> taken, by_six;
    int strided_weights = 0;
    for (const Problem& p : file_problems(name))
      for (const Kernel* kernel : kernels_under_test())
        if (kernel->name().starts_with("winograd") && kernel->supports(p).ok) {
          ++taken[p.op.kind];
          by_six[p.op.kind] += kernel->name().starts_with("winograd6");
          strided_weights += p.op.kind == OpKind::conv_backward_weights && p.op.as<ConvAttrs>().stride[2] == 2;
        }
    INFO(name);
    if (name != std::string("cosmoflow")) CHECK(strided_weights > 0);
    for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_weights}) {
      CHECK(taken[kind] > 0);
      const bool volumes = name == std::string("cosmoflow");
      CHECK((by_six[kind] > 0) == (!volumes || kind != OpKind::conv_backward_weights));
    }
  }
}
TEST_CASE("every kernel on the convolutions of CosmoFlow", "[kernels][files]") {
  check_all(file_problems("cosmoflow"));
}
TEST_CASE("every kernel on the convolutions of DeepLabv3+", "[kernels][files]") {
  check_all(file_problems("deeplab"));
}
TEST_CASE("every kernel on the convolutions of DeepCAM", "[kernels][files]") {
  check_all(file_problems("deepcam"));
}
TEST_CASE("every kernel on the convolutions of Tiramisu", "[kernels][files]") {
  check_all(file_problems("tiramisu"));
}

TEST_CASE("adjoint identity of every layer of the problem files at its own size", "[.][layers]") {
  // Minutes for a network and a type: test_problem_files "[layers]" -c cosmoflow -c f32.
  for (const char* name : {"cosmoflow", "deepcam", "deeplab", "tiramisu"})
    SECTION(name) for (DType type : storage_types) SECTION(std::string(name_of(type))) {
      std::ifstream file(CONVOY_SOURCE_DIR "/bench/problems/" + std::string(name) + ".txt");
      REQUIRE(file);
      for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') continue;
        const ConvString conv = parse_conv_string(line);
        const Problem forward = conv.problem(Pass::backward_weights, type);
        const Shape &x = forward.in[0].shape, &w = forward.out[0].shape;
        ConvAttrs a = forward.op.as<ConvAttrs>();
        a.result_size = {0, 0, 0};
        Adjoint adjoint(x, w.n(), spatial(w), a, type);
        for (const std::string& kernel : adjoint.names())
          if (kernel != "widened") adjoint.check(kernel);
      }
    }
}
