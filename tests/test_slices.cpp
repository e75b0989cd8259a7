// Concatenations and slices that are written in place, and where they are not.
#include <algorithm>
#include <array>

#include "core/passes/passes.h"
#include "core/passes/slices.h"
#include "kernels/kernel_list.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/plan_run.h"

using namespace convoy;

TEST_CASE("concatenations are written in place and give the same bits as copies", "[slices]") {
  const auto build = [] {
    Tape tape;
    const ValueId x = tape.input("x", TensorDesc({1, 1, 6, 6, 16}, DType::f32));
    const ValueId a = leaky_relu(tape, "a", x, 0.3), b = leaky_relu(tape, "b", a, 0.1);
    const ValueId joined = tape.emit({OpKind::concat, NoAttrs{}}, "joined.forward", {a, b});
    const ValueId part = tape.emit({OpKind::slice, SliceAttrs{8, 16}}, "part.forward", {joined});
    tape.keep(tape.emit({OpKind::add, NoAttrs{}}, "sum.forward", {part, a}), "result");
    return tape;
  };
  PlanOptions on;
  std::vector<std::vector<float>> results;
  for (const PlanOptions& options : {on, plain_options(on)}) {
    const Plan plan = make_plan(build(), kernel_list(), options);
    const bool copies = std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlannedNode& n) {
      return n.op.kind == OpKind::concat || n.op.kind == OpKind::slice;
    });
    CHECK(copies == !options.slice_aliasing);
    results.push_back(testing::kept_of_ramp(plan, "result"));
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("values of 16 bits stay out of places that are less even than they look", "[slices]") {
  // Whether three parts are written in place, behind `outer` more channels.
  const auto in_place = [](DType type, const std::array<int64_t, 3>& channels, int64_t outer, bool even_places) {
    Tape tape;
    const auto part = [&](const std::string& name, int64_t c) {
      return leaky_relu(tape, name, tape.input(name + ".in", TensorDesc({1, 1, 2, 3, c}, type)), 0.5);
    };
    ValueId joined = tape.emit({OpKind::concat, NoAttrs{}}, "joined.forward",
                               {part("a", channels[0]), part("b", channels[1]), part("c", channels[2])});
    if (outer > 0) joined = tape.emit({OpKind::concat, NoAttrs{}}, "outer.forward", {part("d", outer), joined});
    tape.keep(joined, "joined");
    std::vector<Value> values = tape.values();
    std::vector<Node> nodes = tape.nodes();
    alias_slices(
        values, nodes, [](const Node&) { return true; }, even_places);
    return std::none_of(nodes.begin(), nodes.end(), [](const Node& n) { return n.name == "joined.forward"; });
  };
  CHECK(in_place(DType::bf16, {8, 64, 8}, 0, true));
  CHECK_FALSE(in_place(DType::bf16, {4, 64, 4}, 0, true));
  CHECK(in_place(DType::bf16, {4, 64, 4}, 0, false));
  CHECK(in_place(DType::f32, {4, 64, 4}, 0, true));
  CHECK(in_place(DType::f16, {4, 60, 8}, 0, true));         // nobody takes eights of 60
  CHECK_FALSE(in_place(DType::f16, {3, 6, 3}, 0, true));    // but twos of 6
  CHECK_FALSE(in_place(DType::bf16, {8, 64, 4}, 4, true));  // at 4 and 12 of 80
  CHECK(in_place(DType::bf16, {8, 64, 8}, 8, true));
}

TEST_CASE("a slice inside a concatenation keeps its values", "[slices]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 2, 2, 16}, DType::f32));
  const ValueId a = leaky_relu(tape, "a", x, 0.5),
                part = tape.emit({OpKind::slice, SliceAttrs{4, 8}}, "part.forward", {a});
  tape.keep(leaky_relu(tape, "b", tape.emit({OpKind::concat, NoAttrs{}}, "joined.forward", {part, a}), 1), "result");
  std::vector<std::vector<float>> results;
  for (const PlanOptions& options : {PlanOptions{}, plain_options({})}) {
    const Plan plan = make_plan(tape, kernel_list(), options);
    StateStore store;
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
    float value = 0;
    for (float& v : e.tensor("x").span<float>()) v = value += 1;
    e.run();
    const auto span = e.tensor("result").span<float>();
    results.emplace_back(span.begin(), span.end());
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0][0] == 5);
}
