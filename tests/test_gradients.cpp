// Gradients of every op against central differences, all in f64 through the reference kernels.
#include <cmath>

#include "core/backward.h"
#include "core/passes/passes.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "layers/training.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

/// Builds y from a parameter named "input"; other parameters are the layer's.
using Build = std::function<ValueId(Tape&, ValueId)>;

struct Checked {
  Tape tape{DType::f64};
  std::vector<ValueId> parameters, gradients;
  ValueId loss = no_value;
};

/// `loss` is recorded on top of the parameter "input".
Checked record(const Shape& input, const Build& loss) {
  Checked c;
  c.loss = loss(c.tape, c.tape.parameter("input", input, {StateInit::Kind::he_normal, 0, 2, 0}));
  const ValueId scale =
      c.tape.state(scale_state_name, TensorDesc(Shape::vector(int64_t(ScaleField::count)), DType::f64),
                   {StateInit::Kind::constant, 2.0, 0, 0});
  c.parameters = c.tape.parameters();
  c.gradients = differentiate(c.tape, c.loss, scale, c.parameters);
  for (size_t i = 0; i < c.gradients.size(); ++i) c.tape.keep(c.gradients[i], "gradient" + std::to_string(i));
  c.tape.keep(c.loss, "loss");
  return c;
}

void check_loss_gradients(const std::string& what, const Shape& input, const Build& build) {
  const Checked c = record(input, build);
  StateStore store;
  store.initialise(c.tape, 17);
  if (c.tape.find("labels") != no_value) {  // all classes, and one that is ignored
    const auto labels = store.get("labels").span<uint8_t>();
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = i % 4 == 3 ? 255 : static_cast<uint8_t>(i % 4);
  }
  const Plan plan = make_plan(c.tape, kernel_list(), {});
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
  const auto loss = [&] {
    e.refresh();  // casts of parameters are hoisted out of a tape without updates
    e.run();
    return e.tensor("loss").data<double>()[0];
  };
  for (size_t i = 0; i < c.parameters.size(); ++i) {
    const Tensor& value = store.get(c.tape.value(c.parameters[i]).name);
    loss();
    const auto span = e.tensor("gradient" + std::to_string(i)).span<double>();
    const std::vector<double> gradient(span.begin(), span.end());
    double scale = 0;
    for (double g : gradient) scale = std::max(scale, std::abs(g));
    const int64_t step = std::max<int64_t>(1, value.shape().elements() / 40);
    for (int64_t k = 0; k < value.shape().elements(); k += step) {
      double& entry = value.data<double>()[k];
      const double before = entry, h = 1e-6;
      entry = before + h;
      const double up = loss();
      entry = before - h;
      const double down = loss();
      entry = before;
      // The gradients carry the loss scale, 2. The difference quotient errs by eps*loss/h and by h^2.
      const double numeric = 2 * (up - down) / (2 * h);
      INFO(what << ": " << c.tape.value(c.parameters[i]).name << "[" << k << "]");
      CHECK(std::abs(numeric - gradient[static_cast<size_t>(k)]) <= 1e-7 * std::max(1.0, scale) + 1e-8);
    }
  }
}

void check_gradients(const std::string& what, const Shape& input, const Build& build, Loss kind = Loss::mse) {
  check_loss_gradients(what, input, [&](Tape& t, ValueId x) {
    const ValueId y = build(t, x);
    const ValueId target = t.state("target", t.desc(y), {StateInit::Kind::he_normal, 0, 2, 0});
    return regression_loss(t, "loss", kind, y, target);
  });
}

}  // namespace

TEST_CASE("pixel losses against central differences", "[gradients]") {
  const Shape logits(2, 1, 3, 4, 3);
  for (const PixelLossAttrs& a : {PixelLossAttrs{}, PixelLossAttrs{.weights = {1, 2.5, 1.75}},
                                  PixelLossAttrs{.reduction = Reduction::sum, .weights = {}},
                                  PixelLossAttrs{.loss = PixelLoss::focal, .weights = {1, 2, 3}},
                                  PixelLossAttrs{.loss = PixelLoss::focal, .gamma = 0, .weights = {}}})
    check_loss_gradients(to_text({OpKind::pixel_loss, a}), logits, [&](Tape& t, ValueId x) {
      return pixel_loss(t, "loss", a, x, t.state("labels", TensorDesc({2, 1, 3, 4, 1}, DType::u8)));
    });
}

