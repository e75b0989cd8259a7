// Which kernel runs a node: overrides, the tuned table, preferences, and what refusals say.
#include <algorithm>
#include <filesystem>
#include <map>

#include "core/select.h"
#include "core/text.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/idle_overrides.h"
#include "models/program.h"
#include "models/tuned_share.h"
#include "tests/catch.hpp"
#include "tests/small_cosmoflow.h"
#include "tests/temporary.h"

using namespace convoy;

namespace {

/// The f32 kernel of this kind for an instruction set that is built and runs here; none: empty.
std::string vector_kernel(const std::string& kind) {
  const CpuFeatures& cpu = cpu_features();
  for (const auto& [isa, runs] : {std::pair{"_avx2", cpu.avx2}, {"_avx512", cpu.avx512}})
    for (const KernelPtr& kernel : kernel_list())
      if (runs && kernel->name() == kind + isa) return kind + isa;
  return "";
}

/// A kernel that says what it is told to.
class Named final : public Kernel {
 public:
  Named(std::string_view name, bool supported, bool faster, std::string_view reason = "not here")
      : name_(name), reason_(reason), supported_(supported), faster_(faster) {}
  std::string_view name() const override { return name_; }
  Support supports(const Problem&) const override {
    return supported_ ? Support::yes() : Support::no(std::string(reason_));
  }
  bool preferred(const Problem&) const override { return faster_; }
  std::unique_ptr<Prepared> prepare(const Problem&) const override { return nullptr; }

 private:
  std::string_view name_, reason_;
  bool supported_, faster_;
};

/// A kernel that refuses problems of its op for a reason, and those of others as such.
class Refusing final : public Kernel {
 public:
  Refusing(std::string_view name, OpKind op, std::string_view reason) : name_(name), reason_(reason), op_(op) {}
  std::string_view name() const override { return name_; }
  Support supports(const Problem& p) const override {
    return Support::no(p.op.kind == op_ ? std::string(reason_) : "other op");
  }
  std::unique_ptr<Prepared> prepare(const Problem&) const override { return nullptr; }

 private:
  std::string_view name_, reason_;
  OpKind op_;
};

KernelList list_of(const std::vector<Named>& kernels) {
  KernelList list;
  for (const Named& k : kernels) list.push_back(std::make_unique<Named>(k));
  return list;
}

Selection asking(const std::vector<std::string>& overrides) {
  Selection selection;
  for (const std::string& text : overrides) selection.overrides.push_back(parse_override(text));
  return selection;
}

/// For kernels that look at none.
Problem any_problem() {
  return Problem::parse("add{} in=f32:1x1x1x1x1|f32:1x1x1x1x1");
}

}  // namespace

TEST_CASE("a kernel that is wished for a fused node says what it lacks in the plain op", "[select]") {
  KernelList list = make_kernel_list();
  list.insert(list.begin(), std::make_unique<Refusing>("plain", OpKind::conv_forward, "no bias here"));
  CosmoflowOptions o = testing::small_cosmoflow();
  o.plan.selection = asking({"conv1.forward=plain"});
  CHECK_THROWS_WITH(plan_program(o, list), Catch::Contains("it refuses conv_pool_forward") &&
                                               Catch::Contains("other op, and its part conv_forward{") &&
                                               Catch::Contains(": no bias here"));
}

