#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "core/backward.h"
#include "core/memory_planner.h"
#include "core/parallel.h"
#include "core/passes/passes.h"
#include "core/sweep.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "layers/schedule.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/plan_run.h"
#include "tests/small_cosmoflow.h"
#include "tests/worse.h"

using namespace convoy;

TEST_CASE("f16 and bf16 round to nearest even and keep special values", "[dtype]") {
  for (uint32_t h = 0; h < 65536; ++h) {
    f16 a;
    a.bits = static_cast<uint16_t>(h);
    bf16 b;
    b.bits = static_cast<uint16_t>(h);
    const float fa = float(a), fb = float(b);
    if (std::isnan(fa))
      CHECK(std::isnan(float(f16(fa))));
    else if (f16(fa).bits != h)
      FAIL("f16 " << h);
    if (std::isnan(fb))
      CHECK(std::isnan(float(bf16(fb))));
    else if (bf16(fb).bits != h)
      FAIL("bf16 " << h);
  }
  CHECK(float(f16(2049.0f)) == 2048.0f);
  CHECK(float(f16(2051.0f)) == 2052.0f);
  CHECK(float(f16(65519.0f)) == 65504.0f);
  CHECK(std::isinf(float(f16(65520.0f))));
  CHECK(float(f16(0x1p-25f)) == 0.0f);
  CHECK(float(f16(0x1.8p-25f)) == 0x1p-24f);
  CHECK(float(bf16(1.00390625f)) == 1.0f);
  CHECK(float(bf16(1.01171875f)) == 1.015625f);
}

