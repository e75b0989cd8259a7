// The segmentation networks: layers, parameters and FLOPs against published tables, kernels for every node, learning.
#include <set>

#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/climate_nets.h"
#include "models/program.h"
#include "tests/catch.hpp"

using namespace convoy;

namespace {

struct Expected {
  ClimateConfig model;
  int64_t convolutions, parameters, published;  ///< with what nobody reads
  double forward_gflop, counted_gflop;
};

ClimateConfig model(ClimateModel kind, bool batch_norm) {
  ClimateConfig c;
  c.model = kind;
  c.batch_norm = batch_norm;
  return c;
}

int64_t forward_convolutions(const Tape& tape) {
  int64_t count = 0;
  for (const Node& node : tape.nodes())
    count += node.name.ends_with(".forward") &&
             (node.op.kind == OpKind::conv_forward || node.op.kind == OpKind::conv_activation_forward ||
              node.op.kind == OpKind::conv_backward_data);
  return count;
}

/// A net that fits a test: small images, and of DeepCAM a quarter of the channels (a sixteenth of 56 million weights).
ClimateOptions small(ClimateModel kind) {
  ClimateOptions o;
  o.model = model(kind, true);
  o.model.height = 32, o.model.width = 48;
  o.model.width_divisor = 4;
  o.loss.weights = {1.0017, 2.6146, 1.7164};
  return o;
}

/// With passes and without, as far as bits are to stay.
ClimateOptions comparable(ClimateOptions o, DType compute, bool fuse) {
  o.compute = compute;
  o.fuse = fuse;
  o.gradient_sums = false;  // of another order
  o.plan.threads = 2;
  o.plan.selection.excluded = {"onednn"};  // takes no slices: fusing would change which kernel runs
  return o;
}

/// A fixed sample: random images, stripes as classes.
void feed_image(Executor& e) {
  const PhiloxStream random(9, 1);
  const Tensor x = e.tensor("x");
  for (int64_t i = 0; i < x.shape().elements(); ++i) x.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
}
void feed(Executor& e) {
  feed_image(e);
  const Tensor y = e.tensor("target");
  for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<uint8_t>()[i] = uint8_t(i / 7 % 3);
}

/// Of two steps on that sample: the second one shows the gradients of the first.
std::vector<float> two_losses(Program& program) {
  Executor& e = program.step();
  double* state = program.store().get(step_state_name).data<double>();
  state[int(StepField::learning_rate)] = 0.01;
  std::vector<float> losses;
  for (int step = 0; step < 2; ++step) {
    feed(e);
    state[int(StepField::step)] = step;
    e.run();
    losses.push_back(e.tensor("loss").data<float>()[0]);
  }
  return losses;
}

}  // namespace

TEST_CASE("layers, parameters and FLOPs of the climate networks", "[climate]") {
  // deeplab's published parameters include a batch norm, tiramisu's (and its layers) a transition that nobody reads.
  const std::vector<Expected> table{
      {model(ClimateModel::deeplab, true), 70, 43714787, 43718883, 4341.41, 4803.42},
      {model(ClimateModel::deeplab, false), 70, 43669251, 43669251, 4341.41, 4803.42},
      {model(ClimateModel::deepcam, true), 146, 56454720, 56454720, 655.34, 0},
      {model(ClimateModel::tiramisu, false), 35, 7504835, 7801315, 1395.92, 1395.92},
  };
  for (const Expected& e : table) {
    ClimateOptions o;
    o.model = e.model;
    INFO("model " << int(e.model.model) << " batch norm " << e.model.batch_norm);
    CHECK(forward_convolutions(training_tape(o)) == e.convolutions);
    const NetworkCounts counts = count_network(e.model);
    CHECK(counts.parameters == e.parameters);
    CHECK(counts.parameters + counts.unread_parameters == e.published);
    CHECK(double(counts.forward_flops) * 1e-9 == Approx(e.forward_gflop).margin(0.006));
    if (e.counted_gflop > 0) CHECK(double(counts.counted_flops) * 1e-9 == Approx(e.counted_gflop).margin(0.006));
  }
}

