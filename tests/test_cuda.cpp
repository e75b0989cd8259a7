// Every CUDA kernel against the references and against plain kernels of the device at full size; whole steps against
// the CPU. Without a device everything here is skipped, and says so.
#include <set>

#include "core/conv_shapes.h"
#include "kernels/device/device.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/device_check.h"
#include "tests/device_run.h"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

constexpr double rate = 0.0002, climate_rate = 0.00003;

/// Convolutions, alone, into a pool and from a pooled gradient, whose tiles reach over every side.
std::vector<Problem> pooled_problems(DType type) {
  struct Case {
    Shape x;
    int64_t k;
    Int3 low, high;
  };
  const std::vector<Case> cases{
      {{2, 6, 10, 22, 4}, 32, {1, 1, 1}, {1, 1, 1}},  {{1, 5, 7, 38, 4}, 32, {1, 0, 1}, {1, 1, 1}},
      {{1, 4, 6, 18, 32}, 64, {1, 1, 1}, {1, 1, 1}},  {{2, 7, 9, 11, 64}, 32, {1, 0, 1}, {1, 1, 0}},
      {{1, 6, 8, 8, 96}, 128, {1, 1, 1}, {1, 1, 1}},  {{3, 4, 4, 4, 32}, 64, {0, 1, 2}, {2, 1, 0}},
      {{2, 6, 10, 12, 64}, 32, {1, 1, 1}, {1, 1, 1}}, {{3, 4, 4, 4, 32}, 64, {1, 1, 1}, {1, 1, 1}},
      {{1, 2, 2, 2, 64}, 64, {1, 1, 1}, {1, 1, 1}}};
  std::vector<Problem> list;
  const DType wide = accumulation_type(type);
  for (const Case& c : cases) {
    const ConvAttrs conv{.pad_low = c.low, .pad_high = c.high};
    const TensorDesc x(c.x, type), w({c.k, 3, 3, 3, c.x.c()}, type), bias(Shape::vector(c.k), wide);
    list.push_back(problem({OpKind::conv_forward, conv}, {x, w, bias}));
    const Shape y = list.back().out[0].shape;
    ConvAttrs data = conv;
    data.result_size = {c.x.d(), c.x.h(), c.x.w()};
    list.push_back(problem({OpKind::conv_backward_data, data}, {TensorDesc(y, type), w}));
    list.push_back(problem({OpKind::conv_backward_data, data},
                           {TensorDesc(y, type), w, TensorDesc(Shape::vector(c.x.c()), wide)}));
    ConvPoolAttrs pooled{conv, {{.slope = 0.25}, {}}};
    list.push_back(problem({OpKind::conv_pool_forward, pooled}, {x, w, bias}));
    list.push_back(problem({OpKind::conv_pool_forward, pooled}, {x, w}));
    const std::vector<TensorDesc> out = list.back().out;
    pooled.pool.pool.result_size = spatial(y);
    pooled.conv.result_size = {3, 3, 3};
    list.push_back(problem({OpKind::conv_pool_backward_weights, pooled}, {x, out[0], out[0], out[1]}));
    pooled.conv.result_size = {c.x.d(), c.x.h(), c.x.w()};
    list.push_back(problem({OpKind::conv_pool_backward_data, pooled}, {out[0], out[0], out[1], w}));
  }
  return list;
}

/// All kernels that take an op on the device against its definition in plain kernels, bit by bit. Integers: every sum
/// is exact in f32, whatever its order; roundings are not.
void check_bits_of_definition(Device& device, const Problem& host) {
  const Problem p = on_cuda(host);
  std::optional<Run> expected;
  for (const auto& kernel : kernel_list()) {
    if (!on_device(*kernel) || kernel->name() == "cuda_plain" || !kernel->supports(p).ok) continue;
    if (!expected) {
      expected = make_run(host, Fill::integers, 7);
      execute_definition_on_device(device, p, *expected);
    }
    Run run = make_run(host, Fill::integers, 7);
    execute_on_device(device, *kernel, p, run);
    for (size_t i = 0; i < p.out.size(); ++i) {
      INFO(kernel->name() << " " << p.text() << " output " << i);
      CHECK(same_bits(run.out[i], expected->out[i]));
    }
  }
}