TEST_CASE("Philox4x32-10 known answers of Random123", "[philox]") {
  CHECK(philox({0, 0, 0, 0}, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("problems print and parse", "[text]") {
  CosmoflowOptions o;
  o.model.size = 16;
  const Tape tape = training_tape(o);
  for (const Node& node : tape.nodes()) {
    Problem p{node.op, tape.descs(node.in), tape.descs(node.out), DeviceKind::cpu, 2};
    for (ValueId id : node.updated()) p.out.push_back(tape.desc(id));
    const Problem q = Problem::parse(p.text());
    CHECK(q.text() == p.text());
    CHECK(q.op == p.op);
    CHECK(q.in == p.in);
  }
  TensorDesc strided({1, 1, 4, 4, 8}, DType::f32);
  strided.stride = {512, 512, 128, 32};
  const Problem p{
      {OpKind::add, NoAttrs{}}, {strided, strided}, {TensorDesc(strided.shape, DType::f32)}, DeviceKind::cpu, 1};
  CHECK(Problem::parse(p.text()).in == p.in);
  CHECK_THROWS_WITH(Problem::parse("add{} in=f32:1x2x3"), Catch::Contains("five extents"));
  CHECK_THROWS_WITH(Problem::parse("nothing{} in="), Catch::Contains("unknown op"));
  CHECK_THROWS_WITH(parse_op("dropout{rat=1}"), Catch::Contains("no attribute \"rat\""));
  for (const auto& [text, message] :
       {std::pair{"dropout{rate=half}", "dropout: rate: expected a number, found \"half\""},
        {"conv_forward{stride=1,2}", "conv_forward: stride: expected three numbers, found \"1,2\""},
        {"cast{to=f8}", "cast: to: expected an element type, found \"f8\""},
        {"loss{loss=l3}", "loss: loss: expected mse or l1, found \"l3\""},
        {"pixel_loss{weights=1,x}", "pixel_loss: weights: expected a number, found \"x\""},
        {"pixel_loss{weights=1,2,3,4,5,6,7,8,9}", "pixel_loss: weights: expected 8 weights or fewer"}})
    CHECK_THROWS_WITH(parse_op(text), Catch::StartsWith(message));
  for (const ClassWeights& weights : {ClassWeights{}, ClassWeights{0, 1, 0}, ClassWeights{0, 0}}) {
    const Op op{OpKind::pixel_loss, PixelLossAttrs{.weights = weights}};
    CHECK(parse_op(to_text(op)) == op);
  }
}

TEST_CASE("wrong shapes are refused with their numbers", "[infer]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 8, 8, 8, 33}, DType::f32));
  const ValueId w = tape.parameter("w", {16, 3, 3, 3, 32}, {});
  CHECK_THROWS_WITH(tape.emit({OpKind::conv_forward, ConvAttrs{}}, "conv2.forward", {x, w}),
                    Catch::Contains("conv2") && Catch::Contains("33") && Catch::Contains("32"));
  CHECK_THROWS_WITH(max_pool(tape, "pool", x, {.kernel = {9, 9, 9}}), Catch::Contains("9") && Catch::Contains("8"));
  CHECK_THROWS_AS(conv(tape, "c", x, {.channels = 8, .groups = 2}), Error);
}

TEST_CASE("attributes out of range are refused with what was found", "[infer]") {
  Tape tape;
  const TensorDesc image({1, 1, 8, 8, 4}, DType::f32);
  const ValueId x = tape.input("x", image);
  const ValueId labels = tape.input("labels", TensorDesc({1, 1, 8, 8, 1}, DType::u8));
  const auto refused = [&](const Op& op, std::vector<ValueId> in, const std::string& message) {
    CHECK_THROWS_WITH(tape.emit(op, "node", std::move(in)), Catch::Contains(message));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refused({OpKind::activation, ActivationAttrs{.slope = nan}}, {x}, "expected a slope of 0 or more, found nan");
  refused({OpKind::activation, ActivationAttrs{.scale = 0}}, {x}, "expected a scale above 0, found 0");
  refused({OpKind::activation_max_pool, ActivationPoolAttrs{{.scale = 2}, {.kernel = {1, 2, 2}}}}, {x},
          "beside a pool leaky_relu has no scale: expected 1, found 2");
  refused({OpKind::activation_max_pool, ActivationPoolAttrs{{.slope = -1}, {.kernel = {1, 2, 2}}}}, {x},
          "expected a slope of 0 or more, found -1");
  refused({OpKind::max_pool, PoolAttrs{.kernel = {1, 2, 2}, .stride = {1, 0, 2}}}, {x},
          "found kernel 1,2,2, stride 1,0,2, pad_low 0,0,0");
  const ValueId w = tape.parameter("w", {16, 1, 3, 3, 4}, {}), gradient = tape.input("dy", image);
  refused({OpKind::conv_forward, ConvAttrs{.dilation = {1, 0, 1}}}, {x, w}, "stride 1,1,1, dilation 1,0,1, pad_low");
  refused({OpKind::conv_forward, ConvAttrs{.slope = 0.5}}, {x, w}, "expected activation_slope 1, found 0.5");
  refused({OpKind::conv_backward_data, ConvAttrs{.groups = 3}},
          {tape.input("dy16", TensorDesc({1, 1, 8, 8, 16}, DType::f32)), w}, "16 channels do not divide into 3 groups");
  const ValueId channels = tape.parameter("channels", Shape::vector(4), {}),
                moments = tape.input("moments", TensorDesc(Shape::vector(8), DType::f64));
  refused({OpKind::batch_norm, BatchNormAttrs{.epsilon = nan}}, {x, channels, channels, moments},
          "expected an epsilon above 0, found nan");
  refused({OpKind::pixel_loss, PixelLossAttrs{.gamma = nan, .weights = {}}}, {x, labels},
          "expected a gamma of 0 or more, found nan");
  for (const ClassWeights& weights : {ClassWeights{1, 2, 3}, ClassWeights{1, 2, 3, 4, 0}})
    refused({OpKind::pixel_loss, PixelLossAttrs{.weights = weights}}, {x, labels},
            "expected a weight for each of the 4 classes, found " + std::to_string(weights.count));
  refused({OpKind::all_reduce_start, AllReduceAttrs{.group = 2, .ranks = 3}}, {x}, "found ranks 3, group 2");
  refused({OpKind::accumulate, NoAttrs{}}, {x, x, x}, "second input must be the step state, found f32:1x1x8x8x4");
  refused({OpKind::sgd_update, SgdAttrs{}}, {x, tape.state(step_state_name, step_state_desc()), x, x, x, x},
          "third input must be the loss-scale state, found f32:1x1x8x8x4");
  // Any number of gradients is checked at once.
  const std::vector<ValueId> many(1500, gradient);
  CHECK_NOTHROW(tape.emit({OpKind::all_finite, NoAttrs{}}, "finite", many));
  CHECK_THROWS_WITH(tape.state("x", image), Catch::Contains("\"x\" exists already and is no state"));
}

TEST_CASE("what a plan could not run is refused before", "[infer]") {
  Tape tape(DType::f32);
  CHECK_THROWS_WITH(tape.input("x", TensorDesc({0, 1, 1, 1, 4}, DType::f32)),
                    Catch::Contains("x: expected extents of 1 or more, found f32:0x1x1x1x4"));
  CHECK_THROWS_WITH(tape.input("x", TensorDesc({1, 1, 1, -2, -4}, DType::f32)),
                    Catch::Contains("x: expected extents of 1"));
  CosmoflowOptions o = testing::small_cosmoflow();
  o.plan.threads = 0;
  CHECK_THROWS_WITH(plan_program(o, kernel_list()), Catch::Contains("a plan needs a thread or more, found 0"));
  o.plan.threads = 1, o.plan.team = 2, o.plan.place = 2;
  CHECK_THROWS_WITH(plan_program(o, kernel_list()), Catch::Contains("found place 2 of 2"));
  o = testing::small_cosmoflow(), o.training.optimizer = OptimizerKind::adam, o.training.adam.beta2 = 1;
  CHECK_THROWS_WITH(plan_program(o, kernel_list()), Catch::Contains("expected betas from 0 to below 1, found 1.0"));
}

TEST_CASE("options of a convolution that it would not look at are refused", "[infer]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 8, 8, 4}, DType::f32));
  const ConvOptions plain{.channels = 4, .kernel = {1, 3, 3}};
  ConvOptions o = plain;
  o.pad_low = {0, 1, 1};
  CHECK_THROWS_WITH(conv(tape, "c", x, o),
                    Catch::Contains("c: pad_low has no effect on Padding::same: expected 0,0,0, found 0,1,1"));
  o = plain, o.padding = Padding::valid, o.pad_high = {0, 0, 2};
  CHECK_THROWS_WITH(deconv(tape, "c", x, o), Catch::Contains("c: pad_high has no effect on Padding::valid"));
  o = plain, o.output_padding = {0, 1, 1};
  CHECK_THROWS_WITH(conv(tape, "c", x, o), Catch::Contains("c: output_padding has no effect on a convolution"));
  CHECK_THROWS_WITH(deconv(tape, "c", x, o), Catch::Contains("c: output_padding has no effect on Padding::same"));
}

TEST_CASE("the memory planner never overlaps live blocks and meets the lower bound on a chain", "[planner]") {
  const PhiloxStream random(3, 1);
  for (uint64_t round = 0; round < 50; ++round) {
    std::vector<Lifetime> blocks;
    for (uint64_t i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random.below(round * 200 + i * 3, 30));
      blocks.push_back({static_cast<int64_t>(random.below(round * 200 + i * 3 + 1, 5000)), first,
                        first + static_cast<int>(random.below(round * 200 + i * 3 + 2, 8))});
    }
    const ArenaLayout layout = plan_arena(blocks, Reuse::on);
    CHECK(layout.lower_bound <= layout.arena_bytes);
    CHECK(layout.arena_bytes <= layout.naive_bytes);
    for (size_t a = 0; a < blocks.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        if (blocks[a].last < blocks[b].first || blocks[b].last < blocks[a].first || !blocks[a].bytes ||
            !blocks[b].bytes)
          continue;
        const bool apart = layout.offset[a] + blocks[a].bytes <= layout.offset[b] ||
                           layout.offset[b] + blocks[b].bytes <= layout.offset[a];
        if (!apart) FAIL("blocks " << a << " and " << b << " overlap");
      }
  }
  const std::vector<Lifetime> chain{{6400, 0, 1}, {3200, 1, 2}, {6400, 2, 3}};
  CHECK(plan_arena(chain, Reuse::on).arena_bytes == 9600);
}

TEST_CASE("learning rates per epoch", "[schedule]") {
  const LrSchedule s{0.001, LrScaling::linear, 64, 4, {{32, 0.25}, {64, 0.125}}};
  const double peak = 0.001 * 512 / 64;
  CHECK(s.peak(512) == Approx(peak));
  CHECK(s.rate(0, 512) == Approx(0.001));
  CHECK(s.rate(1, 512) == Approx(0.001 + (peak - 0.001) / 4));
  CHECK(s.rate(3, 512) == Approx(0.001 + 3 * (peak - 0.001) / 4));
  CHECK(s.rate(4, 512) == Approx(peak));
  CHECK(s.rate(32, 512) == Approx(peak));
  CHECK(s.rate(33, 512) == Approx(0.25 * peak));
  CHECK(s.rate(64, 512) == Approx(0.25 * peak));
  CHECK(s.rate(65, 512) == Approx(0.125 * peak));
  CHECK(LrSchedule{0.0025, LrScaling::sqrt, 32, 0, {}}.rate(0, 128) == Approx(0.005));
  CHECK(std::isfinite(LrSchedule{0.001, LrScaling::linear, 64, 0, {}}.rate(0, 64)));
}

TEST_CASE("parameters and FLOPs of the published networks", "[models]") {
  const auto counts = [](int64_t size, int64_t kernel) {
    CosmoflowConfig c;
    c.size = size, c.kernel = kernel;
    return count_network(c);
  };
  CHECK(counts(128, 3).parameters == 8907556);
  CHECK(counts(128, 2).parameters == 5597604);
  CHECK(counts(64, 3).parameters == 3270948);
  CHECK(counts(256, 3).parameters == 15985956);
  CHECK(counts(512, 3).parameters == 23064356);
  CHECK(count_network(CosmoflowConfig::sc18()).parameters == 7041443);
  const auto lbann = [](int64_t size) {
    CosmoflowConfig c = CosmoflowConfig::lbann();
    c.size = size;
    return count_network(c);
  };
  CHECK(lbann(128).parameters == 35259316);
  CHECK(lbann(256).parameters == 37029044);
  CHECK(lbann(512).parameters == 38798772);
  CHECK(double(lbann(128).forward_flops) * 1e-9 == Approx(20.9).epsilon(2e-3));
  CHECK(double(lbann(256).forward_flops) * 1e-9 == Approx(168.6).epsilon(1e-3));
  CHECK(double(lbann(512).training_flops) * 1e-9 == Approx(3586).epsilon(1e-3));
  CHECK(double(counts(128, 3).forward_flops) * 1e-9 == Approx(68.862).epsilon(1e-4));
  CHECK(double(counts(128, 3).training_flops) * 1e-9 == Approx(192.09).epsilon(1e-4));
  CHECK(double(counts(128, 2).forward_flops) * 1e-9 == Approx(20.41).epsilon(1e-3));
  CHECK(double(counts(128, 2).training_flops) * 1e-9 == Approx(56.9).epsilon(1e-3));
  CHECK(double(counts(256, 3).training_flops) * 1e-9 == Approx(1558).epsilon(1e-3));
  CHECK(double(count_network(CosmoflowConfig::sc18()).forward_flops) * 1e-9 == Approx(21.30).epsilon(1e-3));
  CosmoflowConfig short_net;
  short_net.layers = 3;
  const Tape tape = [&] {
    CosmoflowOptions o;
    o.model = short_net;
    return training_tape(o);
  }();
  CHECK(tape.find("conv3.weight") != no_value);
  CHECK(tape.find("conv4.weight") == no_value);
  CosmoflowConfig tiny;
  tiny.size = 4;
  tiny.layers = 5;
  CHECK_THROWS_WITH(count_network(tiny), Catch::Contains("size 4") && Catch::Contains("5 times"));
  tiny.size = 128, tiny.layers = 64;
  CHECK_THROWS_WITH(count_network(tiny), Catch::Contains("size 128 cannot be halved 64 times"));
  tiny.size = 7, tiny.layers = 0;
  CHECK_THROWS_WITH(count_network(tiny), Catch::Contains("expected volumes of size 8 or more") && Catch::Contains("7"));
  tiny.size = 16, tiny.conv_size = 513;
  CHECK_THROWS_WITH(count_network(tiny), Catch::Contains("conv_size: expected 1 to 512, found 513"));
}

namespace {

/// The values kept by a step under given options, after `steps` steps from the same start.
std::vector<float> run_small(const CosmoflowOptions& o, int steps) {
  Program program(plan_program(o, kernel_list()), o, 5);
  std::vector<float> result;
  for (int s = 0; s < steps; ++s) {
    Executor& e = program.step();
    const PhiloxStream random(9, static_cast<uint64_t>(s));
    const Tensor x = e.tensor("x"), y = e.tensor("target");
    for (int64_t i = 0; i < x.shape().elements(); ++i)
      x.data<int16_t>()[i] = static_cast<int16_t>(random.below(static_cast<uint64_t>(i), 4));
    for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
    double* state = program.store().get(step_state_name).data<double>();
    state[int(StepField::learning_rate)] = 0.01, state[int(StepField::step)] = s;
    e.run();
    result.push_back(e.tensor("loss").data<float>()[0]);
  }
  for (const std::string& name : program.parameters())
    for (float v : program.store().get(name).span<float>()) result.push_back(v);
  return result;
}

int64_t count_updates(const Plan& plan) {
  return std::count_if(plan.nodes.begin(), plan.nodes.end(),
                       [](const PlannedNode& n) { return n.name.ends_with(".update"); });
}

CosmoflowOptions small_options() {
  CosmoflowOptions o = testing::small_cosmoflow();
  o.training.l2 = 0.01;
  return o;
}

}  // namespace

TEST_CASE("every pass on equals every pass off", "[passes]") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    CosmoflowOptions on = small_options();
    on.compute = compute;
    on.sparse_gradients = false;  // states a bound of its own, checked below
    // The same kernel with and without fusion: another library sums in another order.
    on.plan.selection.excluded = {"onednn"};
    const std::vector<float> expected = run_small(on, 3);
    CosmoflowOptions off = on;
    off.fuse = false;
    off.plan = plain_options(on.plan);
    const bool all_off = run_small(off, 3) == expected;
    CHECK(all_off);
    // One pass off at a time.
    for (bool PlanOptions::*pass :
         {&PlanOptions::drop_dead, &PlanOptions::fused_kernels, &PlanOptions::merge_equal, &PlanOptions::slice_aliasing,
          &PlanOptions::in_place, &PlanOptions::sweep, &PlanOptions::reuse_memory}) {
      CosmoflowOptions one = on;
      one.plan.*pass = false;
      const bool one_off = run_small(one, 3) == expected;
      CHECK(one_off);
    }
  }
}

TEST_CASE("views of slices give what copies give", "[passes][slices]") {
  const PhiloxStream random(9, 1);
#ifdef __SANITIZE_THREAD__
  constexpr int steps = 1;  // are enough to see who touches what, and slow
#else
  constexpr int steps = 2;
#endif
  for (DType compute : {DType::f32, DType::bf16})
    for (const std::vector<std::string>& excluded :
         {std::vector<std::string>{}, std::vector<std::string>{"onednn", "winograd"}}) {
      std::vector<float> results[2];
      std::map<std::string, std::string> kernels[2];
      for (const bool views : {false, true}) {
        ClimateOptions o;
        o.model.model = ClimateModel::tiramisu;
        o.model.height = 32, o.model.width = 48, o.model.blocks = {2, 2};
        o.model.growth = 16, o.model.first_filters = 32;
        o.compute = compute;
        o.plan.threads = 2;
        o.plan.slice_aliasing = views;
        o.plan.selection.excluded = excluded;
        Program program(plan_program(o, kernel_list()), o, 5);
        Executor& e = program.step();
        bool copies = false;
        for (const PlannedNode& node : e.plan().nodes) {
          const bool copy = node.op.kind == OpKind::concat || node.op.kind == OpKind::slice;
          copies |= copy;
          if (!copy) kernels[views][node.name] = node.kernel;
        }
        if (cpu_features().avx2) CHECK(copies == !views);  // few other kernels take views
        program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = 0.01;
        for (int step = 0; step < steps; ++step) {
          const Tensor x = e.tensor("x"), y = e.tensor("target");
          for (int64_t i = 0; i < x.shape().elements(); ++i) x.data<float>()[i] = random.uniform(uint64_t(i));
          for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<uint8_t>()[i] = uint8_t(i / 7 % 3);
          e.run();
          results[views].push_back(e.tensor("loss").data<float>()[0]);
        }
        for (const std::string& name : program.parameters())
          for (float v : program.store().get(name).span<float>()) results[views].push_back(v);
      }
      INFO(name_of(compute) << " without " << excluded.size() << " libraries of kernels");
      const bool same_kernels = kernels[0] == kernels[1], same_bits = results[0] == results[1];
      if (cpu_features().avx2 && compute == DType::f32 && !excluded.empty()) CHECK(same_kernels);
      if (same_kernels) CHECK(same_bits);
      double difference = 0, size = 0;
      for (size_t i = 0; i < results[0].size(); ++i)
        difference = testing::worse(difference, std::abs(double(results[0][i]) - double(results[1][i]))),
        size = std::max(size, std::abs(double(results[0][i])));
      CHECK(difference <= (compute == DType::f32 ? 1e-5 : 2e-3) * size);
    }
}

TEST_CASE("updates that run together equal updates one by one, for any number of threads", "[passes]") {
  struct Optimizer {
    OptimizerKind kind;
    double larc;
    int rounds;
  };
  for (const Optimizer& optimizer : {Optimizer{OptimizerKind::sgd, 0, 1}, Optimizer{OptimizerKind::sgd, 0.002, 2},
                                     Optimizer{OptimizerKind::adam, 0, 1}, Optimizer{OptimizerKind::adam, 0.002, 2},
                                     Optimizer{OptimizerKind::lamb, 0, 2}}) {
    INFO("optimizer " << int(optimizer.kind) << " larc " << optimizer.larc);
    CosmoflowOptions o = small_options();
    o.training.optimizer = optimizer.kind;
    o.training.adam.larc = o.training.sgd.larc = optimizer.larc;
    const Plan plan = plan_program(o, kernel_list()).step;
    const auto joined = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                                     [](const PlannedNode& n) { return n.name.ends_with(".update"); });
    REQUIRE(joined != plan.nodes.end());
    if (cpu_features().avx2) {  // the reference is no sweep
      CHECK(joined->sweep_size == static_cast<int>(count_updates(plan)));
      CHECK(dynamic_cast<const Sweep&>(*joined->prepared).rounds() == optimizer.rounds);
    }
    // The same kernels everywhere: others may sum in another order for other thread counts.
    o.plan.selection.excluded = {"onednn"};
    const std::vector<float> expected = run_small(o, 2);
    for (const int threads : {1, 2, 5}) {
      CosmoflowOptions other = o;
      other.plan.threads = threads;
      const bool same = run_small(other, 2) == expected;
      CHECK(same);
      other.plan.sweep = false;
      const bool same_alone = run_small(other, 2) == expected;
      CHECK(same_alone);
    }
  }
}