TEST_CASE("Tiramisu of four channels counts as in the published runs", "[climate]") {
  ClimateConfig c = model(ClimateModel::tiramisu, false);
  c.channels = 4, c.first_filters = 48;
  CHECK(3 * double(count_network(c).forward_flops) * 1e-12 == Approx(3.703).margin(0.001));
}

TEST_CASE("TensorFlow and PyTorch crop transposed convolutions a pixel apart", "[climate]") {
  Tensor results[2];
  for (const Cropping cropping : {Cropping::tensorflow, Cropping::pytorch}) {
    Tape tape;
    const ValueId x = tape.input("x", TensorDesc({1, 1, 4, 6, 3}, DType::f32));
    tape.keep(deconv(tape, "up", x, double_size(5, cropping, Bias::none, Initializer::he_normal)), "y");
    StateStore store;
    store.initialise(tape, 3);
    const Plan plan = make_plan(tape, kernel_list(), {});
    Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::none));
    e.refresh();
    const Tensor in = e.tensor("x");
    for (int64_t i = 0; i < in.shape().elements(); ++i) in.data<float>()[i] = float(i % 7);
    e.run();
    Tensor& y = results[static_cast<int>(cropping)];
    y = Tensor::zeros(e.tensor("y").shape(), DType::f32);
    y.copy_from(e.tensor("y"));
  }
  const Tensor &tensorflow = results[0], &pytorch = results[1];
  REQUIRE(tensorflow.shape() == Shape(1, 1, 8, 12, 5));
  REQUIRE(pytorch.shape() == tensorflow.shape());
  for (int64_t h = 0; h < 7; ++h)
    for (int64_t w = 0; w < 11; ++w)
      CHECK(tensorflow.at(0, 0, h + 1, w + 1, 2) == Approx(pytorch.at(0, 0, h, w, 2)).margin(1e-5));
  // Published: TensorFlow in the networks of 2018, PyTorch in DeepCAM.
  for (const ClimateModel kind : {ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu}) {
    ClimateConfig c = model(kind, true);
    const auto pads = [&] {
      Tape tape;
      record_climate(tape, c, 1, DType::f32, Mode::training);
      std::vector<Int3> found;
      for (const Node& node : tape.nodes())
        if (node.op.kind == OpKind::conv_backward_data) found.push_back(node.op.as<ConvAttrs>().pad_low);
      return found;
    };
    const std::vector<Int3> published = pads();
    REQUIRE(published.size() >= 3);
    c.cropping = Cropping::pytorch;
    CHECK((pads() == published) == (kind == ClimateModel::deepcam));
    c.cropping = Cropping::tensorflow;
    CHECK((pads() == published) == (kind != ClimateModel::deepcam));
  }
}

TEST_CASE("evaluation by batch statistics sees what training sees", "[climate]") {
  float evaluated[2], trained = 0;
  for (const bool batch : {false, true}) {
    ClimateOptions o = small(ClimateModel::deepcam);
    o.model.width_divisor = 8;
    o.model.batch_statistics = batch;
    Program program(plan_program(o, kernel_list()), o, 5);
    Executor& e = program.evaluate();
    e.refresh();
    feed(e);
    e.run();
    evaluated[batch] = e.tensor("loss").data<float>()[0];
    feed(program.step());
    program.step().run();
    trained = program.step().tensor("loss").data<float>()[0];
    CHECK(!program.statistics().empty());  // checkpoints keep them either way
  }
  CHECK(evaluated[1] == Approx(trained).epsilon(1e-5));
  CHECK(evaluated[0] != Approx(trained).epsilon(1e-3));
}