/// The same, of problems that both tensor-core kernels should take.
void check_bits_on_tensor_cores(Device& device, const Problem& host) {
  check_bits_of_definition(device, host);
  for (const char* name : {"cuda_mma", "cuda_wgmma"}) check_taken(name, host);
}

template <class Options>
Program make_program(const Options& o, const std::shared_ptr<Device>& device, uint64_t seed) {
  Options with = o;
  with.plan.device = device ? DeviceKind::cuda : DeviceKind::cpu;
  ProgramPlans plans = plan_program(with, kernel_list());
  if (device) return Program(std::move(plans), with, seed, device);
  return Program(std::move(plans), with, seed);
}

void fill(Executor& e, uint64_t seed) {
  const PhiloxStream random(seed, 1);
  const Tensor x = e.tensor("x"), target = e.tensor("target");
  for (int64_t i = 0; i < x.shape().elements(); ++i)
    if (x.dtype() == DType::i16)
      x.data<int16_t>()[i] = static_cast<int16_t>(random.below(static_cast<uint64_t>(i), 4));
    else
      x.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
  for (int64_t i = 0; i < target.shape().elements(); ++i)
    if (target.dtype() == DType::u8)
      target.data<uint8_t>()[i] = static_cast<uint8_t>(i / 7 % 3);
    else
      target.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
}

std::vector<double> losses(Program& program, int steps, double rate, bool eager) {
  program.step().set_eager(eager);
  double* state = program.store().get(step_state_name).data<double>();
  std::vector<double> all;
  for (int s = 0; s < steps; ++s) {
    state[int(StepField::learning_rate)] = rate * (1 + s % 2), state[int(StepField::step)] = s;
    const int64_t passes = program.options().training.accumulation;
    for (int64_t pass = 0; pass + 1 < passes; ++pass) {
      state[int(StepField::micro_step)] = double(pass);
      fill(*program.micro(), 4 + static_cast<uint64_t>(pass));
      program.micro()->run();
    }
    state[int(StepField::micro_step)] = double(passes - 1);
    fill(program.step(), 3);  // the same sample, so that the loss falls
    program.step().run();
    all.push_back(double(program.step().tensor("loss").data<float>()[0]));
  }
  return all;
}

double norm(const Tensor& t) {
  double squares = 0;
  for (double v : values(t)) squares += v * v;
  return std::sqrt(squares);
}
/// Norm of the difference, relative to the norm of what is expected and `floor`.
double difference(const Tensor& found, const Tensor& expected, double floor) {
  double squares = 0;
  const auto a = values(found), b = values(expected);
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(a[i] - b[i], 2);
  return std::sqrt(squares) / (norm(expected) + floor);
}

/// Without dropout, which would turn roundings into different losses, and without transforms on the CPU.
CosmoflowOptions small_step(DType compute) {
  CosmoflowOptions o;
  o.model.size = 32;
  o.model.dropout = 0;
  o.plan.selection.excluded = {"winograd"};
  o.batch = 2;
  o.compute = compute;
  o.plan.threads = 2;
  return o;
}

}  // namespace

TEST_CASE("CUDA kernels on the problems of a small CosmoFlow step", "[cuda]") {
  const auto open = device();
  if (!open) return;
  CosmoflowConfig model;
  model.size = 16;
  for (DType type : storage_types) check_on_device(*open, model_problems(type, model, 2));
}

TEST_CASE("CUDA kernels on nasty convolutions and pools", "[cuda]") {
  const auto open = device();
  if (!open) return;
  for (DType type : storage_types) {
    check_on_device(*open, pooled_problems(type));
    check_on_device(*open, conv_problems(type));
    check_on_device(*open, other_problems(type));
  }
  std::string table;
  for (const auto& [name, count] : checked_problems()) table += "  " + name + " " + std::to_string(count) + "\n";
  WARN("problems checked:\n" << table);
}

