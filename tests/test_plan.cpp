// Memory of whole plans: what a node reads is what was written last in those bytes.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "core/passes/passes.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/program.h"
#include "tests/plan_run.h"

using namespace convoy;

namespace {

/// Who wrote which bytes last.
class Bytes {
 public:
  void write(int64_t begin, int64_t end, int writer) {
    cut(begin), cut(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    ranges_[begin] = {end, writer};
  }

  std::set<int> writers(int64_t begin, int64_t end) const {
    std::set<int> found;
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin()) --at;
    for (; at != ranges_.end() && at->first < end; ++at)
      if (at->second.first > begin) found.insert(at->second.second);
    return found;
  }

 private:
  void cut(int64_t where) {
    auto at = ranges_.lower_bound(where);
    if (at == ranges_.begin()) return;
    --at;
    auto& [end, writer] = at->second;
    if (end <= where) return;
    ranges_[where] = {end, writer};
    end = where;
  }

  std::map<int64_t, std::pair<int64_t, int>> ranges_;
};

constexpr int workspace = -1;

/// The first read, over two runs, of bytes that another value's writer has used since; empty: there is none.
std::string overwritten_read(const Plan& plan) {
  const auto count = plan.values.size();
  std::vector<bool> produced(count);
  std::vector<std::set<int>> same(count);  // tags under which a value's bytes still hold the value
  for (size_t v = 0; v < count; ++v) {
    produced[v] = plan.values[v].kind == ValueKind::input;
    same[v] = {static_cast<int>(v)};
  }
  for (const PlannedNode& node : plan.nodes) {
    for (ValueId id : node.out) produced[static_cast<size_t>(id)] = true;
    if (node.op.kind == OpKind::unbucket)
      same[static_cast<size_t>(node.in[0])].insert(node.out.begin(), node.out.end());
  }
  Bytes bytes;
  // Concatenated values have no writer of their own, their slices are not dense: both are left to the kernels' tests.
  const auto placed = [&](ValueId id) {
    const auto v = static_cast<size_t>(id);
    return plan.offset[v] >= 0 && plan.values[v].desc.dense() && produced[v];
  };
  const auto write = [&](ValueId id) {
    const auto v = static_cast<size_t>(id);
    if (plan.offset[v] >= 0) bytes.write(plan.offset[v], plan.offset[v] + plan.values[v].desc.span_bytes(), id);
  };
  const auto overwritten = [&](ValueId id, const std::string& reader) -> std::string {
    const auto v = static_cast<size_t>(id);
    if (!placed(id)) return "";
    for (int writer : bytes.writers(plan.offset[v], plan.offset[v] + plan.values[v].desc.bytes()))
      if (!same[v].contains(writer))
        return reader + " reads " + plan.values[v].name + " behind a write of " +
               (writer == workspace ? "a workspace" : plan.values[static_cast<size_t>(writer)].name);
    return "";
  };
  for (int run = 0; run < 2; ++run) {
    for (size_t v = 0; v < count; ++v)
      if (plan.values[v].kind == ValueKind::input) write(static_cast<ValueId>(v));
    for (const PlannedNode& node : plan.nodes) {
      if (node.refresh && run > 0) continue;
      for (const auto* list : {&node.in, &node.packed})
        for (ValueId id : *list)
          if (std::string found = overwritten(id, node.name); !found.empty()) return found;
      if (node.workspace_bytes > 0) {
        bytes.write(node.workspace_offset, node.workspace_offset + node.workspace_bytes, workspace);
        // It is in use while operands still are.
        for (const auto* list : {&node.in, &node.packed})
          for (ValueId id : *list)
            if (std::string found = overwritten(id, node.name); !found.empty()) return found;
      }
      for (ValueId id : node.out) write(id);
      if (node.workspace_bytes > 0 &&
          bytes.writers(node.workspace_offset, node.workspace_offset + node.workspace_bytes) != std::set{workspace})
        return node.name + " writes its outputs into its workspace";
    }
    for (size_t v = 0; v < count; ++v)
      if (plan.values[v].keep)
        if (std::string found = overwritten(static_cast<ValueId>(v), "the end of the run"); !found.empty())
          return found;
  }
  return "";
}

std::vector<std::string> overwritten_reads(const ProgramPlans& plans) {
  std::vector<std::string> found{overwritten_read(plans.step), overwritten_read(plans.evaluate)};
  if (plans.micro) found.push_back(overwritten_read(*plans.micro));
  if (plans.statistics) found.push_back(overwritten_read(*plans.statistics));
  std::erase(found, "");
  return found;
}

CosmoflowOptions small_cosmoflow() {
  CosmoflowOptions o;
  o.model.size = 16, o.model.conv_size = 16, o.model.layers = 3, o.model.fc1_size = 16, o.model.fc2_size = 8;
  o.plan.threads = 2;
  return o;
}

}  // namespace

