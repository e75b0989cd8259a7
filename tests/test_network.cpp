// Networks that are none of models/: recorded by a caller, finished, planned and run as a program.
#include <algorithm>
#include <optional>

#include "core/backward.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

Tape record(const ProgramOptions& o, Mode mode) {
  Tape tape = new_tape(o);
  ValueId x = tape.input("x", TensorDesc({2, 1, 8, 8, 3}, tape.float_type()));
  x = conv(tape, "conv1", x, {.channels = 16, .kernel = {1, 3, 3}});
  x = relu(tape, "relu1", batch_norm(tape, "norm1", x, {.mode = mode}));
  x = dense(tape, "head", max_pool(tape, "pool1", x, {.kernel = {1, 2, 2}, .stride = {1, 2, 2}}), {.units = 2});
  tape.keep(x, "prediction");
  if (mode == Mode::training)
    tape.keep(regression_loss(tape, "loss", Loss::mse, x, tape.input("target", tape.desc(x))), data_loss_name);
  return tape;
}

ProgramTapes tapes_of(const ProgramOptions& o) {
  ProgramTapes tapes{
      finish_training(record(o, Mode::training), o), finish_evaluation(record(o, Mode::evaluation), o), {}, {}};
  if (o.training.accumulation > 1) tapes.micro = finish_training(record(o, Mode::training), o, Ending::accumulate);
  return tapes;
}

/// Losses of a few updates on one batch.
std::vector<double> losses(const ProgramOptions& o) {
  Program program(plan_program(tapes_of(o), o.plan, kernel_list()), o, 3);
  std::vector<double> list;
  for (int i = 0; i < 8 * o.training.accumulation; ++i) {
    const int64_t pass = i % o.training.accumulation;
    program.set_clock({.learning_rate = 1e-3, .micro_step = pass});
    Executor& e = pass + 1 < o.training.accumulation ? *program.micro() : program.step();
    const Tensor x = e.tensor("x"), y = e.tensor("target");
    int64_t at = 0;
    for_each_index(x.shape(), [&](auto... index) { x.set(index..., double(at++ * 7 % 13) / 13); });
    for (int64_t n = 0; n < 2; ++n) y.set(n, 0, 0, 0, 0, double(n)), y.set(n, 0, 0, 0, 1, 0.5);
    e.run();
    if (&e == &program.step()) list.push_back(e.tensor("loss").at(0, 0, 0, 0, 0));
  }
  return list;
}

}  // namespace

TEST_CASE("a network of one's own is trained as its options say", "[program]") {
  ProgramOptions o;
  o.training.optimizer = OptimizerKind::adam;
  const std::vector<double> wide = losses(o);
  CHECK(wide.back() < 0.5 * wide.front());
  for (DType compute : {DType::f64, DType::bf16, DType::f16}) {
    INFO(name_of(compute));
    ProgramOptions other = o;
    other.compute = compute;
    if (compute == DType::f16) other.training.initial_scale = 1024;  // at which nothing overflows
    const std::vector<double> found = losses(other);
    CHECK(found != wide);
    for (size_t i = 0; i < wide.size(); ++i) CHECK(found[i] == Approx(wide[i]).margin(0.05 * wide.front()));
  }
  ProgramOptions plain = o;
  plain.fuse = false;
  const std::vector<double> apart = losses(plain);
  for (size_t i = 0; i < wide.size(); ++i) CHECK(apart[i] == Approx(wide[i]).margin(1e-3 * wide.front()));
  ProgramOptions passes = o;
  passes.training.accumulation = 3;  // of the same samples
  const std::vector<double> mean = losses(passes);
  for (size_t i = 0; i < wide.size(); ++i) CHECK(mean[i] == Approx(wide[i]).margin(1e-3 * wide.front()));
}