TEST_CASE("a program that only predicts has the states of one that trains, and less memory", "[climate]") {
  for (const ClimateModel kind : {ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu}) {
    INFO("model " << int(kind));
    const ClimateOptions o = small(kind);
    ProgramPlans training = plan_program(o, kernel_list()), evaluation = plan_evaluation(o, kernel_list());
    CHECK(evaluation.arena_bytes() == training.evaluate.arena_bytes);
    CHECK(evaluation.own_bytes() < training.own_bytes());
    Program trains(std::move(training), o, 3), predicts(std::move(evaluation), o, 3);
    CHECK(predicts.parameters() == trains.parameters());
    CHECK(predicts.statistics() == trains.statistics());
    for (const std::string& name : predicts.parameters())
      CHECK(predicts.store().get(name).desc() == trains.store().get(name).desc());
    CHECK(predicts.store().entries().size() == predicts.parameters().size() + predicts.statistics().size());
  }
}

TEST_CASE("a pass for statistics leaves those of its image", "[climate]") {
  ClimateOptions o = small(ClimateModel::deepcam);
  o.model.width_divisor = 16;
  o.model.height = 192, o.model.width = 288;  // running variances are the unbiased ones: enough pixels in every layer
  o.statistics_pass = true;
  const auto loss = [&](bool batch) {
    o.model.batch_statistics = batch;
    Program program(plan_program(o, kernel_list()), o, 5);
    if (!batch) {
      program.statistics_pass()->refresh();
      feed_image(*program.statistics_pass());
      program.statistics_pass()->run();
    }
    Executor& e = program.evaluate();
    e.refresh();
    feed(e);
    e.run();
    return e.tensor("loss").data<float>()[0];
  };
  CHECK(loss(false) == Approx(loss(true)).epsilon(0.02));
}

TEST_CASE("a pass for statistics ends at the last batch norm", "[climate]") {
  for (const auto& [kind, share] : {std::pair{ClimateModel::deeplab, 0.5}, std::pair{ClimateModel::deepcam, 1.0}}) {
    const ClimateOptions o = small(kind);
    const auto flops = [](const Plan& plan) {
      double total = 0;
      for (const PlannedNode& node : plan.nodes) total += double(node.flops);
      return total;
    };
    const Tape tape = statistics_tape(o);
    const Plan plan = make_plan(tape, kernel_list(), o.plan);
    CHECK(flops(plan) < share * flops(make_plan(evaluation_tape(o), kernel_list(), o.plan)));
    const auto updates = std::count_if(plan.nodes.begin(), plan.nodes.end(),
                                       [](const PlannedNode& n) { return n.op.kind == OpKind::batch_norm_update; });
    const auto means = std::count_if(tape.values().begin(), tape.values().end(),
                                     [](const Value& v) { return v.name.ends_with(".running_mean"); });
    CHECK(updates == means);
    CHECK(updates > 0);
  }
}

TEST_CASE("every variant of the climate networks records at other sizes", "[climate]") {
  const auto logits = [](const ClimateConfig& c) {
    Tape tape;
    const ClimateNet net = record_climate(tape, c, 2, DType::f32, Mode::training);
    return tape.desc(net.logits).shape;
  };
  for (ClimateModel kind : {ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu})
    for (bool batch_norm : {true, false}) {
      ClimateConfig c = model(kind, batch_norm);
      c.height = 48, c.width = 80;
      const Shape expected(2, 1, 48, 80, 3);
      CHECK(logits(c) == expected);
      c.output_stride = 8, c.decoder = Decoder::deconv;
      CHECK(logits(c) == expected);
      c.decoder = Decoder::bilinear;
      CHECK(logits(c) == expected);
      c.height = 44;
      CHECK_THROWS_WITH(logits(c), Catch::Contains("44x80"));
    }
}