TEST_CASE("parts of several stretches cover each element once and are cut at whole blocks", "[parallel]") {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{}, {0}, {1}, {5000, 0, 1, 40000, 16384, 3}, {100000}, {10, 20, 30}})
    for (int threads : {1, 2, 3, 16}) {
      std::mutex mutex;
      std::vector<std::vector<int>> seen;
      for (int64_t count : counts) seen.emplace_back(static_cast<size_t>(count));
      parallel_parts(counts, threads, 1000, [&](size_t k, Range part) {
        const std::lock_guard lock(mutex);
        CHECK(part.begin % 1000 == 0);
        CHECK((part.end % 1000 == 0 || part.end == counts[k]));
        for (int64_t i = part.begin; i < part.end; ++i) ++seen.at(k).at(static_cast<size_t>(i));
      });
      for (const auto& stretch : seen)
        CHECK(std::all_of(stretch.begin(), stretch.end(), [](int times) { return times == 1; }));
    }
}

TEST_CASE("algorithms with less arithmetic change results by rounding only", "[passes]") {
  CosmoflowOptions dense = small_options();
  dense.model.size = 32;
  dense.sparse_gradients = false;
  dense.plan.selection.excluded = {"winograd"};
  const std::vector<float> expected = run_small(dense, 3);
  CosmoflowOptions less = small_options();
  less.model.size = 32;
  const Plan plan = plan_program(less, kernel_list()).step;
  const std::vector<float> found = run_small(less, 3);
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    difference = testing::worse(difference, std::abs(double(expected[i]) - double(found[i]))),
    size = std::max(size, std::abs(double(expected[i])));
  CHECK(difference < 1e-5 * size);
  if (cpu_features().avx2) {  // the comparison compared something
    const auto runs = [&](const std::string& name) {
      return std::any_of(plan.nodes.begin(), plan.nodes.end(),
                         [&](const PlannedNode& n) { return n.kernel.starts_with(name); });
    };
    CHECK(runs("winograd"));
    CHECK(runs("pool_sparse"));
  }
}

