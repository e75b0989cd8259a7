// Turns a forward tape into a training step: gradients, penalty, overflow check, updates.
#pragma once

#include <string>
#include <vector>

#include "core/tape.h"

namespace convoy {

enum class OptimizerKind : uint8_t { sgd, adam, lamb };

struct TrainingOptions {
  OptimizerKind optimizer = OptimizerKind::sgd;
  SgdAttrs sgd;
  AdamAttrs adam;  ///< AdamW where it decays weights
  LambAttrs lamb;
  double l2 = 0;                           ///< penalty l2 * sum(w^2) (Keras), gradient 2*l2*w
  std::vector<std::string> l2_parameters;  ///< the weights it applies to
  int64_t accumulation = 1;                ///< gradients of so many passes are averaged before an update
  /// 1: an update applies the gradients of the step before, the first one none (gradients can travel meanwhile). Needs
  /// a constant loss scale.
  int64_t lag = 0;
  LossScaleAttrs scaling{1, 1, 1};  ///< growth and backoff 1: the factor never changes
};

/// Appends to `tape` (which ends in the scalar `loss`) everything up to the parameter updates, and keeps "loss" (with
/// the penalty included) and "finite". States: "<parameter>.velocity" or ".moment1", ".moment2"; step_state;
/// loss_scale.
void add_training(Tape& tape, ValueId loss, const TrainingOptions& options);
/// The pass ahead of an update where `accumulation` is above 1: adds the gradients to states
/// "<parameter>.gradient_sum"; keeps "loss".
void add_accumulation(Tape& tape, ValueId loss);

}  // namespace convoy
