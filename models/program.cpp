#include "models/program.h"

#include <algorithm>
#include <cmath>

#include "core/passes/passes.h"
#include "core/round_up.h"
#include "models/idle_overrides.h"

namespace convoy {
namespace {

/// Dynamic loss scaling for f16: start high, double every 1000 finite steps, halve on overflow.
constexpr double f16_initial_scale = 32768;

ClimateConfig evaluated_model(const ClimateOptions& o) {
  ClimateConfig model = o.model;
  if ((o.evaluation_height == 0) != (o.evaluation_width == 0))
    fail_usage("climate: expected evaluation_height and evaluation_width, or neither, found " +
               std::to_string(o.evaluation_height) + " and " + std::to_string(o.evaluation_width));
  if (o.evaluation_height != 0) model.height = o.evaluation_height, model.width = o.evaluation_width;
  return model;
}

/// Throws where gradients of several passes would be added up that nobody reads, or read that nobody adds up.
void expect_accumulation(const ProgramTapes& tapes) {
  const bool reads = tapes.step.find(gradient_sum_name("loss")) != no_value;
  if (reads != tapes.micro.has_value())
    fail_usage(std::string("a program whose step averages ") + (reads ? "several passes" : "one pass") + ": expected " +
               (reads ? "" : "no ") + "micro tape, found " + (reads ? "none" : "one"));
}

template <class Options>
ProgramTapes tapes_of(const Options& o) {
  ProgramTapes tapes{training_tape(o), evaluation_tape(o), {}, {}};
  if (o.training.accumulation > 1) tapes.micro = training_tape(o, Ending::accumulate);
  return tapes;
}

/// What TensorFlow 1's graph counter makes of a convolution: a dilated one runs on the padded image rounded up to a
/// multiple of the dilation (SpaceToBatch), a strided one with fixed padding on the padded image.
int64_t counted_flops(const Op& op, const Shape& x, int64_t flops, const Shape& y) {
  const auto& a = op.as<ConvAttrs>();
  double factor = 1;
  for (int i = 1; i < 3; ++i) {
    const int64_t padded = x[i + 1] + a.pad_low[i] + a.pad_high[i];
    int64_t outputs = y[i + 1];
    if (a.dilation[i] > 1)
      outputs = round_up(padded, a.dilation[i]);
    else if (a.stride[i] > 1 && a.pad_low[i] == a.pad_high[i])
      outputs = ceil_div(padded, a.stride[i]);
    factor *= double(outputs) / double(y[i + 1]);
  }
  return std::llround(double(flops) * factor);
}

/// Forward nodes of layers are named "<layer>.forward", whatever their op.
NetworkCounts count_tape(const Tape& tape) {
  NetworkCounts counts;
  for (ValueId id : tape.parameters()) counts.parameters += tape.desc(id).shape.elements();
  for (const Node& node : tape.nodes()) {
    if (const OpFamily family = family_of(node.op.kind); family != OpFamily::convolution && family != OpFamily::dense)
      continue;
    const int64_t flops = flops_of(node.op, tape.descs(node.in), tape.descs(node.out));
    counts.training_flops += flops;
    if (!node.name.ends_with(".forward")) continue;
    counts.forward_flops += flops;
    counts.counted_flops += node.op.kind == OpKind::conv_forward ? counted_flops(node.op, tape.desc(node.in[0]).shape,
                                                                                 flops, tape.desc(node.out[0]).shape)
                                                                 : flops;
  }
  return counts;
}

}  // namespace

Tape new_tape(const ProgramOptions& o) {
  return Tape(o.compute == DType::f64 ? DType::f64 : DType::f32);
}

Tape finish_training(Tape forward, const ProgramOptions& o, Ending ending) {
  Tape tape = apply_precision(forward, o.compute);
  if (o.fuse) fuse(tape);
  TrainingOptions training = o.training;
  if (o.compute == DType::f16 && !training.scaling_stays) {
    if (training.scaling == constant_scaling) training.scaling = LossScaleAttrs{};
    if (!training.initial_scale) training.initial_scale = f16_initial_scale;
  }
  const ValueId loss = tape.find(data_loss_name);
  if (loss == no_value)
    fail_usage(std::string("finish_training: expected a loss kept as \"") + data_loss_name + "\", found none");
  ending == Ending::update ? add_training(tape, loss, training) : add_accumulation(tape, loss, training.averaging);
  if (o.fuse) forget_dropped(tape), fuse_convolutions(tape);
  if (o.fuse && o.sparse_gradients) fuse_backward(tape);
  if (o.fuse && o.gradient_sums) fuse_gradient_sums(tape);
  return tape;
}

Tape finish_evaluation(Tape forward, const ProgramOptions& o) {
  Tape tape = apply_precision(forward, o.compute);
  if (o.fuse) {
    fuse(tape);
    fuse_convolutions(tape);
  }
  return tape;
}

Tape training_tape(const CosmoflowOptions& o, Ending ending) {
  Tape tape = new_tape(o);
  const CosmoflowNet net = record_cosmoflow(tape, o.model, o.batch, o.input_type, o.normalisation, Mode::training);
  const ValueId target = tape.input("target", TensorDesc({o.batch, 1, 1, 1, o.model.targets}, tape.float_type()));
  tape.keep(regression_loss(tape, "loss", o.loss, net.prediction, target), data_loss_name);
  ProgramOptions named = o;
  if (named.training.l2_parameters.empty()) named.training.l2_parameters = net.hidden_dense_weights;
  return finish_training(std::move(tape), named, ending);
}

Tape training_tape(const ClimateOptions& o, Ending ending) {
  Tape tape = new_tape(o);
  const ClimateNet net = record_climate(tape, o.model, o.batch, o.input_type, Mode::training);
  const ValueId labels = tape.input("target", label_desc(tape.desc(net.logits).shape));
  if (ending == Ending::update) {  // to be compared behind the step
    tape.keep(labels, "target");
    tape.keep(net.logits, "logits");
  }
  tape.keep(pixel_loss(tape, "loss", o.loss, net.logits, labels), data_loss_name);
  return finish_training(std::move(tape), o, ending);
}

std::vector<std::string> penalised_parameters(const CosmoflowOptions& o) {
  if (!o.training.l2_parameters.empty()) return o.training.l2_parameters;
  Tape tape = new_tape(o);
  return record_cosmoflow(tape, o.model, o.batch, o.input_type, o.normalisation, Mode::evaluation).hidden_dense_weights;
}

Tape evaluation_tape(const CosmoflowOptions& o) {
  Tape tape = new_tape(o);
  record_cosmoflow(tape, o.model, o.evaluation_batch, o.input_type, o.normalisation, Mode::evaluation);
  return finish_evaluation(std::move(tape), o);
}

Tape evaluation_tape(const ClimateOptions& o) {
  Tape tape = new_tape(o);
  const ClimateConfig model = evaluated_model(o);
  const ClimateNet net = record_climate(tape, model, o.evaluation_batch, o.input_type, Mode::evaluation);
  const ValueId labels = tape.input("target", label_desc(tape.desc(net.logits).shape));
  tape.keep(net.logits, "logits");
  tape.keep(tape.emit({OpKind::arg_max, NoAttrs{}}, "prediction.forward", {net.logits}), "prediction");
  tape.keep(pixel_loss(tape, "loss", o.loss, net.logits, labels), "loss");
  return finish_evaluation(std::move(tape), o);
}

Tape statistics_tape(const ClimateOptions& o) {
  Tape tape = new_tape(o);
  ClimateConfig model = evaluated_model(o);
  model.batch_norm_momentum = 1;
  model.dropout = 0;
  record_climate(tape, model, o.evaluation_batch, o.input_type, Mode::training);
  return finish_evaluation(std::move(tape), o);
}

ProgramTapes program_tapes(const CosmoflowOptions& o) {
  return tapes_of(o);
}
ProgramTapes program_tapes(const ClimateOptions& o) {
  ProgramTapes tapes = tapes_of(o);
  if (o.statistics_pass) tapes.statistics = statistics_tape(o);
  return tapes;
}

NetworkCounts count_network(const CosmoflowConfig& model) {
  CosmoflowOptions o;
  o.model = model;
  return count_tape(training_tape(o));
}

NetworkCounts count_network(const ClimateConfig& model) {
  ClimateOptions o;
  o.model = model;
  NetworkCounts counts = count_tape(training_tape(o));
  counts.unread_parameters = unread_parameters(model);
  return counts;
}

int64_t ProgramPlans::own_state_bytes() const {
  int64_t total = 0;
  for (const StateSpec& spec : network().states()) total += network().desc(spec.value).bytes();
  for (const auto& [id, at] : step.shared_states) total -= step.value(id).desc.bytes();
  return total;
}

ProgramPlans plan_program(ProgramTapes tapes, const PlanOptions& o, const KernelList& kernels) {
  expect_accumulation(tapes);
  for (const KernelOverride& wish : o.selection.overrides) require_kernel(kernels, wish);
  ProgramPlans plans{std::move(tapes.step), std::move(tapes.evaluate), {}, {}, {}, {}};
  if (tapes.micro) plans.micro = make_plan(*tapes.micro, kernels, o);
  if (tapes.statistics) {
    // A rank runs it as often as its share has images: nothing of it can wait for the team.
    PlanOptions alone = o;
    alone.team = 1, alone.place = 0;
    plans.statistics = make_plan(*tapes.statistics, kernels, alone);
  }
  if (plans.trains()) plans.step = make_plan(plans.step_tape, kernels, o);
  plans.evaluate = make_plan(plans.evaluate_tape, kernels, o);
  // What only predicts may be asked for what the step that was trained was.
  if (!plans.trains()) return plans;
  for (const KernelOverride& wish : o.selection.overrides) {
    const auto fits = [&](const PlannedNode& node) { return speaks_of(wish, node); };
    const auto lacks = [&](const Plan* plan) { return std::none_of(plan->nodes.begin(), plan->nodes.end(), fits); };
    if (const std::vector<const Plan*> all = plans.all(); std::all_of(all.begin(), all.end(), lacks))
      fail_usage("--kernel " + wish.node + "=" + wish.kernel +
                 ": no node has such a name (--summary lists them; a pool may be part of its convolution, a value made "
                 "again goes by its original)");
  }
  return plans;
}

Program::Program(ProgramPlans plans, const ProgramOptions& options, uint64_t seed,
                 const std::shared_ptr<Buffer>& shared)
    : options_(options) {
  if (plans.shared_bytes() > 0 && !shared) fail_usage("a program that shares memory with its team needs that memory");
  for (const auto& [id, at] : plans.step.shared_states) {
    const Value& state = plans.step.value(id);
    store_.place(state.name, Tensor(state.desc, shared, plans.shared_states_begin() + at), options.plan.place == 0);
  }
  initialise(plans, seed);
  const auto arena = std::make_shared<Buffer>(plans.arena_bytes(), Buffer::Fill::none);
  make_executors(plans, [&](Plan& plan) { return std::make_unique<Executor>(std::move(plan), store_, arena, shared); });
}

Program::Program(ProgramPlans plans, const ProgramOptions& options, uint64_t seed, std::shared_ptr<Device> device)
    : options_(options), device_(std::move(device)) {
  initialise(plans, seed);
  for (const auto& [name, tensor] : store_.entries())
    device_states_.place(name, Tensor(tensor.desc(), device_->allocate(tensor.desc().bytes())), false);
  device_states_.initialise(plans.step_tape, seed);
  device_states_.initialise(plans.evaluate_tape, seed);
  to_device();
  const auto arena = device_->allocate(plans.arena_bytes());
  make_executors(plans, [&](Plan& plan) {
    return std::make_unique<Executor>(std::move(plan), store_, arena, *device_, device_states_);
  });
}

template <class Make>
void Program::make_executors(ProgramPlans& plans, Make&& make) {
  if (plans.trains()) step_ = make(plans.step);
  if (plans.micro) micro_ = make(*plans.micro);
  if (plans.statistics) statistics_pass_ = make(*plans.statistics);
  evaluate_ = make(plans.evaluate);
}

void Program::initialise(const ProgramPlans& plans, uint64_t seed) {
  store_.initialise(plans.step_tape, seed);
  store_.initialise(plans.evaluate_tape, seed);
  for (ValueId id : plans.network().parameters()) parameters_.push_back(plans.network().value(id).name);
  for (const StateSpec& state : plans.evaluate_tape.states())
    if (const std::string& name = plans.evaluate_tape.value(state.value).name;
        name.ends_with(".running_mean") || name.ends_with(".running_var"))
      statistics_.push_back(name);
}

void Program::to_device() {
  if (!device_) return;
  for (const auto& [name, tensor] : store_.entries()) upload(name);
  device_->synchronize();
}

void Program::to_host() {
  if (!device_) return;
  for (const auto& [name, tensor] : store_.entries())
    if (tensor.dtype() != DType::f64) download(name);  // the host's own are newer
  device_->synchronize();
}

void Program::to_device(std::span<const std::string> states) {
  if (!device_) return;
  for (const std::string& name : states) upload(name);
  device_->synchronize();
}

void Program::to_host(std::span<const std::string> states) {
  if (!device_) return;
  for (const std::string& name : states) download(name);
  device_->synchronize();
}

void Program::upload(const std::string& state) {
  const Tensor& host = store_.get(state);
  device_->upload(device_states_.get(state).bytes(), host.bytes(), host.desc().bytes());
}

void Program::download(const std::string& state) {
  const Tensor& host = store_.get(state);
  device_->download(host.bytes(), device_states_.get(state).bytes(), host.desc().bytes());
}

}  // namespace convoy