// Alone, for memory checkers: a fault inside cuDNN is not one of ours.
TEST_CASE("cuDNN on nasty convolutions", "[cuda][cudnn]") {
  const auto open = device();
  if (!open) return;
  for (DType type : storage_types) {
    check_on_device(*open, pooled_problems(type), true);
    check_on_device(*open, conv_problems(type), true);
  }
}

TEST_CASE("CUDA kernels at full size give what plain ones give", "[cuda][full]") {
  const auto open = device();
  if (!open) return;
  CosmoflowConfig model;
  model.slope = 0.25;  // exact in every type
  for (DType type : {DType::bf16, DType::f16, DType::f32})
    for (const Problem& host : model_problems(type, model, 1))
      if (conv_shapes(host)) check_bits_of_definition(*open, host);
}

TEST_CASE("a convolution into a pool, or from one, gives the bits of what it replaces", "[cuda]") {
  const auto open = device();
  if (!open) return;
  struct Case {
    Shape x;
    int64_t k;
    std::vector<double> slopes;
  };
  // The last makes a block of the warpgroup kernels take several tiles one after the other.
  const std::vector<double> many{0.3, 0.01, 0.97, 0.0, 1.0, 1.7};
  for (DType type : {DType::bf16, DType::f16})
    for (const Case& c : {Case{{2, 16, 16, 32, 4}, 32, many},
                          {{2, 8, 16, 16, 32}, 64, many},
                          {{1, 8, 8, 8, 256}, 128, many},
                          {{24, 8, 16, 16, 128}, 128, {0.3}}}) {
      ConvPoolAttrs pooled{{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}, {}};
      const TensorDesc x(c.x, type), w({c.k, 3, 3, 3, c.x.c()}, type), bias(Shape::vector(c.k), DType::f32);
      for (double slope : c.slopes) {
        pooled.pool.activation.slope = slope;
        check_bits_on_tensor_cores(*open, problem({OpKind::conv_pool_forward, pooled}, {x, w, bias}));
      }
      if (c.x.c() == 4) continue;
      const TensorDesc y({c.x.n(), c.x.d() / 2, c.x.h() / 2, c.x.w() / 2, c.k}, type), arg(y.shape, DType::u8);
      pooled.pool.activation.slope = 0.25;  // gradients stay exact behind it
      pooled.pool.pool.result_size = pooled.conv.result_size = {c.x.d(), c.x.h(), c.x.w()};
      check_bits_on_tensor_cores(*open, problem({OpKind::conv_pool_backward_data, pooled}, {y, y, arg, w}));
    }
}

TEST_CASE("twenty steps on a CUDA device follow those on the CPU", "[cuda]") {
  const auto open = device();
  if (!open) return;
  // Of the CPU's own narrow kernels: relative bands of the loss.
  const std::map<DType, double> bands{{DType::f32, 1e-4}, {DType::bf16, 0.04}, {DType::f16, 0.015}};
  for (const auto& [type, band] : bands) {
    const CosmoflowOptions o = small_step(type);
    Program cpu = make_program(o, nullptr, 5), cuda = make_program(o, open, 5);
    const std::vector<double> expected = losses(cpu, 20, rate, false), found = losses(cuda, 20, rate, false);
    INFO(name_of(type) << ": " << expected.front() << " to " << expected.back());
    CHECK(expected.back() < 0.8 * expected.front());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(band));
    cuda.to_host();
    for (const std::string& name : cuda.parameters()) {
      INFO(name);
      if (type == DType::f32) CHECK(difference(cuda.store().get(name), cpu.store().get(name), 1e-3) <= 1e-3);
    }
  }
}

