// Training steps by the headers of core/ and layers/ alone.
#include "core/executor.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "layers/training.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

/// Three numbers of four samples, a dense layer, the mean of squares.
Tape small_network(const TrainingOptions& options) {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({4, 1, 1, 1, 3}, DType::f32));
  const ValueId y = dense(tape, "head", x, {.units = 2});
  const ValueId target = tape.input("target", tape.desc(y));
  add_training(tape, regression_loss(tape, "loss", Loss::mse, y, target), options);
  return tape;
}

}  // namespace

TEST_CASE("a training tape learns from its first step on, whoever runs it", "[training]") {
  const Tape tape = small_network({});
  const Plan plan = make_plan(tape, kernel_list(), {});
  StateStore store;
  store.initialise(tape, 1);
  const auto scale = store.get(scale_state_name).span<double>();
  CHECK(std::vector<double>(scale.begin(), scale.end()) == std::vector<double>{1, 0, 0, 0});
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
  store.get(step_state_name).data<double>()[int(StepField::learning_rate)] = 0.1;
  std::vector<float> losses;
  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 12; ++i) e.tensor("x").data<float>()[i] = float(i % 5) - 2;
    for (int i = 0; i < 8; ++i) e.tensor("target").data<float>()[i] = float(i % 3);
    e.run();
    losses.push_back(e.tensor("loss").data<float>()[0]);
    CHECK(e.tensor("finite").data<float>()[0] == 1);
  }
  CHECK(losses.back() < 0.5f * losses.front());
  CHECK(scale[int(ScaleField::applied)] == 10);
}