TEST_CASE("DeepCAM at an output stride of 8 dilates what its reference dilates", "[climate]") {
  ClimateConfig c = model(ClimateModel::deepcam, true);
  c.height = c.width = 64, c.output_stride = 8;
  Tape tape;
  record_climate(tape, c, 1, DType::f32, Mode::training);
  std::map<std::string, int64_t> dilation;
  for (const Node& node : tape.nodes())
    if (const auto* conv = std::get_if<ConvAttrs>(&node.op.attrs)) dilation[node.name] = conv->dilation[1];
  const std::map<std::string, int64_t> expected{
      {"block3.sep3.depthwise.forward", 1},  {"block4.sep1.depthwise.forward", 2},
      {"block20.sep1.depthwise.forward", 2}, {"block20.sep2.depthwise.forward", 2},
      {"block20.sep3.depthwise.forward", 1},  // the extra one of a last block
      {"conv5.depthwise.forward", 4},        {"aspp4.forward", 36}};
  for (const auto& [name, d] : expected) {
    INFO(name);
    CHECK(dilation[name] == d);
  }
}

TEST_CASE("no reference kernel in a training step of a climate network", "[climate][support]") {
  if (!cpu_features().avx2 || kernel_list().size() < 60) {
    WARN("skipped: needs AVX2 and oneDNN");
    return;
  }
  const auto vectorised = [](ClimateOptions o) {
    for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
      o.compute = compute;
      o.plan.threads = 2;
      o.statistics_pass = o.model.batch_norm;
      const ProgramPlans plans = plan_program(o, kernel_list());
      CHECK(plans.step.reference_nodes() == std::vector<std::string>{});
      CHECK(plans.evaluate.reference_nodes() == std::vector<std::string>{});
      if (plans.micro) CHECK(plans.micro->reference_nodes() == std::vector<std::string>{});
      if (o.model.batch_norm) CHECK(plans.statistics->reference_nodes() == std::vector<std::string>{});
    }
  };
  // Every network with and without batch norm, every optimizer, loss, decoder and output stride at least once.
  struct Variant {
    ClimateModel kind;
    bool batch_norm;
    OptimizerKind optimizer;
    double larc;
    PixelLoss loss;
    Decoder decoder;
    int64_t output_stride, accumulation;
  };
  using M = ClimateModel;
  using O = OptimizerKind;
  for (const Variant& v :
       {Variant{M::deepcam, true, O::sgd, 0, PixelLoss::cross_entropy, Decoder::deconv_full, 16, 1},
        Variant{M::deepcam, true, O::lamb, 0, PixelLoss::focal, Decoder::deconv_full, 8, 2},
        Variant{M::deeplab, true, O::adam, 0, PixelLoss::cross_entropy, Decoder::deconv_full, 16, 1},
        Variant{M::deeplab, false, O::adam, 0.002, PixelLoss::focal, Decoder::deconv, 16, 1},
        Variant{M::deeplab, true, O::sgd, 0.002, PixelLoss::cross_entropy, Decoder::bilinear, 16, 2},
        Variant{M::tiramisu, false, O::adam, 0.002, PixelLoss::cross_entropy, Decoder::deconv_full, 16, 1},
        Variant{M::tiramisu, true, O::lamb, 0, PixelLoss::focal, Decoder::deconv_full, 16, 1}}) {
    ClimateOptions o;
    o.model = model(v.kind, v.batch_norm);
    o.model.decoder = v.decoder, o.model.output_stride = v.output_stride;
    o.training.optimizer = v.optimizer;
    o.training.sgd.larc = o.training.adam.larc = v.larc;
    o.training.accumulation = v.accumulation;
    o.loss.loss = v.loss;
    INFO("model " << int(v.kind) << " batch norm " << v.batch_norm << " optimizer " << int(v.optimizer));
    vectorised(o);
  }
}

