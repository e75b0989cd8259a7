// The climate networks against PyTorch (tests/golden/make_climate.py): gradients of every parameter; of a narrow
// DeepCAM also losses while it trains and what is evaluated behind that. Weights, images and labels come from a hash of
// name and position on both sides.
#include <algorithm>
#include <cmath>
#include <map>

#include "io/safetensors.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/hash_numbers.h"
#include "tests/kernel_tiers.h"

using namespace convoy;
using convoy::testing::hash_number;

namespace {

constexpr int steps = testing::sanitized ? 2 : 10;  // the references in f64 are slow there

/// A parameter's values in PyTorch's order.
std::vector<double> in_torch_order(const std::string& name, const Tensor& p) {
  const NamedArray array = to_torch(name, p);
  const auto count = static_cast<size_t>(p.shape().elements());
  if (array.dtype == DType::f64) {
    const auto* values = reinterpret_cast<const double*>(array.data.data());
    return {values, values + count};
  }
  const auto* values = reinterpret_cast<const float*>(array.data.data());
  return {values, values + count};
}

ClimateOptions options(ClimateModel model, int64_t height, int64_t width, DType type) {
  ClimateOptions o;
  o.model.model = model;
  o.model.height = height, o.model.width = width;
  if (model == ClimateModel::deepcam) o.model.width_divisor = 8;
  if (model == ClimateModel::tiramisu) o.model.blocks = {2, 3}, o.model.growth = 8, o.model.first_filters = 16;
  o.batch = 2;
  o.compute = o.input_type = type;
  o.plan.threads = 2;
  const auto weight = [](double frequency) { return std::pow(frequency, -0.125); };
  o.loss.weights = {weight(0.986267818), weight(0.00045787089), weight(0.01327431072)};
  return o;
}

/// The program at PyTorch's first weights.
Program at_start(const ClimateOptions& o, double rate) {
  Program program(plan_program(o, kernel_list()), o, 1);
  for (const std::string& name : program.parameters()) {
    const Tensor& p = program.store().get(name);
    NamedArray array{name, DType::f32, to_torch(name, p).shape, {}};
    int64_t fan_in = 1;
    for (size_t i = 1; i < array.shape.size(); ++i) fan_in *= array.shape[i];
    const bool vector = array.shape.size() == 1;
    const uint64_t hash = hash_name(name);
    std::vector<float> values;
    for (int64_t i = 0; i < p.shape().elements(); ++i) {
      const float u = hash_number(hash, i);
      values.push_back(vector ? 0.1f * u + (name.ends_with(".weight") ? 1.0f : 0.0f)
                              : u * float(std::sqrt(6.0 / double(fan_in))));
    }
    if (name.ends_with(".bn3.weight"))  // small residuals: with large ones the loss surface is too rough for f32
      for (float& v : values) v *= 0.1f;
    const auto bytes = std::as_bytes(std::span(values));
    array.data.assign(bytes.begin(), bytes.end());
    from_torch(array, p, "golden");
  }
  program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = rate;
  return program;
}

/// Images `first` and following.
void feed(Executor& e, int64_t first) {
  const Tensor x = e.tensor("x"), target = e.tensor("target");
  const int64_t pixels = target.shape().elements(), before = first * pixels / target.shape().n();
  for_each_index(x.shape(), [&, hash = hash_name("x"), i = before * x.shape().c()](auto... at) mutable {
    x.set(at..., double(hash_number(hash, i++)));
  });
  const uint64_t labels = hash_name("labels");
  for (int64_t i = 0; i < pixels; ++i) {
    const float u = hash_number(labels, before + i);
    target.data<uint8_t>()[i] = static_cast<uint8_t>((u > 0.8f) + (u > 0.98f));
  }
}

std::vector<double> losses_of(Program& program) {
  std::vector<double> losses;
  for (int s = 0; s < steps; ++s) {
    feed(program.step(), 0);
    program.store().get(step_state_name).data<double>()[int(StepField::step)] = s;
    program.step().run();
    losses.push_back(program.step().tensor("loss").at(0, 0, 0, 0, 0));
  }
  return losses;
}

class Golden {
 public:
  explicit Golden(const std::string& model) {
    for (NamedArray& a : read_safetensors(CONVOY_SOURCE_DIR "/tests/golden/" + model + "_small.safetensors"))
      arrays_.emplace(a.name, std::move(a));
  }
  std::vector<double> numbers(const std::string& name) const {
    const NamedArray& a = arrays_.at(name);
    const auto* values = reinterpret_cast<const float*>(a.data.data());
    return {values, values + a.shape.at(0)};
  }

