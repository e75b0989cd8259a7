// What a tape, and an executor of its plan, refuse to be asked.
#include <cmath>

#include "core/executor.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "tests/catch.hpp"

using namespace convoy;

TEST_CASE("the host reads values that are kept, and others only where memory is used once", "[executor]") {
  Tape tape;
  const TensorDesc map({1, 1, 4, 4, 8}, DType::f32);
  const ValueId x = tape.input("x", map);
  const ValueId doubled = scale(tape, "doubled", x, 2), half = scale(tape, "half", x, 0.5);
  const ValueId both = concat(tape, "both", {doubled, half});
  tape.keep(both, "result");
  tape.keep(scale(tape, "last", tanh(tape, "curved", both, 1), 3), "last");
  tape.state("memory", map);
  StateStore store;
  store.initialise(tape, 1);
  PlanOptions once;
  once.reuse_memory = once.in_place = once.slice_aliasing = false;
  for (const PlanOptions& options : {PlanOptions{}, once}) {
    const Plan plan = make_plan(tape, kernel_list(), options);
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
    for (float& v : e.tensor("x").span<float>()) v = 3;
    e.run();
    CHECK(e.tensor("result").at(0, 0, 0, 0, 0) == 6);
    CHECK(e.tensor("result").at(0, 0, 0, 0, 15) == 1.5);
    CHECK(e.tensor("last").at(0, 0, 0, 0, 0) == Approx(3 * std::tanh(6.)));
    CHECK(e.tensor("memory").at(0, 0, 0, 0, 0) == 0);
    CHECK_THROWS_WITH(e.tensor("results"), Catch::Contains("no value is named \"results\""));
    for (const auto& [name, expected] : {std::pair{"doubled.forward", 6.}, {"curved.activation", std::tanh(6.)}}) {
      if (options.reuse_memory)
        CHECK_THROWS_WITH(e.tensor(name), Catch::Contains(std::string("value ") + name +
                                                          ": expected an input, a state or a kept value (Tape::keep") &&
                                              Catch::Contains("PlanOptions::reuse_memory"));
      else
        CHECK(e.tensor(name).at(0, 0, 0, 0, 0) == Approx(expected));
    }
  }
}

TEST_CASE("ids of no value are refused by node and input", "[tape]") {
  Tape tape;
  const TensorDesc desc(Shape::vector(4), DType::f32);
  const ValueId x = tape.input("x", desc);
  const auto usage = [](auto call, const std::string& message) {
    try {
      call();
      FAIL("accepted; expected: " << message);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK_THAT(error.what(), Catch::Contains(message));
    }
  };
  usage([&] { add(tape, "sum", x, tape.find("typo")); },
        "sum.forward: input 1: expected a value of the tape, found no_value");
  usage([&] { add(tape, "sum", 7, x); }, "sum.forward: input 0: expected a value of the tape, found number 7 of 1");
  CHECK(tape.nodes().empty());
  usage([&] { tape.desc(tape.find("typo")); }, "expected a value of the tape, found no_value");
  usage([&] { conv(tape, "c", 7, {.channels = 8}); }, "found number 7 of 1");
  usage([&] { tape.keep(no_value, "result"); }, "found no_value");
}

TEST_CASE("inputs of no floating-point type are refused by the types that would do", "[infer]") {
  Tape tape;
  const ValueId bytes = tape.input("bytes", TensorDesc(Shape::vector(4), DType::u8));
  const ValueId wide = tape.input("wide", TensorDesc(Shape::vector(4), DType::f32));
  CHECK_THROWS_WITH(relu(tape, "r", bytes), Catch::Contains("input 0 has type u8, expected a floating-point type"));
  CHECK_THROWS_WITH(add(tape, "sum", wide, bytes), Catch::Contains("input 1 has type u8, expected f32"));
}