TEST_CASE("gradients against central differences", "[gradients]") {
  const Shape cube(2, 4, 5, 6, 4);
  check_gradients("conv", cube, [](Tape& t, ValueId x) { return conv(t, "c", x, {.channels = 6}); });
  check_gradients("conv stride, dilation, asymmetric", cube, [](Tape& t, ValueId x) {
    return conv(t, "c", x,
                {.channels = 4,
                 .kernel = {2, 3, 2},
                 .stride = {1, 2, 2},
                 .dilation = {2, 1, 3},
                 .padding = Padding::explicit_,
                 .pad_low = {1, 0, 2},
                 .pad_high = {0, 2, 1},
                 .groups = 2});
  });
  check_gradients("conv even kernel", cube, [](Tape& t, ValueId x) {
    return conv(t, "c", x, {.channels = 3, .kernel = {2, 2, 2}});
  });
  check_gradients("conv depthwise", Shape(1, 1, 5, 6, 4), [](Tape& t, ValueId x) {
    return conv(t, "c", x, {.channels = 4, .kernel = {1, 3, 3}, .groups = 4, .bias = Bias::none});
  });
  check_gradients("deconv", Shape(2, 3, 3, 3, 4), [](Tape& t, ValueId x) {
    return deconv(t, "c", x, {.channels = 2, .stride = {2, 2, 2}});
  });
  check_gradients("deconv output padding", Shape(1, 1, 3, 4, 4), [](Tape& t, ValueId x) {
    return deconv(t, "c", x,
                  {.channels = 6,
                   .kernel = {1, 3, 3},
                   .stride = {1, 2, 2},
                   .padding = Padding::explicit_,
                   .pad_low = {0, 1, 1},
                   .pad_high = {0, 1, 1},
                   .output_padding = {0, 1, 1},
                   .groups = 2});
  });
  check_gradients("dense", cube, [](Tape& t, ValueId x) { return dense(t, "d", x, {.units = 5}); });
  check_gradients("max pool", cube, [](Tape& t, ValueId x) { return max_pool(t, "p", x, {}); });
  check_gradients("max pool overlapping", cube, [](Tape& t, ValueId x) {
    return max_pool(t, "p", x, {.kernel = {3, 3, 3}, .stride = {2, 2, 2}, .pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}});
  });
  check_gradients("average pool", cube, [](Tape& t, ValueId x) {
    return avg_pool(t, "p", x, {.kernel = {3, 3, 3}, .stride = {2, 2, 2}, .pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}});
  });
  check_gradients("average pool counting padding", cube, [](Tape& t, ValueId x) {
    return avg_pool(t, "p", x, {.kernel = {3, 2, 2}, .pad_low = {1, 1, 1}, .count_padding = 1});
  });
  check_gradients("leaky relu", cube, [](Tape& t, ValueId x) { return leaky_relu(t, "a", x, 0.3); });
  check_gradients("tanh", cube, [](Tape& t, ValueId x) { return convoy::tanh(t, "a", x, 1.2); });
  check_gradients("dropout", cube, [](Tape& t, ValueId x) { return dropout(t, "d", x, 0.4); });
  check_gradients(
      "l1", cube, [](Tape& t, ValueId x) { return leaky_relu(t, "a", x, 0.3); }, Loss::l1);
  check_gradients("fan-out, add", cube, [](Tape& t, ValueId x) {
    return t.emit({OpKind::add, NoAttrs{}}, "s.forward", {leaky_relu(t, "a", x, 0.5), x});
  });
  check_gradients("concat, slice, pad", cube, [](Tape& t, ValueId x) {
    const ValueId joined = t.emit({OpKind::concat, NoAttrs{}}, "j.forward", {convoy::tanh(t, "a", x, 1), x});
    const ValueId part = t.emit({OpKind::slice, SliceAttrs{2, 5}}, "s.forward", {joined});
    return t.emit({OpKind::pad_channels, SliceAttrs{1, 8}}, "p.forward", {part});
  });
  check_gradients("fused activation and pool", cube, [](Tape& t, ValueId x) {
    return t.emit({OpKind::activation_max_pool, ActivationPoolAttrs{{.slope = 0.3}, {}}}, "f.forward", {x});
  });
  check_gradients("batch norm", cube, [](Tape& t, ValueId x) { return batch_norm(t, "b", x, {}); });
  check_gradients("batch norm of one pixel per sample", Shape(3, 1, 1, 1, 5),
                  [](Tape& t, ValueId x) { return batch_norm(t, "b", x, {.epsilon = 0.1}); });
  check_gradients("batch norm with ReLU", cube, [](Tape& t, ValueId x) {
    const ValueId y = relu(t, "r", batch_norm(t, "b", x, {}));
    fuse(t);
    CHECK(t.nodes().size() == 3);  // moments, statistics, clamping batch norm
    return y;
  });
  for (Corners corners : {Corners::half_pixel, Corners::aligned, Corners::asymmetric}) {
    check_gradients("resize up", {2, 1, 3, 5, 4}, [=](Tape& t, ValueId x) { return resize(t, "r", x, 8, 7, corners); });
    check_gradients("resize down", {1, 2, 9, 7, 3},
                    [=](Tape& t, ValueId x) { return resize(t, "r", x, 4, 5, corners); });
    check_gradients("tile", {2, 1, 1, 1, 6}, [=](Tape& t, ValueId x) { return resize(t, "r", x, 3, 4, corners); });
  }
  check_gradients("scale", cube, [](Tape& t, ValueId x) { return scale(t, "s", x, 0.5); });
  check_gradients("scale with leaky relu", cube, [](Tape& t, ValueId x) {
    const ValueId y = leaky_relu(t, "a", scale(t, "s", x, 0.7), 0.3);
    fuse(t);
    CHECK(t.nodes().size() == 1);
    return y;
  });
  check_gradients("channel affine", cube, [](Tape& t, ValueId x) { return channel_affine(t, "s", x); });
  check_gradients("global average pool", cube, [](Tape& t, ValueId x) { return global_avg_pool(t, "g", x); });
  check_gradients("cast", cube, [](Tape& t, ValueId x) {
    return convoy::tanh(t, "a", t.emit({OpKind::cast, CastAttrs{DType::f64}}, "c.forward", {x}), 1);
  });
  check_gradients("normalise by mean has no gradient, what follows has", cube, [](Tape& t, ValueId x) {
    const ValueId raw = t.state("raw", TensorDesc({2, 4, 5, 6, 4}, DType::f64), {StateInit::Kind::constant, 2, 0, 0});
    return t.emit({OpKind::add, NoAttrs{}}, "s.forward",
                  {t.emit({OpKind::divide_by_mean, CastAttrs{DType::f64}}, "m.forward", {raw}), x});
  });
}