TEST_CASE("kernel overrides, patterns, tuned table and explain", "[select]") {
  CosmoflowOptions o = testing::small_cosmoflow();
  o.plan.selection.overrides = {parse_override("conv1.forward=reference"), parse_override("dense*=reference")};
  const Plan plan = plan_program(o, kernel_list()).step;
  int convolutions = 0, dense = 0;
  for (const PlannedNode& node : plan.nodes) {
    if (node.name == "conv1.forward" || (node.name.starts_with("dense1.") && node.op.kind != OpKind::pack &&
                                         op_def(node.op.kind).name.starts_with("dense"))) {
      INFO(node.name);
      CHECK(node.kernel == "reference");
      CHECK(node.why == "override");
      ++(node.name == "conv1.forward" ? convolutions : dense);
    }
  }
  CHECK(convolutions == 1);
  CHECK(dense >= 3);  // forward and both gradients
  // A kernel of the plain op is asked for at a fused node: its definition takes the node's place and name.
  if (const std::string direct = vector_kernel("direct"); !direct.empty()) {
    o.plan.selection.overrides = {parse_override("conv1.backward_weights=" + direct),
                                  parse_override("conv1.forward=" + direct)};
    bool found = false;
    for (const PlannedNode& node : plan_program(o, kernel_list()).step.nodes)
      if (node.name == "conv1.backward_weights") {
        found = true;
        CHECK(node.kernel == direct);
        CHECK(node.op.kind == OpKind::conv_backward_weights);
      }
    CHECK(found);
  }
  o.plan.selection.overrides = {parse_override("conv1.forward=nonsense")};
  CHECK_THROWS_WITH(plan_program(o, kernel_list()), Catch::Contains("nonsense"));
  o.plan.selection.overrides = {parse_override("conv9.forward=reference")};
  CHECK_THROWS_WITH(plan_program(o, kernel_list()), Catch::Contains("conv9.forward") && Catch::Contains("no node"));
  CHECK_THROWS_WITH(parse_override("conv1"), Catch::Contains("node=kernel"));

  const Tape tape = training_tape(testing::small_cosmoflow());
  const Node& conv1 =
      *std::find_if(tape.nodes().begin(), tape.nodes().end(), [](const Node& n) { return n.name == "conv1.forward"; });
  const Problem p{conv1.op, tape.descs(conv1.in), tape.descs(conv1.out), DeviceKind::cpu, 2};
  Selection tuned;
  tuned.tuned.set(p, "reference");
  CHECK(choose_kernel(kernel_list(), p, "conv1.forward", tuned).why == "tuned");
  // No table brings back what is left out.
  const std::string first(choose_kernel(kernel_list(), p, "conv1.forward", {}).kernel->name());
  tuned.tuned.set(p, first), tuned.excluded = {first};
  if (first != reference_name) CHECK(choose_kernel(kernel_list(), p, "conv1.forward", tuned).kernel->name() != first);
  CHECK(explain(kernel_list(), p).find("reference: yes") != std::string::npos);
}

TEST_CASE("a kernel that was measured faster goes before earlier ones, where it supports the problem", "[select]") {
  const auto chosen = [](const std::vector<Named>& kernels, const std::vector<std::string>& excluded = {}) {
    Selection selection;
    selection.excluded = excluded;
    const KernelList list = list_of(kernels);
    const Choice choice = choose_kernel(list, any_problem(), "node", selection);
    return std::string(choice.kernel->name()) + " " + choice.why;
  };
  CHECK(chosen({{"a", true, false}, {"b", true, false}}) == "a first");
  CHECK(chosen({{"a", true, false}, {"b", true, true}, {"c", true, true}}) == "b preferred");
  CHECK(chosen({{"a", true, false}, {"b", false, true}, {"c", true, true}}) == "c preferred");
  CHECK(chosen({{"a", true, false}, {"b", true, true}}, {"b"}) == "a first");
  CHECK(chosen({{"a", true, false}, {"b", true, true}, {"c", true, true}}, {"a", "b"}) == "c preferred");
}

TEST_CASE("a full name goes before patterns, whatever the order", "[select]") {
  const KernelList list = list_of({{"a", true, false}, {"b", true, false}, {"never", false, false}});
  const auto chosen = [&](const std::vector<std::string>& overrides) {
    return std::string(choose_kernel(list, any_problem(), "conv2.forward", asking(overrides)).kernel->name());
  };
  CHECK(chosen({"*=a", "conv2.forward=b"}) == "b");
  CHECK(chosen({"conv2.forward=b", "*=a"}) == "b");
  CHECK(chosen({"conv2*=b", "*=a"}) == "b");
  CHECK(chosen({"*=never", "conv2*=b"}) == "b");
  CHECK(chosen({"conv1.forward=never", "*=b"}) == "b");
  CHECK_THROWS_WITH(chosen({"*=b", "conv2.forward=never"}), Catch::Contains("conv2.forward=never: it refuses"));
  CHECK_THROWS_WITH(chosen({"conv2.forward=b", "conv2*=nonsense"}), Catch::Contains("conv2*=nonsense: no kernel"));
}

TEST_CASE("an override that a fused node cannot follow leaves it to the next one", "[select]") {
  const std::string direct = vector_kernel("direct"), dense = vector_kernel("dense");
  if (direct.empty()) return;
  CosmoflowOptions o = testing::small_cosmoflow();
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{"*=" + dense, "conv1.backward_weights=" + direct},
        {"conv1.backward_weights=" + direct, "*=" + dense},
        {"*=" + dense, "conv1.backward*=" + direct}}) {
    o.plan.selection = asking(overrides);
    const Plan plan = plan_program(o, kernel_list()).step;
    const auto node = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                                   [](const PlannedNode& n) { return n.name == "conv1.backward_weights"; });
    REQUIRE(node != plan.nodes.end());
    CHECK(node->kernel == direct);
    CHECK(node->op.kind == OpKind::conv_backward_weights);
  }
}

