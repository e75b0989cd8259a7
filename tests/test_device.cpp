// Programs on a device, here one that is the CPU itself: what travels when, recordings, staged inputs, states of both
// sides. tests/test_cuda.cpp does the same where there is a GPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "core/executor.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/host_device.h"

using namespace convoy;
using convoy::testing::HostDevice;

namespace {

CosmoflowOptions small(DType compute, int64_t accumulation) {
  CosmoflowOptions o;
  o.model.size = 16;
  o.batch = 2;
  o.compute = compute;
  o.training.accumulation = accumulation;
  return o;
}

void fill(Executor& e, int step) {
  const PhiloxStream random(static_cast<uint64_t>(step), 1);
  const Tensor x = e.tensor("x");
  for (int64_t i = 0; i < x.shape().elements(); ++i)
    x.data<int16_t>()[i] = static_cast<int16_t>(random.below(static_cast<uint64_t>(i), 4));
  const auto& values = e.plan().values;
  if (std::none_of(values.begin(), values.end(), [](const Value& v) { return v.name == "target"; })) return;
  const Tensor target = e.tensor("target");
  for (int64_t i = 0; i < target.shape().elements(); ++i)
    target.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
}

/// Losses of five steps, each with a rate of its own; `ahead`: the next inputs are staged, and the next rate is set,
/// while a step runs.
std::vector<float> train(Program& p, bool ahead) {
  double* state = p.store().get(step_state_name).data<double>();
  std::vector<float> losses;
  const auto begin = [&](int s) {
    state[int(StepField::learning_rate)] = 1e-3 * (1 + s % 3), state[int(StepField::step)] = s;
  };
  for (int s = 0; s < 5; ++s) {
    if (!ahead || s == 0) begin(s);
    for (int64_t pass = 0; pass + 1 < p.options().training.accumulation; ++pass) {
      state[int(StepField::micro_step)] = double(pass);
      fill(*p.micro(), 100 + s);
      p.micro()->run();
    }
    state[int(StepField::micro_step)] = double(p.options().training.accumulation - 1);
    Executor& e = p.step();
    if (!ahead) {
      fill(e, s);
      e.run();
    } else {
      if (s == 0) fill(e, 0), e.stage_inputs();
      e.start(), e.inputs_free();
      if (s < 4) fill(e, s + 1), e.stage_inputs(), begin(s + 1);
      e.finish();
    }
    losses.push_back(e.tensor("loss").data<float>()[0]);
  }
  return losses;
}

std::string parameters(Program& p) {
  std::string all;
  for (const std::string& name : p.parameters()) {
    const Tensor& t = p.store().get(name);
    all.append(reinterpret_cast<const char*>(t.bytes()), static_cast<size_t>(t.desc().bytes()));
  }
  return all;
}

}  // namespace

TEST_CASE("a program on a device trains, evaluates and saves as one on the CPU", "[device]") {
  for (const auto& [type, accumulation, ahead] :
       {std::tuple{DType::f32, int64_t{1}, false}, {DType::f32, int64_t{1}, true}, {DType::f16, int64_t{3}, false}}) {
    const CosmoflowOptions o = small(type, accumulation);
    const auto device = std::make_shared<HostDevice>();
    Program cpu(plan_program(o, kernel_list()), o, 7);
    Program there(plan_program(o, kernel_list()), o, 7, device);
    CHECK(train(there, ahead) == train(cpu, false));
    const bool same_before = parameters(there) == parameters(cpu);
    CHECK(!same_before);  // the store's are of the beginning
    there.to_host();
    const bool same = parameters(there) == parameters(cpu);
    CHECK(same);
    const auto count = [](Program& p, ScaleField f) { return p.store().get(scale_state_name).data<double>()[int(f)]; };
    for (ScaleField f : {ScaleField::applied, ScaleField::skipped, ScaleField::scale})
      CHECK(count(there, f) == count(cpu, f));
    // The first step ran node by node, and was timed; the others replayed one recording.
    CHECK(device->recordings == (accumulation > 1 ? 2 : 1));
    CHECK(device->replays == (accumulation > 1 ? 4 + 9 : 4));
    CHECK(there.step().times().back().runs == 1);
    CHECK(there.step().times().back().seconds == 0.5);

    for (Program* p : {&cpu, &there}) fill(p->evaluate(), 9), p->evaluate().refresh(), p->evaluate().run();
    const auto prediction = [](Program& p) {
      const auto span = p.evaluate().tensor("prediction").span<float>();
      return std::vector<float>(span.begin(), span.end());
    };
    const std::vector<float> first = prediction(there);
    CHECK(first == prediction(cpu));
    // What a checkpoint brings reaches the device.
    for (float& v : there.store().get(there.parameters().front()).span<float>()) v *= 2;
    there.to_device();
    there.evaluate().refresh(), there.evaluate().run();
    CHECK(prediction(there) != first);
  }
}

TEST_CASE("a device finds the first node that is not finite, and runs only what was staged", "[device]") {
  const CosmoflowOptions o = small(DType::f32, 1);
  Program p(plan_program(o, kernel_list()), o, 7, std::make_shared<HostDevice>());
  CHECK_THROWS_AS(p.step().start(), Error);
  fill(p.step(), 0);
  CHECK(p.step().find_non_finite().empty());
  p.store().get("conv1.weight").data<float>()[0] = NAN;
  p.to_device();
  CHECK(p.step().find_non_finite() == "conv1.weight");
}

TEST_CASE("large kept values come from a device when they are asked for", "[device]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 512, 256, 3}, DType::f32));  // 1.5 MiB
  const ValueId large = leaky_relu(tape, "large", x, 0.25);
  tape.keep(large, "large");
  tape.keep(tape.emit({OpKind::channel_sum, NoAttrs{}}, "small", {large}), "small");
  const Plan plan = make_plan(tape, kernel_list(), {});
  StateStore store;
  HostDevice device;
  Executor there(plan, store, device.allocate(plan.arena_bytes), device, store);
  Executor cpu(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
  const PhiloxStream random(3, 1);
  for (const bool asked : {true, false, true, true}) {  // a run behind which nobody asks
    const auto here = cpu.tensor("x").span<float>(), sent = there.tensor("x").span<float>();
    for (size_t i = 0; i < here.size(); ++i)
      here[i] = sent[i] = random.uniform(device.order.size() * here.size() + i) - 0.5f;
    cpu.run(), there.run();
    const auto waits = [&] { return std::count(device.order.begin(), device.order.end(), 'f'); };
    const auto same = [&](const char* name) {
      const auto expected = cpu.tensor(name).span<float>(), found = there.tensor(name).span<float>();
      return std::equal(expected.begin(), expected.end(), found.begin(), found.end());
    };
    const auto before = waits();
    CHECK(same("small"));
    CHECK(waits() == before);
    if (!asked) continue;
    CHECK(same("large"));
    CHECK(waits() == before + 1);
    CHECK(same("large"));
    CHECK(waits() == before + 1);  // it came once
  }
  CHECK(device.replays == 3);
}