TEST_CASE("bf16 convolutions leave a library whose products are slow", "[climate][support]") {
  const CpuFeatures& cpu = cpu_features();
  if (!cpu.avx512 || cpu.fast_bf16_dot || cpu.amx_bf16) {
    WARN("skipped: needs AVX-512 without fast bf16 products");
    return;
  }
  for (ClimateModel kind : {ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu}) {
    ClimateOptions o;
    o.model = model(kind, kind == ClimateModel::deepcam);
    o.compute = DType::bf16;
    o.plan.threads = 2;
    double all = 0, library = 0;
    for (const PlannedNode& node : plan_program(o, kernel_list()).step.nodes) {
      if (!std::holds_alternative<ConvAttrs>(node.op.attrs)) continue;
      all += double(node.flops);
      if (node.kernel.starts_with("onednn")) library += double(node.flops);
    }
    INFO("model " << int(kind) << ": " << library << " of " << all << " operations in oneDNN");
    CHECK(library <= 0.01 * all);
  }
}

TEST_CASE("convolutions that end in their activation keep all bits", "[climate]") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> losses[2];
    for (bool fuse : {true, false}) {
      const ClimateOptions o = comparable(small(ClimateModel::tiramisu), compute, fuse);
      Program program(plan_program(o, kernel_list()), o, 5);
      const auto& nodes = program.step().plan().nodes;
      const auto activations = std::count_if(nodes.begin(), nodes.end(),
                                             [](const PlannedNode& n) { return n.op.kind == OpKind::activation; });
      CHECK((activations == 0) == fuse);
      losses[fuse] = two_losses(program);
    }
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0][1] != losses[0][0]);
  }
}

TEST_CASE("what a dropout took away need not be kept", "[climate]") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> losses[2];
    int64_t arena[2];
    for (bool fuse : {true, false}) {
      ClimateOptions o = small(ClimateModel::tiramisu);
      o.model.batch_norm = false, o.model.dropout = 0.2;
      o = comparable(std::move(o), compute, fuse);
      Program program(plan_program(o, kernel_list()), o, 5);
      const Plan& plan = program.step().plan();
      std::set<ValueId> left;  // what dropouts write
      int gradients = 0, of_dropped = 0;
      for (const PlannedNode& n : plan.nodes) {
        if (n.op.kind == OpKind::dropout) left.insert(n.out[0]);
        if (n.op.kind == OpKind::activation_backward) ++gradients, of_dropped += left.count(n.in[1]) > 0;
      }
      CHECK(gradients > 5);
      CHECK(of_dropped == (fuse ? gradients : 0));
      arena[fuse] = plan.arena_bytes;
      const auto weights = program.store().get(program.parameters()[0]).span<float>();
      const std::vector<float> before(weights.begin(), weights.end());
      losses[fuse] = two_losses(program);
      CHECK_FALSE(std::equal(before.begin(), before.end(), weights.begin()));  // dropout alone changes losses
    }
    CHECK(losses[0] == losses[1]);
    CHECK(arena[true] < arena[false]);
  }
}

TEST_CASE("factors that end in their activation keep all bits", "[climate]") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> losses[2];
    for (bool fuse : {true, false}) {
      ClimateOptions o = small(ClimateModel::deeplab);
      o.model.batch_norm = false;
      o.compute = compute;
      o.fuse = fuse;
      o.gradient_sums = false;  // of another order
      o.plan.threads = 2;
      Program program(plan_program(o, kernel_list()), o, 5);
      const auto& nodes = program.step().plan().nodes;
      const auto scales =
          std::count_if(nodes.begin(), nodes.end(), [](const PlannedNode& n) { return n.op.kind == OpKind::scale; });
      constexpr int alone = 2 * 16;  // ahead of the units, and their gradients
      CHECK((fuse ? scales == alone : scales > alone + 20));
      losses[fuse] = two_losses(program);
    }
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0][1] != losses[0][0]);
  }
}