TEST_CASE("no value is read behind a write of another one into its memory", "[planner]") {
  const DType compute = GENERATE(DType::f32, DType::bf16);
  const int ranks = GENERATE(1, 2);
  SECTION("CosmoFlow") {
    CosmoflowOptions o = small_cosmoflow();
    o.compute = compute, o.training.averaging.ranks = ranks;
    o.training.averaging.bucket_bytes = GENERATE(0, 3000);
    o.training.l2 = GENERATE(0.0, 0.01);
    o.training.accumulation = GENERATE(1, 2);
    o.plan.recompute = o.training.accumulation > 1;
    CHECK(overwritten_reads(plan_program(o, kernel_list())) == std::vector<std::string>{});
  }
  SECTION("climate segmentation") {
    ClimateOptions o;
    o.model.model = GENERATE(ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu);
    o.model.height = o.model.width = 64;
    o.compute = compute, o.training.averaging.ranks = ranks;
    o.plan.threads = 2;
    o.plan.recompute = GENERATE(false, true);
    o.statistics_pass = true;
    CHECK(overwritten_reads(plan_program(o, kernel_list())) == std::vector<std::string>{});
  }
}

TEST_CASE("an input that no node reads keeps away from weights that are packed once", "[planner]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc(Shape(1, 4, 16, 16, 16), DType::f32));
  const ValueId weight = tape.state("weight", TensorDesc(Shape(16, 3, 3, 3, 16), DType::f32));
  const ValueId other = tape.state("other", TensorDesc(Shape(16, 3, 3, 3, 16), DType::f32));
  tape.input("unread", TensorDesc(Shape::vector(1 << 20), DType::f32));
  ConvAttrs attrs;
  attrs.pad_low = attrs.pad_high = {1, 1, 1};
  const ValueId y = tape.emit({OpKind::conv_forward, attrs}, "first", {x, weight});
  tape.keep(tape.emit({OpKind::conv_forward, attrs}, "second", {y, other}), "prediction");
  PlanOptions options;
  options.threads = 2;
  const Plan plan = make_plan(tape, kernel_list(), options);
  if (cpu_features().avx2)
    REQUIRE(std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlannedNode& n) { return n.refresh; }));
  CHECK(overwritten_read(plan) == "");
}

TEST_CASE("what is kept has its bytes to the end, though no node is left that touches it", "[planner]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 6, 6, 16}, DType::f32));
  const ValueId a = leaky_relu(tape, "a", x, 0.3), b = leaky_relu(tape, "b", a, 0.1);
  tape.keep(concat(tape, "joined", {a, b}), "joined");
  ValueId y = x;  // which would gladly take the bytes of the concatenation
  for (int i = 0; i < 4; ++i)
    y = max_pool(tape, "y" + std::to_string(i), y, {.kernel = {1, 1, 1}, .stride = {1, 1, 1}});
  tape.keep(y, "y");
  std::vector<float> results[2];
  for (const bool slices : {false, true}) {
    PlanOptions options;
    options.slice_aliasing = slices;
    const Plan plan = make_plan(tape, kernel_list(), options);
    const bool copies = std::any_of(plan.nodes.begin(), plan.nodes.end(),
                                    [](const PlannedNode& n) { return n.op.kind == OpKind::concat; });
    CHECK(copies == !slices);
    results[slices] = testing::kept_of_ramp(plan, "joined");
  }
  CHECK(results[0] == results[1]);

  Tape empty;
  empty.keep(empty.input("x", TensorDesc(Shape::vector(4), DType::f32)), "x");
  const Plan plan = make_plan(empty, kernel_list(), {});
  StateStore store;
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
  e.run();
  CHECK(e.tensor("x").shape().elements() == 4);
}