TEST_CASE("optimizers on a CUDA device follow those on the CPU", "[cuda]") {
  const auto open = device();
  if (!open) return;
  TrainingOptions larc, adam, lamb;
  larc.sgd.larc = 0.002, larc.accumulation = 3;
  adam.optimizer = OptimizerKind::adam, adam.adam.larc = 0.002, adam.adam.weight_decay = 0.01, adam.accumulation = 2;
  lamb.optimizer = OptimizerKind::lamb;
  for (const auto& [training, rate] : {std::pair{larc, 0.001}, {adam, 0.00003}, {lamb, 0.0005}}) {
    CosmoflowOptions o = small_step(DType::f32);
    o.training = training;
    Program cpu = make_program(o, nullptr, 5), cuda = make_program(o, open, 5);
    const std::vector<double> expected = losses(cpu, 12, rate, false), found = losses(cuda, 12, rate, false);
    INFO(int(training.optimizer) << ": " << expected.front() << " to " << expected.back());
    CHECK(expected.back() < 0.95 * expected.front());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(2e-4));
  }
}

TEST_CASE("a zero flag leaves a CUDA device's parameters and moments as they were", "[cuda]") {
  const auto open = device();
  if (!open) return;
  for (const Problem& update : update_problems(9001)) {
    const Kernel* kernel = find_kernel("cuda", on_cuda(update));
    REQUIRE(kernel);
    check_zero_flag(*kernel, update,
                    [&](const Kernel& k, const Problem& p, Run& run) { execute_on_device(*open, k, on_cuda(p), run); });
  }
}

TEST_CASE("a variance that is no number stays one on a CUDA device", "[cuda]") {
  const auto open = device();
  if (!open) return;
  for (const Problem& p : nan_variance_problems()) {
    const Kernel* kernel = find_kernel("cuda", on_cuda(p));
    REQUIRE(kernel);
    check_nan_variance(
        *kernel, p, [&](const Kernel& k, const Problem& q, Run& run) { execute_on_device(*open, k, on_cuda(q), run); });
  }
}

TEST_CASE("a replayed step gives the bits of one that runs node by node", "[cuda]") {
  const auto open = device();
  if (!open) return;
  for (DType type : storage_types) {
    const CosmoflowOptions o = small_step(type);
    Program eager = make_program(o, open, 5), replayed = make_program(o, open, 5);
    CHECK(losses(eager, 6, rate, true) == losses(replayed, 6, rate, false));
    eager.to_host(), replayed.to_host();
    for (const std::string& name : eager.parameters())
      CHECK(same_bits(eager.store().get(name), replayed.store().get(name)));
  }
}

/// Every convolution, pool, resize and normalisation of the climate networks, on images that fit a test; all forms of
/// the networks in f32, one of each in bf16, one in f16: timing cuDNN's plans takes most of the time.
std::vector<std::pair<std::string, ClimateOptions>> climate_steps(DType compute) {
  std::vector<std::pair<std::string, ClimateOptions>> list;
  for (const auto& [name, model, batch_norm] : {std::tuple{"deepcam", ClimateModel::deepcam, true},
                                                {"deeplab", ClimateModel::deeplab, false},
                                                {"deeplab, batch norm", ClimateModel::deeplab, true},
                                                {"tiramisu", ClimateModel::tiramisu, false},
                                                {"tiramisu, batch norm", ClimateModel::tiramisu, true}}) {
    if (compute != DType::f32 && !batch_norm) continue;
    if (compute == DType::f16 && model != ClimateModel::deepcam) continue;
    ClimateOptions o;
    o.model.model = model, o.model.batch_norm = batch_norm;
    o.model.height = 64, o.model.width = 48;
    o.model.width_divisor = model == ClimateModel::deepcam ? 4 : 1;
    o.loss.weights = {1.0, 2.6, 1.7};
    o.plan.selection.excluded = {"winograd"};
    o.batch = 2, o.compute = compute, o.plan.threads = 2;
    list.emplace_back(name, o);
    if (model != ClimateModel::deepcam || compute != DType::f32) continue;
    o.training.accumulation = 2;
    list.emplace_back("deepcam, two passes to a step", o);
  }
  return list;
}