TEST_CASE("two runs are identical, other seeds are not", "[determinism]") {
  CosmoflowOptions o = small_options();
  CHECK(run_small(o, 3) == run_small(o, 3));
  o.model.dropout = 0;
  CHECK(run_small(o, 3) != run_small(small_options(), 3));
}

TEST_CASE("reuse saves memory and never beats the lower bound", "[planner]") {
  CosmoflowOptions o;
  o.plan.threads = 2;
  const ProgramPlans plans = plan_program(o, kernel_list());
  CHECK(plans.step.lower_bound <= plans.step.arena_bytes);
  CHECK(double(plans.step.arena_bytes) < 0.6 * double(plans.step.naive_bytes));
  CHECK(double(plans.step.arena_bytes) < 1.1 * double(plans.step.lower_bound));
}

TEST_CASE("f16 skips updates that overflow and lowers its scale", "[precision]") {
  CosmoflowOptions o = small_options();
  o.compute = DType::f16;
  Program program(plan_program(o, kernel_list()), o, 5);
  double* scale = program.store().get(scale_state_name).data<double>();
  scale[int(ScaleField::scale)] = 1e30;
  Executor& e = program.step();
  for (auto& v : e.tensor("x").span<int16_t>()) v = 1;
  for (auto& v : e.tensor("target").span<float>()) v = 0.5f;
  program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = 0.1;
  const float before = program.store().get("conv1.weight").data<float>()[0];
  e.run();
  CHECK(e.tensor("finite").data<float>()[0] == 0);
  CHECK(program.store().get("conv1.weight").data<float>()[0] == before);
  CHECK(scale[int(ScaleField::scale)] == 0.5e30);
  CHECK(scale[int(ScaleField::skipped)] == 1);
  CHECK(scale[int(ScaleField::applied)] == 0);
}