 private:
  std::map<std::string, NamedArray> arrays_;
};

void check_curve(Program& program, const std::vector<double>& expected, double bound) {
  CHECK(expected[9] < 0.8 * expected[0]);
  const std::vector<double> losses = losses_of(program);
  for (size_t s = 0; s < losses.size(); ++s) {
    INFO("step " << s);
    CHECK(losses[s] == Approx(expected[s]).epsilon(bound));
  }
}

bool large_tiles(const PlannedNode& node) {
  return node.kernel.starts_with("winograd6");
}

/// Sum of the values, in PyTorch's order, times fixed numbers.
double projection(const std::string& name, const std::vector<double>& values) {
  const uint64_t hash = hash_name("projection." + name);
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * double(hash_number(hash, static_cast<int64_t>(i)));
  return sum;
}

}  // namespace

TEST_CASE("ten steps of DeepCAM, and what is evaluated then, follow PyTorch in f64", "[golden][climate]") {
  const Golden golden("deepcam");
  Program program = at_start(options(ClimateModel::deepcam, 32, 64, DType::f64), 0.01);
  check_curve(program, golden.numbers("losses"), 1e-6);
  if (steps < 10) return;
  const std::vector<double> expected = golden.numbers("statistics");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : program.store().entries())
    if (name.ends_with(".running_mean") || name.ends_with(".running_var")) names.push_back(name);
  std::sort(names.begin(), names.end());
  REQUIRE(names.size() == expected.size());
  for (size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    CHECK(projection(names[i], in_torch_order(names[i], program.store().get(names[i]))) ==
          Approx(expected[i]).epsilon(1e-5).margin(1e-6));
  }
  Executor& e = program.evaluate();
  e.refresh();
  double loss = 0;
  for (int64_t i = 0; i < 2; ++i) {
    feed(e, i);
    e.run();
    loss += e.tensor("loss").at(0, 0, 0, 0, 0) / 2;
  }
  CHECK(loss == Approx(golden.numbers("evaluated_loss")[0]).epsilon(1e-5));
}

TEST_CASE("ten steps of Adam and AdamW with decay follow PyTorch", "[golden][climate]") {
  ClimateOptions o = options(ClimateModel::deepcam, 32, 64, DType::f64);
  o.training.optimizer = OptimizerKind::adam;
  const bool coupled = GENERATE(false, true);
  if (coupled && testing::sanitized) return;  // the same kernel
  o.training.adam = {.epsilon = 1e-6};
  (coupled ? o.training.adam.l2 : o.training.adam.weight_decay) = 0.1;
  Program program = at_start(o, 0.001);
  check_curve(program, Golden("deepcam").numbers(coupled ? "adam_losses" : "adam_w_losses"), 1e-6);
}

TEST_CASE("ten steps of DeepCAM follow PyTorch in f32", "[golden][climate]") {
  if (testing::sanitized) {  // its first steps on an image that these can run; large tiles are the Tiramisu's
    Program program = at_start(options(ClimateModel::deepcam, 32, 64, DType::f32), 0.01);
    check_curve(program, Golden("deepcam").numbers("losses"), 1e-4);
    return;
  }
  // ReLUs behind 76 batch norms amplify rounding; images large enough for smooth statistics keep it small.
  const ClimateOptions o = options(ClimateModel::deepcam, 256, 256, DType::f32);
  const std::vector<PlannedNode> nodes = plan_program(o, kernel_list()).step.nodes;
  // The decoder's second convolution forward and backward: Winograd's largest tiles are held to the curve, too.
  if (cpu_features().avx2) CHECK(std::count_if(nodes.begin(), nodes.end(), large_tiles) >= 2);
  Program program = at_start(o, 0.0065);
  check_curve(program, Golden("deepcam").numbers("f32_losses"), 2e-4);
}

