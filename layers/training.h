// Turns a forward tape into a training step: gradients, penalty, overflow check, updates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/passes/average.h"
#include "core/tape.h"

namespace convoy {

/// The factor on the loss never changes.
inline constexpr LossScaleAttrs constant_scaling{1, 1, 1};

enum class OptimizerKind : uint8_t { sgd, adam, lamb };

struct TrainingOptions {
  OptimizerKind optimizer = OptimizerKind::sgd;
  SgdAttrs sgd;
  AdamAttrs adam;  ///< AdamW where it decays weights, an L2 penalty where it has one
  LambAttrs lamb;
  double l2 = 0;                           ///< penalty l2 * sum(w^2) (Keras), gradient 2*l2*w; 0 or more
  std::vector<std::string> l2_parameters;  ///< the weights it applies to: parameters of the tape
  int64_t accumulation = 1;                ///< gradients of so many passes are averaged before an update; 1 or more
  /// 1: an update applies the gradients of the step before, the first one none (gradients can travel meanwhile). Needs
  /// a constant loss scale.
  int64_t lag = 0;
  LossScaleAttrs scaling = constant_scaling;
  std::optional<double> initial_scale;  ///< the factor on the loss at first, above 0; none: 1 (finish_training: f16's)
  bool scaling_stays = false;           ///< finish_training keeps a constant factor in f16, too
  AveragingOptions averaging;           ///< gradients become means over all ranks
};

/// With several ranks: the input by which any rank asks all of them to stop, one number, 0 or 1. The kept value
/// "stop_requests" is its mean.
inline constexpr const char* stop_request_name = "stop_request";

/// The state in which passes ahead of an update add up a parameter's gradient, or the "loss".
inline std::string gradient_sum_name(const std::string& of) {
  return of + ".gradient_sum";
}

/// Appends to `tape` (which ends in the scalar `loss`) everything up to the parameter updates, and keeps "loss" (the
/// mean over passes and ranks, with the penalty included) and "finite". With lag, "finite" speaks of the gradients that
/// are applied and of this step's loss; before the first gradients arrive it is 0. States: "<parameter>.velocity" or
/// ".moment1", ".moment2"; step_state; loss_scale. Throws Error(usage) for options out of range, a penalty on no
/// parameter or on one that the tape lacks, and parameters that the loss does not depend on.
void add_training(Tape& tape, ValueId loss, const TrainingOptions& options);
/// The pass ahead of an update where `accumulation` is above 1: adds gradients and loss to states
/// "<parameter>.gradient_sum", "loss.gradient_sum". Throws Error(usage) for options out of range.
void add_accumulation(Tape& tape, ValueId loss, const AveragingOptions& averaging);

}  // namespace convoy