TEST_CASE("weights may be computed, and read as data too, in any storage type", "[gradients]") {
  const auto gradient = [](DType compute) {
    Tape forward;
    const TensorDesc small({3, 1, 3, 3, 3}, DType::f32);
    const ValueId x = forward.input("x", small),
                  w = forward.parameter("w", small.shape, {StateInit::Kind::he_normal, 0, 27, 0}),
                  used = leaky_relu(forward, "used", w, 0.5),
                  y = forward.emit({OpKind::conv_forward, ConvAttrs{}}, "conv.forward", {x, used}),
                  mean = avg_pool(forward, "mean", used, {.kernel = {1, 3, 3}}),
                  sum = forward.emit({OpKind::add, NoAttrs{}}, "sum.forward", {y, mean}),
                  target = forward.input("target", forward.desc(sum));
    forward.keep(regression_loss(forward, "loss", Loss::mse, sum, target), "loss");
    Tape tape = apply_precision(forward, compute);
    const TensorDesc counters(Shape::vector(int64_t(ScaleField::count)), DType::f64);
    const ValueId scale = tape.state(scale_state_name, counters, {StateInit::Kind::constant, 1});
    const std::vector<ValueId> wanted{tape.find("w")};
    const ValueId result = differentiate(tape, tape.find("loss"), scale, wanted).at(0);
    CHECK(tape.desc(result).dtype == DType::f32);
    tape.keep(result, "gradient");
    StateStore store;
    store.initialise(tape, 3);
    const Plan plan = make_plan(tape, kernel_list(), {});
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
    for (const char* input : {"x", "target"}) {
      int i = 0;
      for (float& v : e.tensor(input).span<float>()) v = float(++i % 7) / 4 - 0.75f;
    }
    e.refresh();
    e.run();
    const auto span = e.tensor("gradient").span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  const std::vector<float> wide = gradient(DType::f32), narrow = gradient(DType::bf16);
  float largest = 0, error = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    largest = std::max(largest, std::abs(wide[i]));
    error = std::max(error, std::abs(wide[i] - narrow[i]));
  }
  CHECK(largest > 0);
  CHECK(error < 0.02f * largest);
}