TEST_CASE("a node that no kernel runs is a wrong argument", "[planner]") {
  Tape tape;
  tape.keep(relu(tape, "a", tape.input("x", TensorDesc({1, 1, 2, 2, 4}, DType::f32))), "y");
  try {
    make_plan(tape, KernelList{}, {});
    FAIL("planned");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK_THAT(error.what(), Catch::StartsWith("no kernel supports a.activation: "));
  }
}

TEST_CASE("small nodes of a kind stand next to each other for a device", "[planner]") {
  ClimateOptions o;
  o.model.height = 32, o.model.width = 48;
  o.model.width_divisor = 8;
  o.compute = DType::bf16;
  ClimateOptions several = o;
  several.training.accumulation = 2;
  std::vector<std::pair<Tape, bool>> tapes{{training_tape(o), false},
                                           {training_tape(several), true},
                                           {training_tape(several, Ending::accumulate), true},
                                           {evaluation_tape(o), false},
                                           {statistics_tape(o), false}};
  for (auto& [tape, accumulates] : tapes) {
    std::vector<Node> nodes = tape.nodes();
    const std::vector<Value>& values = tape.values();
    gather(values, nodes);
    CHECK(nodes.size() == tape.nodes().size());
    tape.set_nodes(nodes);
    tape.verify();
    const auto runs = [&](auto&& wanted) {
      int64_t count = 0;
      for (size_t i = 0; i < nodes.size(); ++i) count += wanted(nodes[i]) && (i == 0 || !wanted(nodes[i - 1]));
      return count;
    };
    CHECK(runs([&](const Node& n) {
            return n.op.kind == OpKind::cast && values[static_cast<size_t>(n.in[0])].kind == ValueKind::state;
          }) == 1);
    CHECK(runs([&](const Node& n) { return n.op.kind == OpKind::batch_norm_update; }) <= 1);
    // A step that adds earlier gradients reads each where it is written: there they stay.
    const auto gradients = runs([&](const Node& n) { return n.op.kind == OpKind::batch_norm_backward_parameters; });
    CHECK((gradients <= 1 || accumulates));
  }
}

TEST_CASE("what runs once per change of the states is no launch with what runs every time", "[planner]") {
  struct Cast final : Joinable {
    bool joins(const Prepared& next) const override { return dynamic_cast<const Cast*>(&next); }
    void run_joined(std::span<const KernelRun>) const override {}
  };
  KernelList kernels;
  kernels.push_back(std::make_unique<FunctionKernel>(
      "joined", OpKind::cast, [](const Problem&) { return Support::yes(); },
      [](const Problem&) -> std::unique_ptr<Prepared> { return std::make_unique<Cast>(); }));
  for (KernelPtr& kernel : make_kernel_list())
    if (kernel->name() == reference_name) kernels.push_back(std::move(kernel));
  Tape tape;
  const TensorDesc desc({1, 1, 2, 3, 4}, DType::f32);
  const auto narrow = [&](const std::string& name, ValueId from) {
    return tape.emit({OpKind::cast, CastAttrs{DType::bf16}}, name, {from});
  };
  const ValueId a = narrow("a.cast", tape.state("a", desc)), b = narrow("b.cast", tape.state("b", desc)),
                x = narrow("x.cast", tape.input("x", desc));
  const ValueId sum = tape.emit({OpKind::add, NoAttrs{}}, "sum", {a, b});
  tape.keep(tape.emit({OpKind::add, NoAttrs{}}, "result", {sum, x}), "y");
  const Plan plan = make_plan(tape, kernels, {});
  std::vector<int> together;
  for (const PlannedNode& node : plan.nodes)
    if (node.sweep_size > 0) together.push_back(node.sweep_size);
  CHECK(together == std::vector<int>{2, 1, 1, 1});
}

