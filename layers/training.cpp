#include "layers/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/backward.h"

namespace convoy {

namespace {

void check(const AveragingOptions& o) {
  for (const auto& [what, ranks] : {std::pair{"ranks", o.ranks}, {"batch_norm_ranks", o.batch_norm_ranks}})
    if (ranks < 1)
      fail_usage(std::string("training: averaging.") + what + ": expected 1 or more, found " + std::to_string(ranks));
  if (o.ranks % o.batch_norm_ranks)
    fail_usage("training: averaging.batch_norm_ranks: expected a number that divides " + std::to_string(o.ranks) +
               " ranks into groups, found " + std::to_string(o.batch_norm_ranks));
}

/// What the parts of a training step hand on.
struct Step {
  Tape& tape;
  ValueId loss;
  ValueId counters = no_value, scale = no_value;  ///< states
  std::vector<ValueId> parameters{}, gradients{};
  std::string name_of(size_t i) const { return tape.value(parameters[i]).name; }
};

/// The states that all steps have, then the backward pass.
Step differentiated(Tape& tape, ValueId loss, const AveragingOptions& averaging, const StateInit& scale) {
  check(averaging);
  Step s{tape, loss};
  s.counters = tape.state(step_state_name, step_state_desc());
  s.scale = tape.state(scale_state_name, scale_state_desc(), scale);
  s.parameters = tape.parameters();
  s.gradients = differentiate(tape, loss, s.scale, s.parameters);
  if (averaging.batch_norm_ranks > 1) share_batch_norm(tape, averaging);
  return s;
}

/// Adds the sums of the passes ahead and divides by the number of passes.
ValueId mean_of_passes(Tape& tape, const std::string& name, ValueId value, int64_t passes) {
  const ValueId sum = tape.emit({OpKind::add, NoAttrs{}}, name + ".add_sum",
                                {value, tape.state(gradient_sum_name(name), tape.desc(value))});
  return tape.emit({OpKind::scale, ScaleAttrs{1.0 / double(passes)}}, name + ".mean_gradient", {sum});
}

void average_passes(Step& s, int64_t passes) {
  if (passes == 1) return;
  for (size_t i = 0; i < s.parameters.size(); ++i)
    s.gradients[i] = mean_of_passes(s.tape, s.name_of(i), s.gradients[i], passes);
  s.loss = mean_of_passes(s.tape, "loss", s.loss, passes);
}

/// What should run as soon as its inputs are there, so that messages travel while backward goes on.
bool runs_early(const Node& node) {
  return node.op.kind == OpKind::bucket || node.op.kind == OpKind::all_reduce_start ||
         node.name.ends_with(".add_sum") || node.name.ends_with(".mean_gradient");
}

void check(const Tape& tape, const TrainingOptions& o) {
  if (o.accumulation < 1)
    fail_usage("training: accumulation: expected 1 or more, found " + std::to_string(o.accumulation));
  if (o.lag != 0 && o.lag != 1) fail_usage("training: lag: expected 0 or 1, found " + std::to_string(o.lag));
  if (o.lag > 0 && !(o.scaling == constant_scaling))
    fail_usage("gradient lag needs a constant loss scale: f32, bf16, or f16 with one (--loss-scale)");
  if (const double scale = o.initial_scale.value_or(1); !(scale > 0) || !std::isfinite(scale))
    fail_usage("training: initial_scale: expected a number above 0, found " + std::to_string(scale));
  if (!(o.l2 >= 0)) fail_usage("training: l2: expected 0 or more, found " + std::to_string(o.l2));
  if (o.l2 == 0) return;
  if (o.l2_parameters.empty())
    fail_usage("training: l2 " + std::to_string(o.l2) + ": expected names in l2_parameters, found none");
  for (const std::string& name : o.l2_parameters)
    if (std::none_of(tape.states().begin(), tape.states().end(),
                     [&](const StateSpec& s) { return s.trainable && tape.value(s.value).name == name; }))
      fail_usage("training: l2_parameters: the network has no parameter \"" + name + "\"");
}

/// Means over ranks of loss, stop requests and gradients, which travel in buckets.
AveragedBuckets average_ranks(Step& s, int64_t lag, const AveragingOptions& averaging) {
  AveragedBuckets averaged;
  if (averaging.ranks > 1) {
    s.loss = average_value(s.tape, Averaged::loss, s.loss, averaging);
    const ValueId stop = s.tape.input(stop_request_name, TensorDesc(Shape::vector(1), DType::f32));
    s.tape.keep(average_value(s.tape, Averaged::stop, stop, averaging), "stop_requests");
  }
  if (averaging.ranks > 1 || lag > 0) averaged = average_gradients(s.tape, s.parameters, s.gradients, lag, averaging);
  hoist(s.tape, runs_early);
  return averaged;
}

void add_penalty(Step& s, const TrainingOptions& o) {
  if (o.l2 == 0) return;
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const std::string name = s.name_of(i);
    if (std::find(o.l2_parameters.begin(), o.l2_parameters.end(), name) == o.l2_parameters.end()) continue;
    const ValueId penalty = s.tape.emit({OpKind::sum_squares, ScaleAttrs{o.l2}}, name + ".penalty", {s.parameters[i]});
    s.loss = s.tape.emit({OpKind::add, NoAttrs{}}, name + ".add_penalty", {s.loss, penalty});
    s.gradients[i] = s.tape.emit({OpKind::add_scaled, ScaleAttrs{2 * o.l2}}, name + ".penalty_gradient",
                                 {s.gradients[i], s.parameters[i], s.scale});
  }
}

/// Whether all of these, and the loss, are finite, on the tape.
ValueId add_check(Step& s, std::vector<ValueId> checked) {
  checked.push_back(s.loss);
  const ValueId finite = s.tape.emit({OpKind::all_finite, NoAttrs{}}, "update.all_finite", checked);
  s.tape.keep(finite, "finite");
  return finite;
}

void add_updates(Step& s, ValueId finite, const TrainingOptions& o) {
  const bool lamb = o.optimizer == OptimizerKind::lamb;
  ValueId norm = no_value;
  if (lamb) {
    std::vector<ValueId> all = s.gradients;
    all.push_back(s.scale);
    norm = s.tape.emit({OpKind::gradient_norm, NoAttrs{}}, "update.gradient_norm", all);
  }
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const TensorDesc desc = s.tape.desc(s.parameters[i]);
    const std::string name = s.name_of(i);
    std::vector<ValueId> in{s.gradients[i], s.counters, s.scale, finite};
    if (lamb) in.push_back(norm);
    in.push_back(s.parameters[i]);
    if (o.optimizer == OptimizerKind::sgd) {
      in.push_back(s.tape.state(name + ".velocity", desc));
      s.tape.add({OpKind::sgd_update, o.sgd}, name + ".update", in);
    } else {
      in.push_back(s.tape.state(name + ".moment1", desc));
      in.push_back(s.tape.state(name + ".moment2", desc));
      s.tape.add(lamb ? Op{OpKind::lamb_update, o.lamb} : Op{OpKind::adam_update, o.adam}, name + ".update", in);
    }
  }
  s.tape.add({OpKind::loss_scale_update, o.scaling}, "update.loss_scale", {finite, s.scale});
}

}  // namespace

void add_training(Tape& tape, ValueId loss, const TrainingOptions& options) {
  check(tape, options);
  Step s = differentiated(tape, loss, options.averaging, scale_state_init(options.initial_scale.value_or(1)));
  average_passes(s, options.accumulation);
  const AveragedBuckets averaged = average_ranks(s, options.lag, options.averaging);
  const std::vector<ValueId> checked = averaged.buckets.empty() ? s.gradients : averaged.buckets;
  add_penalty(s, options);
  tape.keep(s.loss, "loss");
  add_updates(s, add_check(s, checked), options);
  start_lagged(tape, averaged, options.averaging);
}

void add_accumulation(Tape& tape, ValueId loss, const AveragingOptions& averaging) {
  const Step s = differentiated(tape, loss, averaging, scale_state_init());  // the update's tape gives it its value
  const auto accumulate = [&](const std::string& name, ValueId value) {
    tape.add({OpKind::accumulate, NoAttrs{}}, name + ".accumulate",
             {value, s.counters, tape.state(gradient_sum_name(name), tape.desc(value))});
  };
  for (size_t i = 0; i < s.parameters.size(); ++i) accumulate(s.name_of(i), s.gradients[i]);
  accumulate("loss", loss);
}

}  // namespace convoy