TEST_CASE("gradients may be asked for of what is computed", "[gradients]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({2, 1, 1, 1, 3}, DType::f32)), y = leaky_relu(tape, "y", x, 0.5),
                target = tape.input("target", tape.desc(y)), loss = regression_loss(tape, "loss", Loss::mse, y, target),
                scale = tape.state(scale_state_name, TensorDesc(Shape::vector(int64_t(ScaleField::count)), DType::f64));
  const std::vector<ValueId> alone{y}, both{y, x};
  CHECK(tape.desc(differentiate(tape, loss, scale, alone).at(0)) == tape.desc(y));
  CHECK(tape.desc(differentiate(tape, loss, scale, both).at(1)) == tape.desc(x));
}

TEST_CASE("the L2 penalty enters loss and gradient as in Keras", "[gradients]") {
  Tape tape(DType::f64);
  const ValueId x = tape.state("x", TensorDesc({1, 1, 1, 1, 3}, DType::f64), {StateInit::Kind::constant, 1, 0, 0});
  const ValueId y = dense(tape, "d", x, {.units = 2, .bias = Bias::none});
  const ValueId target = tape.state("t", TensorDesc({1, 1, 1, 1, 2}, DType::f64));
  TrainingOptions options;
  options.sgd.momentum = 0;
  const ValueId loss = regression_loss(tape, "loss", Loss::mse, y, target);
  Tape plain = tape;
  add_training(plain, loss, options);
  options.l2 = 0.05;
  options.l2_parameters = {"d.weight"};
  add_training(tape, loss, options);
  std::vector<double> losses;
  std::vector<std::vector<double>> weights;
  std::vector<double> start;
  for (const Tape& t : {plain, tape}) {
    StateStore store;
    store.initialise(t, 3);
    store.get(step_state_name).data<double>()[0] = 0.1;
    const auto w = store.get("d.weight").span<double>();
    start.assign(w.begin(), w.end());
    const Plan plan = make_plan(t, kernel_list(), {});
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
    e.run();
    losses.push_back(e.tensor("loss").data<double>()[0]);
    weights.emplace_back(w.begin(), w.end());
  }
  double squares = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    squares += start[i] * start[i];
    CHECK(weights[1][i] == Approx(weights[0][i] - 0.1 * 2 * 0.05 * start[i]).epsilon(1e-12));
  }
  CHECK(losses[1] == Approx(losses[0] + 0.05 * squares).epsilon(1e-12));
}

TEST_CASE("momentum has Keras' form and Adam follows the paper", "[optimizer]") {
  // One scalar weight with gradient of (w - t)^2: by hand over three steps with a changing rate.
  for (OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adam}) {
    Tape tape(DType::f64);
    const ValueId one =
        tape.state("one", TensorDesc({1, 1, 1, 1, 1}, DType::f64), {StateInit::Kind::constant, 1, 0, 0});
    const ValueId y = dense(tape, "d", one, {.units = 1, .bias = Bias::none});
    const ValueId loss =
        regression_loss(tape, "loss", Loss::mse, y, tape.state("t", TensorDesc({1, 1, 1, 1, 1}, DType::f64)));
    TrainingOptions options;
    options.optimizer = kind;
    add_training(tape, loss, options);
    StateStore store;
    store.initialise(tape, 3);
    store.get(scale_state_name).data<double>()[0] = 4;
    double& w = store.get("d.weight").data<double>()[0];
    w = 1;
    const Plan plan = make_plan(tape, kernel_list(), {});
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
    double expected = 1, v = 0, m = 0, s = 0;
    for (int t = 1; t <= 3; ++t) {
      const double rate = 0.1 / t, g = 2 * expected;
      store.get(step_state_name).data<double>()[int(StepField::learning_rate)] = rate;
      e.run();
      if (kind == OptimizerKind::sgd) {
        v = 0.9 * v - rate * g;
        expected += v;
      } else {
        m = 0.9 * m + 0.1 * g, s = 0.999 * s + 0.001 * g * g;
        expected -= rate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(s / (1 - std::pow(0.999, t))) + 1e-7);
      }
      CHECK(w == Approx(expected).epsilon(1e-12));
    }
  }
}
