// T0, T1 and T3 over every convolution of bench/problems at reduced spatial size, with all its channels.
#include <fstream>
#include <map>

#include "bench/check.h"
#include "bench/problem_strings.h"
#include "tests/catch.hpp"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::bench;
using namespace convoy::testing;

namespace {

/// Distinct problems of a file: three passes in f32, and all types where channels are few enough for the reference.
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
        if (large && type == DType::f16) continue;
        Problem p = *reduced(conv.problem(pass, type), {large ? 2 : 4, int64_t{1} << 40});
        p.threads = 2;
        unique.emplace(p.text(), p);
      }
  }
  std::vector<Problem> list;
  for (auto& [text, p] : unique) list.push_back(p);
  return list;
}

}  // namespace

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
