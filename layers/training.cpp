#include "layers/training.h"

#include <algorithm>

#include "core/backward.h"

namespace convoy {

void add_training(Tape& tape, ValueId loss, const TrainingOptions& options) {
  const ValueId step = tape.state(step_state_name, step_state_desc());
  const ValueId scale = tape.state(scale_state_name, scale_state_desc());
  const std::vector<ValueId> parameters = tape.parameters();
  std::vector<ValueId> gradients = differentiate(tape, loss, scale, parameters);
  if (options.accumulation > 1)
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = tape.value(parameters[i]).name;
      const ValueId sum = tape.emit({OpKind::add, NoAttrs{}}, name + ".add_sum",
                                    {gradients[i], tape.state(name + ".gradient_sum", tape.desc(parameters[i]))});
      gradients[i] =
          tape.emit({OpKind::scale, ScaleAttrs{1.0 / double(options.accumulation)}}, name + ".mean_gradient", {sum});
    }

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

  std::vector<ValueId> checked = gradients;
  checked.push_back(total);
  const ValueId finite = tape.emit({OpKind::all_finite, NoAttrs{}}, "update.all_finite", checked);
  tape.keep(finite, "finite");
  std::vector<ValueId> applied = gradients;
  ValueId valid = finite;
  if (options.lag > 0) {
    if (!(options.scaling == LossScaleAttrs{1, 1, 1}))
      fail_usage("gradient lag needs a constant loss scale: f32 or bf16");
    valid = tape.state("lagged_finite", tape.desc(finite));
    for (size_t i = 0; i < parameters.size(); ++i)
      applied[i] = tape.state(tape.value(parameters[i]).name + ".lagged_gradient", tape.desc(parameters[i]));
  }
  ValueId norm = no_value;
  if (options.optimizer == OptimizerKind::lamb) {
    std::vector<ValueId> all = applied;
    all.push_back(scale);
    norm = tape.emit({OpKind::gradient_norm, NoAttrs{}}, "update.gradient_norm", all);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorDesc desc = tape.desc(parameters[i]);
    const std::string name = tape.value(parameters[i]).name;
    std::vector<ValueId> in{applied[i], step, scale, valid, parameters[i]};
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
  tape.add({OpKind::loss_scale_update, options.scaling}, "update.loss_scale", {valid, scale});
  if (options.lag > 0) {
    for (size_t i = 0; i < parameters.size(); ++i)
      tape.add({OpKind::assign, NoAttrs{}}, tape.value(parameters[i]).name + ".keep_gradient",
               {gradients[i], applied[i]});
    tape.add({OpKind::assign, NoAttrs{}}, "update.keep_finite", {finite, valid});
  }
}

void add_accumulation(Tape& tape, ValueId loss) {
  const ValueId step = tape.state(step_state_name, step_state_desc());
  const ValueId scale = tape.state(scale_state_name, scale_state_desc());
  const std::vector<ValueId> parameters = tape.parameters();
  const std::vector<ValueId> gradients = differentiate(tape, loss, scale, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = tape.value(parameters[i]).name;
    tape.add({OpKind::accumulate, NoAttrs{}}, name + ".accumulate",
             {gradients[i], step, tape.state(name + ".gradient_sum", tape.desc(parameters[i]))});
  }
  tape.keep(loss, "loss");
}

}  // namespace convoy
