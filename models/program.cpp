#include "models/program.h"

#include <algorithm>

#include "core/passes/passes.h"

namespace convoy {
namespace {

/// Dynamic loss scaling for f16: start high, double every 1000 finite steps, halve on overflow.
constexpr double f16_initial_scale = 32768;

TrainingOptions training_options(const ProgramOptions& options, const std::vector<std::string>& l2_parameters) {
  TrainingOptions training = options.training;
  training.l2_parameters = l2_parameters;
  if (options.compute == DType::f16) training.scaling = LossScaleAttrs{};
  return training;
}

}  // namespace

Tape training_tape(const ProgramOptions& o) {
  Tape tape;
  const CosmoflowNet net = record_cosmoflow(tape, o.model, o.batch, o.input_type, o.normalisation, Mode::training);
  const ValueId target = tape.input("target", TensorDesc({o.batch, 1, 1, 1, o.model.targets}, DType::f32));
  tape.keep(regression_loss(tape, "loss", o.loss, net.prediction, target), "data_loss");
  tape = apply_precision(tape, o.compute);
  if (o.fuse) fuse(tape);
  add_training(tape, tape.find("data_loss"), training_options(o, net.hidden_dense_weights));
  if (o.fuse) fuse_convolutions(tape);
  if (o.fuse && o.sparse_gradients) fuse_backward(tape);
  return tape;
}

Tape evaluation_tape(const ProgramOptions& o) {
  Tape tape;
  record_cosmoflow(tape, o.model, o.evaluation_batch, o.input_type, o.normalisation, Mode::evaluation);
  tape = apply_precision(tape, o.compute);
  if (o.fuse) {
    fuse(tape);
    fuse_convolutions(tape);
  }
  return tape;
}

NetworkCounts count_network(const CosmoflowConfig& model) {
  ProgramOptions o;
  o.model = model;
  const Tape tape = training_tape(o);
  NetworkCounts counts;
  for (ValueId id : tape.parameters()) counts.parameters += tape.desc(id).shape.elements();
  for (const Node& node : tape.nodes()) {
    if (node.op.kind > OpKind::dense_backward_weights) continue;
    const int64_t flops = flops_of(node.op, tape.descs(node.in), tape.descs(node.out));
    counts.training_flops += flops;
    if (node.op.kind == OpKind::conv_forward || node.op.kind == OpKind::conv_pool_forward ||
        node.op.kind == OpKind::dense_forward)
      counts.forward_flops += flops;
  }
  return counts;
}

ProgramPlans plan_program(const ProgramOptions& o, const KernelList& kernels) {
  ProgramPlans plans{training_tape(o), evaluation_tape(o), {}, {}};
  plans.step = make_plan(plans.step_tape, kernels, o.plan);
  plans.evaluate = make_plan(plans.evaluate_tape, kernels, o.plan);
  for (const KernelOverride& wish : o.plan.selection.overrides) {
    const auto fits = [&](const PlannedNode& node) { return matches(wish.node, node.name); };
    if (std::none_of(plans.step.nodes.begin(), plans.step.nodes.end(), fits) &&
        std::none_of(plans.evaluate.nodes.begin(), plans.evaluate.nodes.end(), fits))
      fail_usage("--kernel " + wish.node + "=" + wish.kernel +
                 ": no node has that name (--summary lists them; a pool may be part of its convolution)");
  }
  return plans;
}

Program::Program(ProgramPlans plans, const ProgramOptions& options, uint64_t seed) : options_(options) {
  store_.initialise(plans.step_tape, seed);
  store_.initialise(plans.evaluate_tape, seed);
  store_.get(scale_state_name).data<double>()[int(ScaleField::scale)] =
      options.compute == DType::f16 ? f16_initial_scale : 1.0;
  for (ValueId id : plans.step_tape.parameters()) parameters_.push_back(plans.step_tape.value(id).name);
  const auto arena = std::make_shared<Buffer>(plans.arena_bytes(), Buffer::Fill::none);
  step_ = std::make_unique<Executor>(std::move(plans.step), store_, arena);
  evaluate_ = std::make_unique<Executor>(std::move(plans.evaluate), store_, arena);
}

}  // namespace convoy
