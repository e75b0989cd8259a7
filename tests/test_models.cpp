// What sets a network and its first weights apart, where shapes and FLOPs are the same.
#include <algorithm>
#include <cmath>

#include "core/state_store.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

bool has(const Tape& tape, OpKind kind) {
  const auto nodes = tape.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.op.kind == kind; });
}

CosmoflowOptions variant(const CosmoflowConfig& config) {
  CosmoflowOptions o;
  o.model = config;
  return o;
}

}  // namespace

TEST_CASE("weights of one shape begin different, PyTorch's within its bound", "[init]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 1, 1, 400}, DType::f32));
  for (const char* name : {"a", "b"})
    dense(tape, name, x, {.units = 200, .bias = Bias::torch_uniform, .initializer = Initializer::torch_uniform});
  StateStore store;
  store.initialise(tape, 1);
  const auto values = [&](const char* name) { return store.get(name).span<float>(); };
  CHECK_FALSE(std::equal(values("a.weight").begin(), values("a.weight").end(), values("b.weight").begin()));
  const double limit = 1 / std::sqrt(400.0);
  for (const char* name : {"a.weight", "a.bias"}) {
    double squares = 0, largest = 0;
    for (float v : values(name)) squares += double(v) * v, largest = std::max<double>(largest, std::abs(v));
    INFO(name);
    CHECK(largest <= limit);
    CHECK(squares / double(values(name).size()) == Approx(limit * limit / 3).epsilon(0.2));
  }
}

TEST_CASE("attributes keep all their digits as text", "[text]") {
  PixelLossAttrs loss;
  loss.weights = {1.0017312345678901, 2.6145678901234567, 1.0 / 3};
  loss.gamma = 2.0 / 3;
  CHECK(parse_op(to_text({OpKind::pixel_loss, loss})) == Op{OpKind::pixel_loss, loss});
}

TEST_CASE("LBANN's network begins by predicting nothing", "[init]") {
  CosmoflowOptions o = variant(CosmoflowConfig::lbann());
  o.model.size = 32;
  StateStore store;
  store.initialise(training_tape(o), 1);
  const auto last = store.get("dense3.weight").span<float>(), first = store.get("dense1.weight").span<float>();
  CHECK(std::all_of(last.begin(), last.end(), [](float v) { return v == 0; }));
  CHECK(std::any_of(first.begin(), first.end(), [](float v) { return v != 0; }));
}

TEST_CASE("the paper of 2018 pools by means, and no network drops in evaluation", "[models]") {
  const Tape paper = training_tape(variant(CosmoflowConfig::sc18()));
  CHECK(has(paper, OpKind::avg_pool));
  CHECK_FALSE(has(paper, OpKind::max_pool));
  for (const CosmoflowConfig& config : {CosmoflowConfig{}, CosmoflowConfig::lbann(), CosmoflowConfig::sc18()}) {
    CosmoflowOptions o = variant(config);
    o.model.dropout = 0.5;
    CHECK(has(training_tape(o), OpKind::dropout));
    CHECK_FALSE(has(evaluation_tape(o), OpKind::dropout));
  }
  ClimateOptions o;
  o.model.model = ClimateModel::tiramisu;
  o.model.height = 32, o.model.width = 48, o.model.blocks = {2, 2};
  o.model.dropout = 0.2, o.model.batch_norm = true;
  const Tape tiramisu = training_tape(o);
  CHECK(has(tiramisu, OpKind::dropout));
  // Its logits, too, drop.
  const auto drops = [](const Node& node) {
    return node.op.kind == OpKind::dropout && node.name.starts_with("logits.");
  };
  CHECK(std::ranges::any_of(tiramisu.nodes(), drops));
  CHECK_FALSE(has(evaluation_tape(o), OpKind::dropout));
  CHECK_FALSE(has(statistics_tape(o), OpKind::dropout));
}