TEST_CASE("data gradients are summed on top of what they are added to", "[climate]") {
  if (!cpu_features().avx2) {
    WARN("skipped: needs AVX2");
    return;
  }
  for (ClimateModel kind : {ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu})
    for (DType compute : {DType::f32, DType::bf16}) {
      INFO("model " << int(kind) << " in " << name_of(compute));
      // DeepLab has 44 million weights; the others show what sums in bf16 give.
      const bool runs = kind != ClimateModel::deeplab || compute == DType::f32;
      std::vector<double> updates[2];
      std::map<std::string, std::string> kernels[2];
      for (bool sums : {false, true}) {
        ClimateOptions o = small(kind);
        o.compute = compute;
        o.gradient_sums = sums;
        o.plan.threads = 2;
        o.plan.selection.excluded = {"onednn"};  // adds nothing
        ProgramPlans plans = plan_program(o, kernel_list());
        int64_t fused = 0, apart = 0;
        for (const PlannedNode& node : plans.step.nodes) {
          fused += node.op.kind == OpKind::conv_backward_data_add;
          apart += node.op.kind == OpKind::add && node.name.find("backward_data") != std::string::npos;
          if (node.name.ends_with(".backward_data")) kernels[sums][node.name] = node.kernel;
        }
        CHECK((fused > 0) == sums);
        // Small images have so few pixels that 1x1 convolutions run as dense layers, which add nothing.
        CHECK(apart <= fused / 4);
        if (!runs) continue;
        Program program(std::move(plans), o, 5);
        Executor& e = program.step();
        feed(e);
        double* state = program.store().get(step_state_name).data<double>();
        state[int(StepField::learning_rate)] = 1, state[int(StepField::step)] = 0;
        std::vector<float> before;
        const auto for_weights = [&](auto&& f) {
          for (const std::string& name : program.parameters())
            for (float w : program.store().get(name).span<float>()) f(w);
        };
        for_weights([&](float w) { before.push_back(w); });
        e.run();
        size_t i = 0;
        for_weights([&](float w) { updates[sums].push_back(double(w) - before[i++]); });
      }
      CHECK(kernels[0] == kernels[1]);
      if (!runs) continue;
      double error = 0, size = 0;
      for (size_t i = 0; i < updates[0].size(); ++i)
        error += std::pow(updates[1][i] - updates[0][i], 2), size += std::pow(updates[0][i], 2);
      CHECK(size > 0);
      CHECK(std::sqrt(error / size) < (compute == DType::f32 ? 1e-4 : 0.1));
    }
}

TEST_CASE("values made again in the backward pass take less memory and keep all bits", "[climate]") {
  // Where what lies in memory is test_plan's business, for all networks in both types.
  for (const auto& [kind, compute] : {std::pair{ClimateModel::deepcam, DType::f32},
                                      {ClimateModel::deepcam, DType::bf16},
                                      {ClimateModel::deeplab, DType::bf16}}) {
    INFO("model " << int(kind) << " in " << name_of(compute));
    std::vector<float> weights[2];
    int64_t batch_norms[2];
    for (int again : {0, 1}) {
      ClimateOptions o = small(kind);
      o.compute = compute;
      o.training.accumulation = 2;
      o.plan.threads = 2;
      o.plan.recompute = again == 1;
      Program program(plan_program(o, kernel_list()), o, 5);
      const Plan& plan = program.step().plan();
      batch_norms[again] = std::count_if(plan.nodes.begin(), plan.nodes.end(),
                                         [](const PlannedNode& n) { return n.op.kind == OpKind::batch_norm; });
      double* state = program.store().get(step_state_name).data<double>();
      state[int(StepField::learning_rate)] = 0.01;
      for (int pass = 0; pass < 4; ++pass) {
        Executor& e = pass % 2 ? program.step() : *program.micro();
        feed(e);
        state[int(StepField::micro_step)] = pass % 2, state[int(StepField::step)] = pass / 2;
        e.run();
      }
      for (const std::string& name : program.parameters()) {
        const auto values = program.store().get(name).span<float>();
        weights[again].insert(weights[again].end(), values.begin(), values.end());
      }
    }
    CHECK(batch_norms[1] > batch_norms[0] + 20);
    const bool same_bits = weights[0] == weights[1];
    CHECK(same_bits);
  }
  // Overrides reach the copies.
  ClimateOptions chosen = small(ClimateModel::deepcam);
  chosen.plan.recompute = true;
  chosen.plan.selection.overrides = {parse_override("deconv3.bn.forward=reference")};
  const Plan plan = plan_program(chosen, kernel_list()).step;
  const auto copy = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                                 [](const PlannedNode& n) { return n.name == "deconv3.bn.forward/again"; });
  REQUIRE(copy != plan.nodes.end());
  CHECK(copy->kernel == reference_name);
  // At full size. Nothing to gain where concatenations hold everything.
  for (const auto& [kind, share] : {std::pair{ClimateModel::deepcam, 0.75}, std::pair{ClimateModel::deeplab, 0.8},
                                    std::pair{ClimateModel::tiramisu, 1.0}}) {
    ClimateOptions o;
    o.model = model(kind, true);
    const int64_t kept = plan_program(o, kernel_list()).step.arena_bytes;
    o.plan.recompute = true;
    CHECK(double(plan_program(o, kernel_list()).step.arena_bytes) <= share * double(kept));
  }
}