TEST_CASE("a data gradient is summed on top of what was there before it", "[passes]") {
  const TensorDesc image({1, 1, 8, 8, 16}, DType::f32), weight({16, 1, 3, 3, 16}, DType::f32);
  const Op data{OpKind::conv_backward_data,
                ConvAttrs{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = {1, 8, 8}}};
  const Op add{OpKind::add, NoAttrs{}};
  const auto kinds = [](Tape& tape) {
    fuse_gradient_sums(tape);
    tape.verify();
    std::vector<OpKind> found;
    for (const Node& node : tape.nodes()) found.push_back(node.op.kind);
    return found;
  };
  const auto is = [](std::vector<OpKind> kinds) { return kinds; };
  using K = OpKind;
  Tape tape;
  const ValueId x = tape.input("x", image), y = tape.input("y", image), w = tape.input("w", weight);
  SECTION("one after the other, whichever side of the addition it is on") {
    const ValueId first = tape.emit(add, "a.add", {x, tape.emit(data, "a.backward_data", {y, w})});
    tape.keep(tape.emit(add, "b.add", {tape.emit(data, "b.backward_data", {first, w}), first}), "sum");
    CHECK(kinds(tape) == is({K::conv_backward_data_add, K::conv_backward_data_add}));
    CHECK(tape.nodes()[1].in == std::vector<ValueId>{first, w, first});
  }
  SECTION("of two convolutions the later one") {
    const ValueId a = tape.emit(data, "a.backward_data", {x, w}), b = tape.emit(data, "b.backward_data", {y, w});
    tape.keep(tape.emit(add, "add", {a, b}), "sum");
    CHECK(kinds(tape) == is({K::conv_backward_data, K::conv_backward_data_add}));
    CHECK(tape.nodes()[1].in == std::vector<ValueId>{y, w, a});
  }
  SECTION("not where the other value comes later") {
    const ValueId a = tape.emit(data, "a.backward_data", {x, w}), b = tape.emit(add, "b", {x, y});
    tape.keep(tape.emit(add, "add", {b, a}), "sum");
    CHECK(kinds(tape) == is({K::conv_backward_data, K::add, K::add}));
  }
  SECTION("not where the gradient is read elsewhere, or kept") {
    const ValueId a = tape.emit(data, "a.backward_data", {x, w});
    tape.keep(tape.emit(add, "add", {y, a}), "sum");
    tape.keep(a, "gradient");
    CHECK(kinds(tape) == is({K::conv_backward_data, K::add}));
  }
  SECTION("not with a bias, nor twice the same") {
    const ValueId bias = tape.input("bias", TensorDesc(Shape::vector(16), DType::f32));
    const ValueId a = tape.emit(data, "a.backward_data", {x, w, bias});
    const ValueId b = tape.emit(add, "add", {y, a}), c = tape.emit(data, "c.backward_data", {b, w});
    tape.keep(tape.emit(add, "twice", {c, c}), "sum");
    CHECK(kinds(tape) == is({K::conv_backward_data, K::add, K::conv_backward_data, K::add}));
  }
}