/// A rank beside another one that has the same values, always.
class Twin final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  void start(int64_t id, const AllReduce& what) override {
    REQUIRE(under_way_.insert(id).second);
    const auto mean = [&](auto* values) {
      for (size_t i = 0; i < what.data.size() / sizeof *values; ++i)
        values[i] = static_cast<std::decay_t<decltype(*values)>>(double(values[i] + values[i]) * what.scale);
    };
    what.type == DType::f64 ? mean(reinterpret_cast<double*>(what.data.data()))
                            : mean(reinterpret_cast<float*>(what.data.data()));
    ++reductions;
  }
  void wait(int64_t id) override { REQUIRE(under_way_.erase(id) == 1); }
  void progress() override {}
  void wait_until(const std::function<bool()>& holds, const std::string&) override { REQUIRE(holds()); }
  void broadcast(std::span<std::byte>, int) override {}
  void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
  void barrier() override {}
  CommunicationTimes times() const override { return {}; }

  int reductions = 0;

 private:
  std::set<int64_t> under_way_;
};

/// Five steps whose gradients and loss, and batch-norm statistics where `norms` says so, are means over two ranks with
/// the same samples.
template <class Options>
std::pair<Program, std::vector<double>> train_twin(const std::shared_ptr<Device>& open, Options o, double rate,
                                                   bool norms, bool eager) {
  o.training.averaging.ranks = 2;
  o.training.averaging.bucket_bytes = 1 << 18;  // several buckets
  if (norms) o.training.averaging.batch_norm_ranks = 2;
  Program program = make_program(o, open, 5);
  Twin twin;
  for (Executor* e : {&program.step(), program.micro()})
    if (e) e->set_groups({&twin, &twin});
  program.step().tensor(stop_request_name).data<float>()[0] = 0;
  const std::vector<double> found = losses(program, 5, rate, eager);
  CHECK(twin.reductions > 5 * 3);
  program.to_host();
  return {std::move(program), found};
}

TEST_CASE("steps of the climate networks on a CUDA device follow those on the CPU", "[cuda][climate]") {
  const auto open = device();
  if (!open) return;
  const std::map<DType, double> bands{{DType::f32, 0.01}, {DType::bf16, 0.05}, {DType::f16, 0.05}};
  for (const auto& [type, band] : bands)
    for (const auto& [name, o] : climate_steps(type)) {
      Program cpu = make_program(o, nullptr, 5), cuda = make_program(o, open, 5);
      // One step leaves rate * gradient in the velocities: all of them, before roundings grow over steps. Behind a
      // batch norm a ReLU whose input is zero but for its rounding passes the gradient on one side and not on the
      // other; of a few hundred pixels one shows.
      const double first[2] = {losses(cpu, 1, climate_rate, false)[0], losses(cuda, 1, climate_rate, false)[0]};
      if (type == DType::f32) {
        cuda.to_host();
        double largest = 0;
        for (const std::string& parameter : cpu.parameters())
          largest = std::max(largest, norm(cpu.store().get(parameter + ".velocity")));
        for (const std::string& parameter : cpu.parameters()) {
          INFO(name << " " << parameter);
          const std::string velocity = parameter + ".velocity";
          CHECK(difference(cuda.store().get(velocity), cpu.store().get(velocity), 1e-3 * largest) <=
                (o.model.batch_norm ? 0.1 : 5e-3));
        }
      }
      const std::vector<double> expected = losses(cpu, 5, climate_rate, false),
                                found = losses(cuda, 5, climate_rate, false);
      INFO(name << " " << name_of(type) << ": " << first[0] << " to " << expected.back());
      CHECK(first[1] == Approx(first[0]).epsilon(band));
      CHECK(expected.back() < first[0]);
      // Batch norms over few pixels amplify roundings from step to step.
      const double later = o.model.batch_norm ? std::max(band, 0.03) : band;
      CHECK(found.back() < first[1]);
      for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(later));
      // Evaluation: the class of a pixel may turn where two logits are close.
      std::vector<Tensor> classes;
      for (Program* program : {&cpu, &cuda}) {
        Executor& e = program->evaluate();
        fill(e, 3);
        e.refresh();
        e.run();
        classes.push_back(e.tensor("prediction"));
      }
      int64_t equal = 0;
      const int64_t pixels = classes[0].shape().elements();
      for (int64_t i = 0; i < pixels; ++i) equal += classes[0].data<uint8_t>()[i] == classes[1].data<uint8_t>()[i];
      CHECK(double(equal) >= 0.9 * double(pixels));
    }
}