TEST_CASE("a NaN is traced to the first node that shows it", "[diverged]") {
  CosmoflowOptions o = small_options();
  Program program(plan_program(o, kernel_list()), o, 5);
  for (auto& v : program.step().tensor("x").span<int16_t>()) v = 1;
  for (auto& v : program.step().tensor("target").span<float>()) v = 0;
  program.store().get("conv2.bias").data<float>()[0] = NAN;
  CHECK(program.step().find_non_finite() == "conv2.bias");
}

TEST_CASE("a step takes subnormal numbers for zero on all its threads, its caller does not", "[executor]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 64, 64, 16}, DType::f32));
  tape.keep(leaky_relu(tape, "a", x, 0.5), "result");
  PlanOptions options;
  options.threads = 2;
  const Plan plan = make_plan(tape, kernel_list(), options);
  StateStore store;
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
  for (float& v : e.tensor("x").span<float>()) v = -2e-38f;  // its half is subnormal
  e.run();
  const auto result = e.tensor("result").span<float>();
  CHECK(std::all_of(result.begin(), result.end(), [](float v) { return v == 0; }));
  const volatile float small = -2e-38f;
  CHECK(small * 0.5f < 0);
}

TEST_CASE("initial weights follow their formulas", "[init]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 1, 1, 400}, DType::f32));
  dense(tape, "g", x, {.units = 200});
  dense(tape, "h", x, {.units = 200, .bias = Bias::tenth, .initializer = Initializer::he_normal});
  StateStore store;
  store.initialise(tape, 1);
  const double limit = std::sqrt(6.0 / 600);
  double squares = 0, largest = 0;
  for (float v : store.get("g.weight").span<float>())
    squares += double(v) * v, largest = std::max<double>(largest, std::abs(v));
  CHECK(largest <= limit);
  CHECK(squares / 80000 == Approx(limit * limit / 3).epsilon(0.02));
  squares = 0;
  for (float v : store.get("h.weight").span<float>()) squares += double(v) * v;
  CHECK(squares / 80000 == Approx(2.0 / 400).epsilon(0.02));
  CHECK(store.get("h.bias").data<float>()[0] == 0.1f);
}

