#include "layers/training.h"

#include <algorithm>

#include "core/backward.h"

namespace convoy {

namespace {

/// Adds the sums of the passes ahead and divides by the number of passes.
/// Takes a copy of the name: recording may move the values that hold it.
ValueId mean_of_passes(Tape& tape, std::string name, ValueId value, int64_t passes) {
  const ValueId sum = tape.emit({OpKind::add, NoAttrs{}}, name + ".add_sum",
                                {value, tape.state(name + ".gradient_sum", tape.desc(value))});
  return tape.emit({OpKind::scale, ScaleAttrs{1.0 / double(passes)}}, name + ".mean_gradient", {sum});
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
    fail_usage("gradient lag needs a constant loss scale: f32 or bf16");
  if (!(o.l2 >= 0)) fail_usage("training: l2: expected 0 or more, found " + std::to_string(o.l2));
  if (o.l2 == 0) return;
  if (o.l2_parameters.empty())
    fail_usage("training: l2 " + std::to_string(o.l2) + ": expected names in l2_parameters, found none");
  for (const std::string& name : o.l2_parameters)
    if (std::none_of(tape.states().begin(), tape.states().end(),
                     [&](const StateSpec& s) { return s.trainable && tape.value(s.value).name == name; }))
      fail_usage("training: l2_parameters: the network has no parameter \"" + name + "\"");
}

}  // namespace

void add_training(Tape& tape, ValueId loss, const TrainingOptions& options) {
  check(tape, options);
  const ValueId step = tape.state(step_state_name, step_state_desc());
  const ValueId scale = tape.state(scale_state_name, scale_state_desc());
  const AveragingOptions& averaging = options.averaging;
  const std::vector<ValueId> parameters = tape.parameters();
  std::vector<ValueId> gradients = differentiate(tape, loss, scale, parameters);
  if (averaging.batch_norm_ranks > 1) share_batch_norm(tape, averaging);
  if (options.accumulation > 1) {
    for (size_t i = 0; i < parameters.size(); ++i)
      gradients[i] = mean_of_passes(tape, tape.value(parameters[i]).name, gradients[i], options.accumulation);
    loss = mean_of_passes(tape, "loss", loss, options.accumulation);
  }
  std::vector<ValueId> checked;
  AveragedBuckets averaged;
  if (averaging.ranks > 1) {
    loss = average_value(tape, Averaged::loss, loss, averaging);
    const ValueId stop = tape.input(stop_request_name, TensorDesc(Shape::vector(1), DType::f32));
    tape.keep(average_value(tape, Averaged::stop, stop, averaging), "stop_requests");
  }
  if (averaging.ranks > 1 || options.lag > 0) {
    averaged = average_gradients(tape, parameters, gradients, options.lag, averaging);
    checked = averaged.buckets;
  } else {
    checked = gradients;
  }
  hoist(tape, runs_early);

  ValueId total = loss;
  if (options.l2 > 0)
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = tape.value(parameters[i]).name;
      if (std::find(options.l2_parameters.begin(), options.l2_parameters.end(), name) == options.l2_parameters.end())
        continue;
      const ValueId penalty =
          tape.emit({OpKind::sum_squares, ScaleAttrs{options.l2}}, name + ".penalty", {parameters[i]});
      total = tape.emit({OpKind::add, NoAttrs{}}, name + ".add_penalty", {total, penalty});
      gradients[i] = tape.emit({OpKind::add_scaled, ScaleAttrs{2 * options.l2}}, name + ".penalty_gradient",
                               {gradients[i], parameters[i], scale});
    }
  tape.keep(total, "loss");

  checked.push_back(total);
  const ValueId finite = tape.emit({OpKind::all_finite, NoAttrs{}}, "update.all_finite", checked);
  tape.keep(finite, "finite");
  ValueId norm = no_value;
  if (options.optimizer == OptimizerKind::lamb) {
    std::vector<ValueId> all = gradients;
    all.push_back(scale);
    norm = tape.emit({OpKind::gradient_norm, NoAttrs{}}, "update.gradient_norm", all);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorDesc desc = tape.desc(parameters[i]);
    const std::string name = tape.value(parameters[i]).name;
    std::vector<ValueId> in{gradients[i], step, scale, finite, parameters[i]};
    if (options.optimizer == OptimizerKind::sgd) {
      in.push_back(tape.state(name + ".velocity", desc));
      tape.add({OpKind::sgd_update, options.sgd}, name + ".update", in);
    } else {
      in.push_back(tape.state(name + ".moment1", desc));
      in.push_back(tape.state(name + ".moment2", desc));
      if (norm != no_value) in.insert(in.begin() + 4, norm);
      tape.add(norm != no_value ? Op{OpKind::lamb_update, options.lamb} : Op{OpKind::adam_update, options.adam},
               name + ".update", in);
    }
  }
  tape.add({OpKind::loss_scale_update, options.scaling}, "update.loss_scale", {finite, scale});
  start_lagged(tape, averaged, averaging);
}

void add_accumulation(Tape& tape, ValueId loss, const AveragingOptions& averaging) {
  const ValueId step = tape.state(step_state_name, step_state_desc());
  const ValueId scale = tape.state(scale_state_name, scale_state_desc());
  const std::vector<ValueId> parameters = tape.parameters();
  const std::vector<ValueId> gradients = differentiate(tape, loss, scale, parameters);
  if (averaging.batch_norm_ranks > 1) share_batch_norm(tape, averaging);
  const auto accumulate = [&](std::string name, ValueId value) {
    tape.add({OpKind::accumulate, NoAttrs{}}, name + ".accumulate",
             {value, step, tape.state(name + ".gradient_sum", tape.desc(value))});
  };
  for (size_t i = 0; i < parameters.size(); ++i) accumulate(tape.value(parameters[i]).name, gradients[i]);
  accumulate("loss", loss);
}

}  // namespace convoy