TEST_CASE("a kernel that is asked for and takes no slices keeps the copy", "[select]") {
  KernelList kernels;
  kernels.push_back(std::make_unique<FunctionKernel>(
      "flat", OpKind::activation,
      [](const Problem& p) { return p.out[0].dense() ? Support::yes() : Support::no("needs dense outputs"); },
      [](const Problem&) -> std::unique_ptr<Prepared> {
        return std::make_unique<PreparedFunction>([](const KernelArgs&) {});
      }));
  for (KernelPtr& kernel : make_kernel_list())
    if (kernel->name() == reference_name) kernels.push_back(std::move(kernel));
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 6, 6, 16}, DType::f32));
  const ValueId a = leaky_relu(tape, "a", x, 0.3), b = leaky_relu(tape, "b", x, 0.1);
  tape.keep(scale(tape, "end", concat(tape, "joined", {a, b}), 2), "result");
  const auto kernels_of = [&](const std::vector<std::string>& wishes) {
    PlanOptions options;
    options.selection = asking(wishes);
    std::map<std::string, std::string> found;
    for (const PlannedNode& node : make_plan(tape, kernels, options).nodes) found[node.name] = node.kernel;
    return found;
  };
  // By its full name or by a pattern. An earlier wish that can be followed settles it, one that cannot be does not.
  for (const auto& [wishes, kernel] :
       {std::pair<std::vector<std::string>, std::string>{{"b.activation=flat", "*=reference"}, "flat"},
        {{"b.activation=reference", "*=reference"}, "reference"},
        {{"b*=flat", "*=reference"}, "flat"},
        {{"*=reference", "b*=flat"}, "reference"},
        {{"joined*=flat", "*=flat", "*=reference"}, "flat"}}) {
    auto found = kernels_of(wishes);
    INFO(wishes[0]);
    CHECK(found["b.activation"] == kernel);
    CHECK(found.contains("joined.forward") == (kernel == "flat"));
  }
}

TEST_CASE("a refusal is about the problem where one kernel of the name runs its op", "[select]") {
  const KernelList list = list_of({{"k", false, false, "other op"},
                                   {"k", false, false, "needs 3x3"},
                                   {"k", false, false, "runs on CUDA devices"},
                                   {"k", false, false, "other op"}});
  CHECK_THROWS_WITH(choose_kernel(list, any_problem(), "node", asking({"node=k"})), Catch::EndsWith(": needs 3x3"));
}

TEST_CASE("overrides that speak of no node or no kernel are refused", "[select]") {
  CosmoflowOptions o = testing::small_cosmoflow();
  const auto planned = [&](const std::string& text) {
    o.plan.selection = asking({text});
    return plan_program(o, kernel_list());
  };
  CHECK_THROWS_WITH(planned("conv9*=nonsense"),
                    Catch::Contains("conv9*=nonsense: no kernel of this build or of CONVOY_PLUGINS has that name"));
  // Packs choose no kernel.
  CHECK_THROWS_WITH(planned("*.pack=reference"), Catch::Contains("no node has such a name"));
  CHECK_THROWS_WITH(planned("conv1.weight.accumulate=reference"), Catch::Contains("no node has such a name"));
  o.training.accumulation = 2;  // with a pass of its own
  CHECK_NOTHROW(planned("conv1.weight.accumulate=reference"));
}

TEST_CASE("patterns whose kernel runs none of their nodes are told, with a reason", "[select]") {
  KernelList list = make_kernel_list();
  list.push_back(std::make_unique<Refusing>("picky", OpKind::dense_forward, "needs more neurons"));
  CosmoflowOptions o = testing::small_cosmoflow();
  const auto idle = [&](const std::vector<std::string>& overrides) {
    o.plan.selection = asking(overrides);
    return idle_overrides(plan_program(o, list).all(), o.plan.selection, list);
  };
  const auto told = idle({"*=picky", "input*=reference"});
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Catch::StartsWith("--kernel *=picky: runs none of ") &&
                          Catch::Contains(" matching nodes; dense1") && Catch::EndsWith(": needs more neurons"));
  CHECK_THAT(idle({"update.loss*=picky"}).at(0),
             Catch::EndsWith("runs none of 1 matching nodes; update.loss_scale: other op"));
  // Where it runs some of them there is nothing to tell, nor where the plan insists.
  CHECK(idle({"*=reference", "conv1.forward=reference"}).empty());
  list.push_back(std::make_unique<Named>("free", true, false));
  CHECK_THAT(idle({"conv1.for*=reference", "conv1.for*=free"}).at(0),
             Catch::StartsWith("--kernel conv1.for*=free: runs none of") &&
                 Catch::EndsWith("conv1.forward: another --kernel goes before it"));
}