TEST_CASE("two accumulated passes equal one of twice the batch, and lag applies the gradients of the step before",
          "[program]") {
  CosmoflowOptions twice = small_options();
  twice.model.dropout = 0, twice.batch = 2;
  twice.plan.threads = 1;
  CosmoflowOptions halves = twice;
  halves.batch = 1, halves.training.accumulation = 2;
  const auto sample = [](const CosmoflowOptions& o, Executor& e, int64_t first) {
    const Tensor x = e.tensor("x"), y = e.tensor("target");
    const PhiloxStream random(4, 4);
    const int64_t voxels = x.shape().elements() / o.batch;
    for (int64_t i = 0; i < x.shape().elements(); ++i)
      x.data<int16_t>()[i] = int16_t(random.below(uint64_t(first * voxels + i), 5));
    for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<float>()[i] = random.uniform(uint64_t(first * 4 + i));
  };
  const auto run = [&](const CosmoflowOptions& o, int steps) {
    Program program(plan_program(o, kernel_list()), o, 3);
    double* state = program.store().get(step_state_name).data<double>();
    state[int(StepField::learning_rate)] = 0.05;
    for (int s = 0; s < steps; ++s) {
      if (program.micro()) {
        state[int(StepField::micro_step)] = 0;
        sample(o, *program.micro(), 0);
        program.micro()->run();
      }
      state[int(StepField::micro_step)] = double(o.training.accumulation - 1);
      sample(o, program.step(), o.training.accumulation - 1);
      program.step().run();
    }
    const auto w = program.store().get("conv1.weight").span<float>();
    return std::vector<float>(w.begin(), w.end());
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = testing::worse(worst, std::abs(double(a[i]) - double(b[i])));
    return worst;
  };
  const auto start = run(twice, 0), one = run(twice, 1);
  CHECK(distance(start, one) > 1e-5);
  CHECK(distance(run(halves, 1), one) < 1e-3 * distance(start, one));
  CHECK(distance(run(halves, 3), run(twice, 3)) < 1e-2 * distance(start, run(twice, 3)));

  CosmoflowOptions lagged = twice;
  lagged.training.lag = 1;
  CHECK(run(lagged, 1) == start);  // nothing to apply yet
  CHECK(run(lagged, 2) == one);    // the first gradient, at the weights it was taken at
  lagged.compute = DType::f16;
  CHECK_THROWS_WITH(run(lagged, 1), Catch::Contains("constant loss scale"));
}

