// Training steps by the headers of core/ and layers/ alone.
#include <limits>

#include "core/executor.h"
#include "core/passes/passes.h"
#include "kernels/kernel_list.h"
#include "kernels/optimizer/loss_scale.h"
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

TEST_CASE("training options out of range are refused with what was found", "[training]") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const auto refused = [](auto change, const std::string& message) {
    TrainingOptions o;
    change(o);
    INFO(message);
    CHECK_THROWS_WITH(small_network(o), Catch::Contains(message));
  };
  for (double momentum : {nan, -1., 1., 2.})
    refused([&](TrainingOptions& o) { o.sgd.momentum = momentum; },
            "head.weight.update: sgd_update: expected a momentum from 0 to below 1, found " + std::to_string(momentum));
  for (double epsilon : {nan, -1., 0., infinity}) {
    refused([&](TrainingOptions& o) { o.sgd.larc_epsilon = epsilon; }, "sgd_update: expected a larc_epsilon above 0");
    refused([&](TrainingOptions& o) { o.optimizer = OptimizerKind::adam, o.adam.larc_epsilon = epsilon; },
            "adam_update: expected a larc_epsilon above 0, found ");
  }
  for (double decay : {nan, -0.5, infinity}) {
    refused([&](TrainingOptions& o) { o.optimizer = OptimizerKind::adam, o.adam.weight_decay = decay; },
            "adam_update: expected a weight_decay of 0 or more, found ");
    refused([&](TrainingOptions& o) { o.optimizer = OptimizerKind::adam, o.adam.l2 = decay; },
            "adam_update: expected l2 of 0 or more, found ");
    refused([&](TrainingOptions& o) { o.optimizer = OptimizerKind::lamb, o.lamb.weight_decay = decay; },
            "lamb_update: expected a weight_decay of 0 or more, found ");
  }
  refused([](TrainingOptions& o) { o.averaging.ranks = 0; }, "averaging.ranks: expected 1 or more, found 0");
  refused([](TrainingOptions& o) { o.averaging.batch_norm_ranks = -2; },
          "averaging.batch_norm_ranks: expected 1 or more, found -2");
  refused([](TrainingOptions& o) { o.averaging.batch_norm_ranks = 2; },
          "averaging.batch_norm_ranks: expected a number that divides 1 ranks into groups, found 2");
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({4, 1, 1, 1, 3}, DType::f32));
  const ValueId loss = regression_loss(tape, "loss", Loss::mse, dense(tape, "head", x, {.units = 3}), x);
  AveragingOptions none;
  none.ranks = 0;
  CHECK_THROWS_WITH(add_accumulation(tape, loss, none), Catch::Contains("averaging.ranks: expected 1 or more"));
}

TEST_CASE("overflows without end leave a loss scale that updates may divide by", "[training]") {
  double state[int(ScaleField::count)] = {32768};
  for (int i = 0; i < 300; ++i) advance_loss_scale(LossScaleAttrs{}, false, state);
  CHECK(state[int(ScaleField::scale)] == 0x1p-14);
  CHECK(state[int(ScaleField::skipped)] == 300);
  for (int i = 0; i < 1000; ++i) advance_loss_scale(LossScaleAttrs{}, true, state);
  CHECK(state[int(ScaleField::scale)] == 0x1p-13);
  state[int(ScaleField::scale)] = 1e-9;  // whoever wants a smaller one keeps it
  advance_loss_scale(constant_scaling, false, state);
  CHECK(state[int(ScaleField::scale)] == 1e-9);
}

TEST_CASE("convolutions end in pools behind a leaky_relu, and in no other", "[passes]") {
  for (const Activation function : {Activation::leaky_relu, Activation::tanh}) {
    const ActivationPoolAttrs pool{{.function = function, .slope = 0.1}, {.kernel = {1, 2, 2}, .stride = {1, 2, 2}}};
    Tape tape;
    const ValueId x = tape.input("x", TensorDesc({1, 1, 4, 4, 3}, DType::f32));
    const ValueId y = conv(tape, "conv", x, {.channels = 2, .kernel = {1, 3, 3}});
    tape.keep(tape.emit({OpKind::activation_max_pool, pool}, "pool.forward", {y}), "pooled");
    fuse_convolutions(tape);
    const bool fuses = function == Activation::leaky_relu;
    CHECK(tape.nodes().size() == (fuses ? 1 : 2));
    const Op fused{OpKind::conv_pool_forward, ConvPoolAttrs{{}, pool}};
    const TensorDesc weights({2, 1, 3, 3, 3}, DType::f32);
    const std::vector<TensorDesc> in{tape.desc(x), weights};
    if (fuses)
      CHECK_NOTHROW(infer(fused, in));
    else
      CHECK_THROWS_WITH(infer(fused, in), Catch::Contains("expected a leaky_relu without a scale") &&
                                              Catch::Contains("found activation{function=tanh"));
  }
}