TEST_CASE("a tuned table that cannot be read is an error", "[select]") {
  const testing::TemporaryFolder folder;
  CHECK_THROWS_WITH(TunedTable::load(folder.path()), Catch::Contains(folder.path() + ": cannot read the tuned table"));
  CHECK_THROWS_WITH(TunedTable::load(folder / "none"), Catch::Contains("none: cannot open"));
}

TEST_CASE("a tuned table says which of its kernels this machine refuses", "[select]") {
  KernelList list = make_kernel_list();
  list.push_back(std::make_unique<Named>("never", false, false, "needs AVX-1024"));
  CosmoflowOptions o = testing::small_cosmoflow();
  const auto told = [&](const TunedTable& table) {
    o.plan.selection.tuned = table;
    const ProgramPlans plans = plan_program(o, list);
    return describe_tuned({&plans.step}, table, list, "t.txt");
  };
  const Plan plan = plan_program(o, list).step;
  const auto problem_of = [&](const std::string& name) {
    for (const PlannedNode& node : plan.nodes)
      if (node.name == name) return plan.problem_of(node);
    throw std::runtime_error("no node " + name);
  };
  TunedTable table;
  table.set(any_problem(), "never");
  CHECK_THROWS_WITH(told(table), Catch::Contains("t.txt: expected problems of this run, found none among 1"));
  table.set(problem_of("dense1.forward"), "never");
  CHECK_THROWS_WITH(told(table),
                    Catch::EndsWith("t.txt: 1 entry matches problems of this run, but this machine refuses its "
                                    "kernel (never: needs AVX-1024)"));
  table.set(problem_of("dense2.forward"), "reference");
  CHECK_THAT(told(table), Catch::Contains("decides 1 of ") &&
                              Catch::EndsWith("; 1 entry more matches problems of this run, but this machine refuses "
                                              "its kernel (never: needs AVX-1024)"));
  o.plan.selection.overrides = {parse_override("*=reference")};
  TunedTable overruled;
  overruled.set(problem_of("dense2.forward"), "reference");
  CHECK_THROWS_WITH(told(overruled), Catch::EndsWith("t.txt: --kernel and --no-winograd leave it nothing to decide"));
}

TEST_CASE("a tuned table that cannot be written leaves the one before", "[select]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "tuned.txt", temporary = path + ".tmp";
  TunedTable before, after;
  before.set(any_problem(), "before"), after.set(any_problem(), "after");
  before.save(path);
  const auto fails = [&](const char* reason) {
    CHECK_THROWS_WITH(after.save(path), Catch::Contains("tuned.txt") && Catch::Contains(reason));
    CHECK(TunedTable::load(path).find(any_problem()) == "before");
  };
  std::filesystem::create_directory(temporary);
  fails("cannot open for writing: Is a directory");
  CHECK(std::filesystem::is_directory(temporary));
  std::filesystem::remove(temporary);
  if (std::filesystem::exists("/dev/full")) {  // where every write fails as on a full disk
    std::filesystem::create_symlink("/dev/full", temporary);
    fails("cannot write: No space left");
  }
  std::filesystem::create_symlink("tuned.txt", folder / "link.txt");
  after.save(folder / "link.txt");
  CHECK(std::filesystem::is_symlink(folder / "link.txt"));
  CHECK(TunedTable::load(path).find(any_problem()) == "after");
  CHECK_FALSE(std::filesystem::exists(temporary));
}

TEST_CASE("UTF-8 is told from other bytes", "[text]") {
  for (const char* text :
       {"", "plain", "\xc3\xa4", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(is_utf8(text));
  for (const char* text : {"\xff", "a\x80", "\xc3", "\xc3z", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xe2\x82",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"})
    CHECK_FALSE(is_utf8(text));
}