TEST_CASE("a factor and the activation behind it are one", "[passes]") {
  const TensorDesc image({1, 1, 8, 8, 16}, DType::f32), weight({16, 1, 3, 3, 16}, DType::f32);
  Tape tape;
  const ValueId x = tape.input("x", image), w = tape.input("w", weight);
  const auto kinds = [&] {
    fuse(tape);
    fuse_convolutions(tape);
    tape.verify();
    std::string found;
    for (const Node& node : tape.nodes()) found += std::string(name_of(node.op.kind)) + " ";
    return found;
  };
  SECTION("with the factor kept, behind a convolution too, which ends in no such activation") {
    const ValueId y =
        tape.emit({OpKind::conv_forward, ConvAttrs{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}}, "c.forward", {x, w});
    tape.keep(relu(tape, "r", scale(tape, "s", y, 0.5)), "y");
    CHECK(kinds() == "conv_forward activation ");
    CHECK(tape.nodes()[1].op.as<ActivationAttrs>().scale == 0.5);
    CHECK(tape.nodes()[1].in == std::vector<ValueId>{y});
  }
  SECTION("not a factor that turns signs, nor one that others read") {
    tape.keep(relu(tape, "r", scale(tape, "s", x, -0.5)), "y");
    const ValueId half = scale(tape, "h", x, 0.5);
    tape.keep(relu(tape, "q", half), "z");
    tape.keep(tape.emit({OpKind::add, NoAttrs{}}, "add", {half, x}), "sum");
    CHECK(kinds() == "scale activation scale activation add ");
  }
  SECTION("a pool takes the activation first") {
    tape.keep(max_pool(tape, "p", relu(tape, "r", scale(tape, "s", x, 0.5)), {.kernel = {1, 2, 2}}), "y");
    CHECK(kinds() == "scale activation_max_pool ");
  }
}

TEST_CASE("a sum runs the kernel of its convolution, or stays apart", "[planner]") {
  using K = OpKind;
  const auto kernel_of = [](std::string_view name, OpKind kind) {
    return std::make_unique<FunctionKernel>(
        name, kind, [](const Problem&) { return Support::yes(); },
        [](const Problem&) -> std::unique_ptr<Prepared> {
          return std::make_unique<PreparedFunction>([](const KernelArgs&) {});
        });
  };
  const TensorDesc image({1, 1, 8, 8, 16}, DType::f32), weight({16, 1, 3, 3, 16}, DType::f32);
  Tape tape;
  const ValueId x = tape.input("x", image), y = tape.input("y", image), w = tape.input("w", weight);
  const Op op{OpKind::conv_backward_data_add,
              ConvAttrs{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = {1, 8, 8}}};
  tape.keep(tape.emit(op, "a.backward_data", {x, w, y}), "sum");
  const auto planned = [&](const KernelList& list, const std::string& wish = {}) {
    PlanOptions o;
    if (!wish.empty()) o.selection.overrides.push_back({"*.backward_data", wish});
    std::string text;
    for (const PlannedNode& node : make_plan(tape, list, o).nodes)
      text += node.name + " " + node.kernel + " " + std::string(name_of(node.op.kind)) + "\n";
    return text;
  };
  KernelList list;
  list.push_back(kernel_of("alone", K::conv_backward_data));
  list.push_back(kernel_of("slower", K::conv_backward_data));
  list.push_back(kernel_of("slower", K::conv_backward_data_add));
  list.push_back(kernel_of("adds", K::add));
  // The faster kernel knows no sums.
  CHECK(planned(list) == "a.backward_data alone conv_backward_data\na.backward_data/add adds add\n");
  CHECK(planned(list, "slower") == "a.backward_data slower conv_backward_data_add\n");
  list.push_back(kernel_of("alone", K::conv_backward_data_add));
  CHECK(planned(list) == "a.backward_data alone conv_backward_data_add\n");
  // A table speaks of the convolution alone.
  PlanOptions tuned;
  tuned.selection.tuned.set(
      Problem{{OpKind::conv_backward_data, op.attrs}, {image, weight}, {image}, DeviceKind::cpu, tuned.threads},
      "slower");
  CHECK(make_plan(tape, list, tuned).nodes.at(0).kernel == "slower");
  PlanOptions without;
  without.selection.excluded = {"alone"};
  CHECK(make_plan(tape, list, without).nodes.at(0).kernel == "slower");
}