TEST_CASE("of several failures of a loop the first is thrown", "[parallel]") {
  std::atomic<bool> both{false};
  const auto wait = [](auto&& done) {
    for (int i = 0; i < 2000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CHECK_THROWS_WITH(parallel_units(2, 2,
                                   [&](int64_t unit) {
                                     if (unit == 1) {
                                       both = true;
                                       std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                       fail_runtime("second");
                                     }
                                     wait([&] { return both.load(); });
                                     fail_runtime("first");
                                   }),
                    "first");
}

TEST_CASE("training options that would do nothing are refused, others are kept", "[program]") {
  CosmoflowOptions o = small_options();
  o.training.l2_parameters = {"conv1.weight"};
  const Tape tape = training_tape(o);
  const auto has = [&](const std::string& name) {
    return std::any_of(tape.nodes().begin(), tape.nodes().end(), [&](const Node& n) { return n.name == name; });
  };
  CHECK(has("conv1.weight.penalty"));
  CHECK(!has("dense1.weight.penalty"));
  o.training.l2_parameters = {"conv9.weight"};
  CHECK_THROWS_WITH(training_tape(o), Catch::Contains("no parameter \"conv9.weight\""));
  o = small_options();
  o.training.lag = 2;
  CHECK_THROWS_WITH(training_tape(o), Catch::Contains("lag: expected 0 or 1, found 2"));
  o = small_options();
  o.compute = DType::f16;
  for (const auto& [given, expected] : {std::pair{constant_scaling, LossScaleAttrs{}},
                                        std::pair{LossScaleAttrs{4, 0.25, 10}, LossScaleAttrs{4, 0.25, 10}}}) {
    o.training.scaling = given;
    const Tape scaled = training_tape(o);
    int updates = 0;
    for (const Node& n : scaled.nodes())
      if (n.op.kind == OpKind::loss_scale_update) {
        CHECK(n.op.as<LossScaleAttrs>() == expected);
        ++updates;
      }
    CHECK(updates == 1);
  }
  ClimateOptions climate;
  climate.model.height = climate.model.width = 32, climate.model.width_divisor = 8;
  climate.training.l2 = 0.01;
  CHECK_THROWS_WITH(training_tape(climate), Catch::Contains("l2") && Catch::Contains("l2_parameters, found none"));
  climate.evaluation_width = 64;
  CHECK_THROWS_WITH(evaluation_tape(climate), Catch::Contains("evaluation_height") && Catch::Contains("0 and 64"));
}

TEST_CASE("sweeps of different rounds run each round of each part once, all of a round before the next", "[parallel]") {
  struct Counting final : Sweep {
    Counting(int64_t elements, int rounds) : Sweep(2), elements_(elements), rounds_(rounds) {
      for (int round = 0; round < rounds; ++round) seen_.emplace_back(static_cast<size_t>(elements));
    }
    int rounds() const override { return rounds_; }
    int64_t elements() const override { return elements_; }
    void run_part(int round, Range part, const KernelArgs&) const override {
      const std::lock_guard lock(mutex_);
      in_order_ = in_order_ && part.begin % grain == 0 && round < rounds_ && (round == 0 || done(round - 1));
      for (int64_t i = part.begin; i < part.end; ++i) ++seen_.at(size_t(round)).at(static_cast<size_t>(i));
    }
    bool done(int round) const {
      const auto& seen = seen_.at(size_t(round));
      return std::all_of(seen.begin(), seen.end(), [](int8_t times) { return times == 1; });
    }
    bool finished() const {
      for (int round = 0; round < rounds_; ++round)
        if (!done(round)) return false;
      return in_order_;
    }

   private:
    int64_t elements_;
    int rounds_;
    mutable std::mutex mutex_;
    mutable std::vector<std::vector<int8_t>> seen_;
    mutable bool in_order_ = true;
  };
  // Batches of several rounds end at 2^20 elements: below, across, exactly at and beyond that.
  for (const std::vector<std::pair<int64_t, int>>& all :
       {std::vector<std::pair<int64_t, int>>{{40000, 1}, {7, 1}},
        {{40000, 3}, {0, 2}, {7, 1}, {16384, 2}},
        {{1 << 19, 2}, {1 << 19, 1}, {1, 3}, {(1 << 20) + 5, 2}, {20000, 1}, {20000, 2}}})
    for (int threads : {1, 2, 5}) {
      std::vector<std::unique_ptr<Counting>> sweeps;
      std::vector<Swept> swept;
      for (const auto& [elements, rounds] : all) {
        sweeps.push_back(std::make_unique<Counting>(elements, rounds));
        swept.push_back({sweeps.back().get(), {}});
      }
      std::vector<int64_t> scratch;
      run_sweeps(swept, threads, scratch);
      for (const auto& sweep : sweeps) CHECK(sweep->finished());
    }
  const Counting alone(50000, 3);
  alone.run({});
  CHECK(alone.finished());
}