TEST_CASE("labels and logits of a step can be compared behind it", "[climate]") {
  const auto kind = GENERATE(ClimateModel::deepcam, ClimateModel::deeplab, ClimateModel::tiramisu);
  const auto compute = GENERATE(DType::f32, DType::bf16);
  std::vector<float> logits[2];
  for (bool planned : {true, false}) {
    ClimateOptions o = small(kind);
    o.compute = compute;
    if (!planned) o.plan.reuse_memory = false;
    Program program(plan_program(o, kernel_list()), o, 5);
    Executor& e = program.step();
    feed(e);
    const auto fed = e.tensor("target").span<uint8_t>();
    const std::vector<uint8_t> before(fed.begin(), fed.end());
    program.store().get(step_state_name).data<double>()[int(StepField::learning_rate)] = 0.01;
    e.run();
    const auto after = e.tensor("target").span<uint8_t>();
    const bool same = std::equal(before.begin(), before.end(), after.begin(), after.end());
    CHECK(same);
    const Tensor& values = e.tensor("logits");
    REQUIRE(values.shape().elements() == 3 * int64_t(before.size()));
    for (int64_t i = 0; i < values.shape().elements(); ++i)
      logits[planned].push_back(compute == DType::f32 ? values.data<float>()[i] : float(values.data<bf16>()[i]));
  }
  const bool same_logits = logits[0] == logits[1];
  CHECK(same_logits);
}

TEST_CASE("climate networks fit a tiny sample, with and without passes", "[climate]") {
  for (ClimateModel kind : {ClimateModel::deepcam, ClimateModel::tiramisu}) {
    std::vector<std::vector<float>> curves;
    for (bool passes : {true, false}) {
      ClimateOptions o = small(kind);
      o.fuse = passes;
      o.gradient_sums = false;  // of another order: a rounding is a per cent of the loss after three steps
      o.plan.threads = 2;
      if (!passes) o.plan = plain_options(o.plan);
      o.plan.selection.excluded = {"winograd"};  // concatenations may change which kernel a convolution finds
      Program program(plan_program(o, kernel_list()), o, 5);
      std::vector<float> losses;
      for (int step = 0; step < 8; ++step) {
        Executor& e = program.step();
        feed(e);
        double* state = program.store().get(step_state_name).data<double>();
        // SGD: Adam's first updates are signs, which rounding turns where a gradient is near zero.
        state[int(StepField::learning_rate)] = 0.005, state[int(StepField::step)] = step;
        e.run();
        losses.push_back(e.tensor("loss").data<float>()[0]);
      }
      CHECK(losses.back() < 0.8f * losses.front());
      curves.push_back(losses);
    }
    for (size_t i = 0; i < curves[0].size(); ++i) CHECK(curves[0][i] == Approx(curves[1][i]).epsilon(0.002));
  }
}