TEST_CASE("options of a network of one's own reach its tapes", "[program]") {
  ProgramOptions o;
  o.compute = DType::f16, o.training.optimizer = OptimizerKind::lamb;
  const ProgramTapes narrow = tapes_of(o);
  CHECK(narrow.step.find("conv1.weight.moment2") != no_value);
  CHECK(narrow.evaluate.desc(narrow.evaluate.find("prediction")).dtype == DType::f16);
  const auto has = [](const Tape& tape, OpKind kind) {
    return std::any_of(tape.nodes().begin(), tape.nodes().end(), [&](const Node& n) { return n.op.kind == kind; });
  };
  const auto first_scale = [](const ProgramTapes& tapes) {
    StateStore store;
    store.initialise(tapes.step, 1);
    return store.get(scale_state_name).data<double>()[int(ScaleField::scale)];
  };
  CHECK(first_scale(narrow) == 32768);
  o.training.initial_scale = 8;
  CHECK(first_scale(tapes_of(o)) == 8);
  o.training.initial_scale = 0;
  CHECK_THROWS_WITH(tapes_of(o), Catch::Contains("initial_scale: expected a number above 0, found 0"));
  o = {}, o.training.l2 = 0.01, o.training.l2_parameters = {"head.weight"};
  const ProgramTapes plain = tapes_of(o);
  CHECK(first_scale(plain) == 1);
  CHECK(has(plain.step, OpKind::sum_squares));
  CHECK(has(plain.step, OpKind::sgd_update));
  CHECK(!has(narrow.step, OpKind::sum_squares));

  Tape lossless = new_tape(o);
  lossless.keep(dense(lossless, "d", lossless.input("x", TensorDesc(Shape::vector(4), DType::f32)), {.units = 1}), "y");
  CHECK_THROWS_WITH(finish_training(lossless, o), Catch::Contains("expected a loss kept as \"data_loss\", found none"));
  o.training.accumulation = 2;
  ProgramTapes lonely = tapes_of(o);
  lonely.micro.reset();
  CHECK_THROWS_WITH(plan_program(std::move(lonely), o.plan, kernel_list()),
                    Catch::Contains("averages several passes: expected micro tape, found none"));
}

TEST_CASE("an evaluation behind a step says that its packed weights are gone", "[program]") {
  const ProgramOptions o;
  Program program(plan_program(tapes_of(o), o.plan, kernel_list()), o, 3);
  Executor& e = program.evaluate();
  const auto answer = [&] {
    std::fill(e.tensor("x").span<float>().begin(), e.tensor("x").span<float>().end(), 0.5f);
    e.run();
    return e.tensor("prediction").at(0, 0, 0, 0, 0);
  };
  CHECK_THROWS_WITH(answer(), Catch::Contains("expected refresh()"));
  e.refresh();
  const double first = answer();
  CHECK(answer() == first);
  for (const char* input : {"x", "target"})
    for (float& v : program.step().tensor(input).span<float>()) v = 0;
  program.step().run();  // at a rate of 0
  CHECK_THROWS_WITH(answer(), Catch::Contains("expected refresh()") && Catch::Contains("another executor"));
  e.refresh();
  CHECK(answer() == Approx(first).margin(0.05));  // running statistics moved
}

TEST_CASE("an executor that lies where another one was has nothing of its arena", "[program]") {
  const ProgramOptions o;
  const ProgramPlans plans = plan_program(tapes_of(o), o.plan, kernel_list());
  StateStore store;
  store.initialise(plans.step_tape, 3);
  const auto arena = std::make_shared<Buffer>(plans.evaluate.arena_bytes, Buffer::Fill::zero);
  std::optional<Executor> e;
  e.emplace(plans.evaluate, store, arena);
  e->refresh();
  e->run();
  e.emplace(plans.evaluate, store, arena);
  CHECK_THROWS_WITH(e->run(), Catch::Contains("expected refresh()"));
  e->refresh();
  e->run();
}

TEST_CASE("two dropouts draw by names of their own", "[program]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({2, 1, 4, 4, 3}, DType::f32));
  const ValueId once = dropout(tape, "drop", x, 0.5);
  CHECK_THROWS_WITH(dropout(tape, "drop", once, 0.5), Catch::Contains("found drop twice"));
}

TEST_CASE("a loss that depends on a parameter through an op without a gradient is refused", "[program]") {
  Tape tape;
  ValueId x = tape.input("x", TensorDesc({2, 1, 4, 4, 3}, DType::f32));
  x = conv(tape, "conv1", x, {.channels = 4, .kernel = {1, 3, 3}});
  const ValueId sum = tape.emit({OpKind::channel_sum, NoAttrs{}}, "squeeze", {x});
  x = dense(tape, "head", tape.emit({OpKind::channel_scale, NoAttrs{}}, "excite", {x, sum}), {.units = 1});
  const ValueId loss = regression_loss(tape, "loss", Loss::mse, x, tape.input("target", tape.desc(x)));
  const std::vector<ValueId> wanted = tape.parameters();
  const ValueId scale = tape.state(scale_state_name, scale_state_desc(), scale_state_init());
  CHECK_THROWS_WITH(differentiate(tape, loss, scale, wanted),
                    Catch::Contains("squeeze") && Catch::Contains("no gradient flows through channel_sum"));
}