TEST_CASE("a replayed step of a climate network gives the bits of one that runs node by node", "[cuda][climate]") {
  const auto open = device();
  if (!open) return;
  for (const auto& [name, o] : climate_steps(DType::bf16)) {
    Program eager = make_program(o, open, 5), replayed = make_program(o, open, 5);
    INFO(name);
    CHECK(losses(eager, 4, climate_rate, true) == losses(replayed, 4, climate_rate, false));
    eager.to_host(), replayed.to_host();
    for (const std::string& parameter : eager.parameters())
      CHECK(same_bits(eager.store().get(parameter), replayed.store().get(parameter)));
  }
}

TEST_CASE("on a CUDA device two ranks with the same samples train like one", "[cuda]") {
  const auto open = device();
  if (!open) return;
  const auto check_parameters = [](Program& a, Program& b) {
    for (const std::string& name : a.parameters()) CHECK(same_bits(a.store().get(name), b.store().get(name)));
  };
  const auto alone = [&](const auto& o, double rate) {
    Program program = make_program(o, open, 5);
    const std::vector<double> found = losses(program, 5, rate, false);
    program.to_host();
    return std::pair{std::move(program), found};
  };
  CosmoflowOptions cosmoflow = small_step(DType::f16);
  for (int accumulation : {1, 2}) {
    cosmoflow.training.accumulation = accumulation;
    auto [one, expected] = alone(cosmoflow, rate);
    auto [two, found] = train_twin(open, cosmoflow, rate, false, false);
    CHECK(found == expected);
    check_parameters(one, two);
  }
  // Between buckets and travelling moments other nodes are neighbours, and other sums are made in one launch: other
  // roundings, which grow from step to step. What travels beside a recorded step is what travels in a halting one.
  const ClimateOptions deepcam = climate_steps(DType::bf16)[0].second;
  const std::vector<double> expected = alone(deepcam, climate_rate).second;
  for (bool norms : {false, true}) {
    auto [eager, first] = train_twin(open, deepcam, climate_rate, norms, true);
    auto [replayed, second] = train_twin(open, deepcam, climate_rate, norms, false);
    CHECK(first == second);
    check_parameters(eager, replayed);
    for (size_t i = 0; i < expected.size(); ++i) CHECK(second[i] == Approx(expected[i]).epsilon(0.03));
  }
}

TEST_CASE("evaluation on a CUDA device sees the weights of the step", "[cuda]") {
  const auto open = device();
  if (!open) return;
  Program program = make_program(small_step(DType::bf16), open, 5);
  losses(program, 3, rate, false);
  Executor& e = program.evaluate();
  const Tensor x = e.tensor("x");
  for (int64_t i = 0; i < x.shape().elements(); ++i) x.data<int16_t>()[i] = int16_t(i % 3);
  std::vector<std::vector<double>> found;
  for (int repeat = 0; repeat < 3; ++repeat) {
    if (repeat == 2) losses(program, 3, rate, false);
    e.refresh();
    e.run();
    found.push_back(values(e.tensor("prediction")));
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0] != found[2]);
}

TEST_CASE("devices are named cpu, cuda and cuda:N", "[device]") {
  CHECK(parse_device("cpu").kind == DeviceKind::cpu);
  CHECK(parse_device("cuda").ordinal == 0);
  CHECK(parse_device("cuda:3").ordinal == 3);
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda3"}) CHECK_THROWS_AS(parse_device(wrong), Error);
  const int count = cuda_device_count();
  const std::string reason = count > 0 ? "there are " + std::to_string(count) + " devices" : "device cuda";
  CHECK_THROWS_WITH(open_cuda_device(count), Catch::Contains(reason));
}