TEST_CASE("ten steps of Tiramisu with Winograd's largest tiles follow plain sums", "[golden][climate]") {
  if (!cpu_features().avx2) return;
  ClimateOptions o = options(ClimateModel::tiramisu, 48, 96, DType::f32);
  o.model.growth = 16, o.model.blocks = {2, 2};
  std::vector<double> curves[2];
  for (const bool winograd : {false, true}) {
    o.plan.selection.excluded = winograd ? std::vector<std::string>{} : std::vector<std::string>{"winograd"};
    const std::vector<PlannedNode> nodes = plan_program(o, kernel_list()).step.nodes;
    const auto large = std::count_if(nodes.begin(), nodes.end(), large_tiles);
    CHECK((winograd ? large >= 6 : large == 0));
    Program program = at_start(o, 0.01);
    curves[winograd] = losses_of(program);
  }
  for (size_t s = 0; s < curves[0].size(); ++s) {
    INFO("step " << s);
    CHECK(curves[1][s] == Approx(curves[0][s]).epsilon(1e-5));
  }
  if (steps == 10) CHECK(curves[0][9] < 0.8 * curves[0][0]);
}

namespace {

/// Gradients of every parameter against PyTorch's, as norms and projections within `bound`.
void check_gradients(const std::string& name, ClimateOptions o, double bound) {
  const Golden golden(name);
  o.training.sgd.momentum = 0;
  constexpr double rate = -16384;  // (w - start)/-rate = gradient, whose digits w would swallow with a rate of 1
  Program program = at_start(o, rate);
  std::map<std::string, std::vector<double>> before;
  std::vector<std::string> names = program.parameters();
  std::sort(names.begin(), names.end());
  for (const std::string& parameter : names)
    before[parameter] = in_torch_order(parameter, program.store().get(parameter));
  feed(program.step(), 0);
  program.step().run();
  const std::vector<double> norms = golden.numbers("norms"), projections = golden.numbers("projections");
  REQUIRE(names.size() == norms.size());
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<double> gradient = in_torch_order(names[i], program.store().get(names[i]));
    double squares = 0;
    const std::vector<double>& start = before.at(names[i]);
    for (size_t k = 0; k < gradient.size(); ++k) {
      gradient[k] = (gradient[k] - start[k]) / -rate;
      squares += gradient[k] * gradient[k];
    }
    INFO(name << " " << names[i] << " gradient norm " << norms[i]);
    // A bias ahead of a batch norm has gradient 0 but for rounding.
    const double zero = norms[i] < 1e-9 ? 1e-9 : 0;
    CHECK(std::sqrt(squares) == Approx(norms[i]).epsilon(bound).margin(zero));
    CHECK(projection(names[i], gradient) == Approx(projections[i]).epsilon(bound).margin(bound * norms[i] + zero));
  }
}

}  // namespace

TEST_CASE("gradients of every parameter equal PyTorch's", "[golden][climate]") {
  struct Net {
    const char* name;
    ClimateModel model;
    int64_t height, width;
    void (*change)(ClimateConfig&);
  };
  const auto as_it_is = [](ClimateConfig&) {};
  const Net net = GENERATE_COPY(
      Net{"deepcam", ClimateModel::deepcam, 32, 320, as_it_is}, Net{"deeplab", ClimateModel::deeplab, 8, 16, as_it_is},
      Net{"tiramisu", ClimateModel::tiramisu, 16, 32, as_it_is},
      Net{"deepcam_fine", ClimateModel::deepcam, 16, 32,
          [](ClimateConfig& c) { c.output_stride = 8, c.low_level_relu = false; }},
      Net{"deeplab_bilinear", ClimateModel::deeplab, 8, 16, [](ClimateConfig& c) { c.decoder = Decoder::bilinear; }},
      Net{"deeplab_deconv", ClimateModel::deeplab, 8, 16, [](ClimateConfig& c) { c.decoder = Decoder::deconv; }});
  if (steps < 10 && net.model == ClimateModel::deeplab) return;  // its channels cannot be thinned out
  ClimateOptions o = options(net.model, net.height, net.width, DType::f64);
  net.change(o.model);
  check_gradients(net.name, o, 1e-6);
}

TEST_CASE("gradients of DeepLab's wide dilations equal PyTorch's, by fast kernels", "[golden][climate]") {
  if (steps < 10) return;
  ClimateOptions o = options(ClimateModel::deeplab, 16, 384, DType::f32);
  o.model.batch_norm = false;
  check_gradients("deeplab_wide", o,
                  2e-3);  // f64 stays within 1e-5; f32 leaves 1.1e-3
}
