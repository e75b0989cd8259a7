// Losses and gradients of a narrow DeepCAM against PyTorch (tests/golden/make_deepcam.py). Weights and images come from
// a hash of name and position on both sides.
#include <algorithm>
#include <cmath>
#include <map>

#include "core/philox.h"
#include "io/safetensors.h"
#include "kernels/kernel_list.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int steps = 2;  // the references in f64 are slow there
#else
constexpr int steps = 10;
#endif

/// Uniform in [-1, 1): murmur's finaliser of position plus the name's hash.
float number(const std::string& name, int64_t i) {
  auto h = static_cast<uint32_t>(static_cast<uint64_t>(i) + (hash_name(name) & 0xffffffffu));
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h ^= h >> 16;
  return float(double(h) / 2147483648.0 - 1);
}

/// A parameter's values in PyTorch's order.
std::vector<double> in_torch_order(const std::string& name, const Tensor& p) {
  const NamedArray array = to_torch(name, p);
  std::vector<double> values;
  for (int64_t i = 0; i < p.shape().elements(); ++i)
    values.push_back(array.dtype == DType::f64 ? reinterpret_cast<const double*>(array.data.data())[i]
                                               : double(reinterpret_cast<const float*>(array.data.data())[i]));
  return values;
}

ClimateOptions options() {
  ClimateOptions o;
  o.model.width_divisor = 8;
  o.model.height = 32, o.model.width = 64;
  o.batch = 2;
  o.plan.threads = 2;
  const auto weight = [](double frequency) { return std::pow(frequency, -0.125); };
  o.loss.weights = {weight(0.986267818), weight(0.0004578519), weight(0.0132743299)};
  return o;
}

void start(Program& program) {
  for (const std::string& name : program.parameters()) {
    const Tensor& p = program.store().get(name);
    NamedArray array{name, DType::f32, to_torch(name, p).shape, {}};
    int64_t fan_in = 1;
    for (size_t i = 1; i < array.shape.size(); ++i) fan_in *= array.shape[i];
    const bool vector = array.shape.size() == 1;
    std::vector<float> values;
    for (int64_t i = 0; i < p.shape().elements(); ++i) {
      const float u = number(name, i);
      values.push_back(vector ? 0.1f * u + (name.ends_with(".weight") ? 1.0f : 0.0f)
                              : u * float(std::sqrt(6.0 / double(fan_in))));
    }
    if (name.ends_with(".bn3.weight"))  // small residuals: with large ones the loss surface is too rough for f32
      for (float& v : values) v *= 0.1f;
    const auto bytes = std::as_bytes(std::span(values));
    array.data.assign(bytes.begin(), bytes.end());
    from_torch(array, p, "golden");
  }
}

void feed(Executor& e, const NamedArray& labels) {
  const Tensor x = e.tensor("x");
  for_each_index(x.shape(), [&, i = int64_t{0}](auto... at) mutable { x.set(at..., double(number("x", i++))); });
  std::copy(labels.data.begin(), labels.data.end(), e.tensor("target").bytes());
}

std::map<std::string, NamedArray> golden() {
  std::map<std::string, NamedArray> arrays;
  for (NamedArray& a : read_safetensors(CONVOY_SOURCE_DIR "/tests/golden/deepcam_small.safetensors"))
    arrays.emplace(a.name, std::move(a));
  return arrays;
}

const float* numbers_of(const NamedArray& a) {
  return reinterpret_cast<const float*>(a.data.data());
}

}  // namespace

TEST_CASE("ten steps of DeepCAM follow PyTorch", "[golden][climate]") {
  // In f64 to the digits stored; in f32 as far as rounding lets any two programs agree: ReLUs behind 76 batch norms
  // amplify it step by step.
  const auto g = golden();
  const float* expected = numbers_of(g.at("losses"));
  CHECK(expected[9] < 0.8f * expected[0]);
  for (const DType type : {DType::f64, DType::f32}) {
    ClimateOptions o = options();
    o.compute = o.input_type = type;
    Program program(plan_program(o, kernel_list()), o, 1);
    start(program);
    program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = 0.01;
    for (int s = 0; s < steps; ++s) {
      feed(program.step(), g.at("labels"));
      program.step().run();
      const double bound = type == DType::f64 ? 1e-6 : s < 2 ? 2e-4 : 2e-2;
      CHECK(program.step().tensor("loss").at(0, 0, 0, 0, 0) == Approx(double(expected[s])).epsilon(bound));
    }
  }
}

TEST_CASE("gradients of every parameter of DeepCAM equal PyTorch's", "[golden][climate]") {
  const auto g = golden();
  ClimateOptions o = options();
  o.compute = o.input_type = DType::f64;
  o.training.sgd.momentum = 0;
  Program program(plan_program(o, kernel_list()), o, 1);
  start(program);
  std::map<std::string, std::vector<double>> before;
  std::vector<std::string> names = program.parameters();
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) before[name] = in_torch_order(name, program.store().get(name));
  program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = -1;  // w - start = gradient
  feed(program.step(), g.at("labels"));
  program.step().run();
  REQUIRE(static_cast<int64_t>(names.size()) == g.at("norms").shape.at(0));
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<double> after = in_torch_order(names[i], program.store().get(names[i]));
    double product = 0, squares = 0;
    for (size_t k = 0; k < after.size(); ++k) {
      const double gradient = after[k] - before.at(names[i])[k];
      product += gradient * double(number("projection." + names[i], static_cast<int64_t>(k)));
      squares += gradient * gradient;
    }
    const double norm = double(numbers_of(g.at("norms"))[i]);  // stored in f32
    INFO(names[i] << " gradient norm " << norm);
    CHECK(std::sqrt(squares) == Approx(norm).epsilon(1e-6));
    CHECK(product == Approx(double(numbers_of(g.at("projections"))[i])).epsilon(1e-6).margin(1e-6 * norm));
  }
}
